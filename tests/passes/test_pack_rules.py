"""Every rule for packing on a group that it accepts, and on one changed so that it refuses: rule, node and reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.group import Group, Operand
from fusioncc.packing import refusal
from fusioncc.passes.pack_rules import PACK_RULES, PackFacts, check_packs, readers_of
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.passes.weight_rules import Weights
from fusioncc.pipeline import find
from tests.cost_models.groups import bundle
from tests.passes.models import K, Model, X, t

RULES = {rule.__name__: rule for rule in PACK_RULES}


def plain(m: Model, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return linear(x, m.q), linear(x, m.k)


def facts_of(function: Callable[..., object] = plain, **weights: torch.Tensor) -> PackFacts:
    model = Model(function, **{"q": t(32, K), "k": t(16, K), **weights})
    graph = capture(model, (X,)).graph
    groups = find(graph, Options()).groups
    return PackFacts(groups[0], Weights(graph), True, readers_of(groups))


@cache
def _plain() -> PackFacts:
    return facts_of()


@cache
def _int8() -> PackFacts:
    model = Model(lambda m, x: (linear(x, m.codes.to(x.dtype) * 0.5), linear(x, m.k)), k=t(16, K))
    model.register_buffer("codes", torch.ones(32, K, dtype=torch.int8))
    graph = capture(model, (X,)).graph
    groups = find(graph, Options()).groups
    return PackFacts(groups[0], Weights(graph), True, readers_of(groups))


def _overlapping() -> PackFacts:
    whole = nn.Parameter(t(32, K), requires_grad=False)
    return facts_of(q=whole, k=whole.detach()[8:24])


def _read_elsewhere() -> PackFacts:
    facts = facts_of(lambda m, x: (linear(x, m.q), linear(x, m.k), torch.tanh(m.q)))
    assert isinstance(RULES["unshared"](facts), Accepted), "its strides stay as they are"
    return replace(facts, kind="k_concat")


def _trained() -> PackFacts:
    model = Model(plain, q=t(32, K), k=t(16, K))
    model.q.requires_grad_()
    graph = capture(model, (X,)).graph
    groups = find(graph, Options()).groups
    facts = PackFacts(groups[0], Weights(graph), True, readers_of(groups))
    assert isinstance(RULES["frozen"](facts), Accepted), "it stays dense"
    return replace(facts, kind="k_concat")


def _two_groups() -> PackFacts:
    return facts_of(lambda m, x: (*plain(m, x), *plain(m, torch.tanh(x))))


@dataclass(frozen=True)
class Case:
    rule: str
    refused: Callable[[], PackFacts]
    node: str
    words: str


CASES = (
    Case("asked_for", lambda: replace(_plain(), asked=False), "g0", "packing moves weights into one buffer"),
    Case("unquantised", _int8, "mul", "mul, computed from b_codes, is quantised (int8)"),
    Case("checkable", lambda: facts_of(lambda m, x: (linear(x, m.q.tanh()), linear(x, m.k))), "tanh", "is computed in"),
    Case("own_matrix", lambda: facts_of(lambda m, x: (x @ m.q, linear(x, m.k)), q=t(K, 32)), "p_q", "[64, 32], not as"),
    Case("in_one_group", _two_groups, "p_q", "p_q is shared: 2 products read it"),
    Case("unshared", _read_elsewhere, "p_q", "p_q is shared: tanh reads it too, and needs it as it is"),
    Case("unaliased", _overlapping, "p_q", "it overlaps in memory with p_k"),
    Case("frozen", _trained, "p_q", "p_q is trainable"),
    Case(
        "strides_are_free",
        lambda: replace(_plain(), kind="k_concat", rest="inductor"),
        "g0",
        "Inductor's code has the strides",
    ),
)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_rule_accepts(rule: str) -> None:
    decision = RULES[rule](_plain())
    assert isinstance(decision, Accepted) and decision.rule == rule


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_refuses(case: Case) -> None:
    decision = RULES[case.rule](case.refused())
    assert isinstance(decision, Rejected)
    assert (decision.rule, decision.node) == (case.rule, case.node)
    assert case.words in decision.reason


def test_nothing_is_asked_of_weights_that_are_not_to_be_packed() -> None:
    facts = _int8()
    for asked, rules in ((False, ["asked_for"]), (True, ["unquantised", "checkable"])):
        found = check_packs((facts.group,), facts.weights, asked)[facts.group.name]
        assert [each.rule for each in found] == rules


def test_without_a_graph_nothing_is_packed() -> None:
    setting = Setting(Options(schedule="packed", pack_weights=True), get_device("h200"), Accepted("runnable"))
    (planned,), rejections = plan_groups((_plain().group,), setting)
    assert planned.schedule.kind == "library"
    assert [(each.rule, each.node) for each in rejections] == [("forced_schedule", "g0"), ("checkable", "g0")]


TWO = bundle(64, 512, (1024, 0), (256, 0))


def _with_weight(**changes: object) -> Group:
    first = TWO.members[0]
    return replace(TWO, members=(replace(first, weight=replace(first.weight, **changes)), *TWO.members[1:]))  # type: ignore[arg-type]


def _with_member(**changes: object) -> Group:
    return replace(TWO, members=(replace(TWO.members[0], **changes), *TWO.members[1:]))  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Group, str]] = {
    "alone": (bundle(64, 512, (1024, 0)), "one main product: there is nothing to pack its weight with"),
    "branch": (bundle(64, 512, (1024, 8), (256, 0)), "low-rank branches would be left to products of their own"),
    "batch": (_with_member(batch=2), "batched members have no matrix"),
    "dtype": (_with_member(dtype="fp32"), "one GEMM has one dtype; X is bf16, the product with a weight"),
    "weight": (_with_weight(dtype="fp32"), "a vendor GEMM takes operands of one dtype"),
    "layout": (
        _with_weight(strides=(1024, 1)),
        "does not lie row by row as that of nn.Linear does (strides (1024, 1))",
    ),
    "pitch": (_with_weight(strides=(1, 520)), "does not lie row by row"),
    "alignment": (bundle(64, 500, (1024, 0), (256, 0)), "rows of 500 elements in bf16 are no multiple of 16 bytes"),
    "bias": (_with_member(bias=Operand("c", (1024,), (1,), "fp32")), "a vendor GEMM adds a bias where"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_group_that_cannot_be_packed_says_why(name: str) -> None:
    group, words = REFUSED[name]
    assert words in refusal(group)


def test_a_group_of_linear_layers_can_be_packed() -> None:
    assert refusal(TWO) == ""
