"""Every rule for merging on a model that it accepts, and on one changed so that it refuses: rule, node and reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.graph import aten
from fusioncc.passes.merge_rules import MERGE_RULES, MergeFacts, check_merge
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.passes.weight_rules import Weights
from fusioncc.pipeline import find
from tests.passes.models import K, M, Model, N, X, lora, t
from tests.shown import one_of_each

RELAXED = Options(numerics="relaxed")
RULES = {rule.__name__: rule for rule in MERGE_RULES}


def plain(m: Model, x: torch.Tensor) -> torch.Tensor:
    return x @ m.w + 2 * ((x @ m.a) @ m.b)


def facts_of(model: nn.Module, *args: torch.Tensor, **changes: Any) -> MergeFacts:
    graph = capture(model, args or (X,)).graph
    (group,) = find(graph, RELAXED).groups
    main = next(main for main in group.mains if group.branches_of(main))
    return replace(MergeFacts(group, Weights(graph), main, "relaxed"), **changes)


@cache
def _plain() -> MergeFacts:
    return facts_of(lora(plain))


def _biased() -> MergeFacts:
    return facts_of(lora(lambda m, x: x @ m.w + torch.addmm(m.c, x, m.a) @ m.b, c=t(4)))


def _saved() -> MergeFacts:
    def both(m: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = x @ m.a
        return x @ m.w + low @ m.b, low

    return facts_of(lora(both))


def _two_adapters() -> MergeFacts:
    return facts_of(lora(lambda m, x: x @ m.w + (x @ m.a) @ m.b + (x @ m.a2) @ m.b2))


def _int8() -> MergeFacts:
    model = lora(lambda m, x: x @ (m.q.to(torch.float32) * m.step) + (x @ m.a) @ m.b, step=t(N))
    model.register_buffer("q", torch.ones(K, N, dtype=torch.int8))
    return facts_of(model)


def _computed() -> MergeFacts:
    return facts_of(lora(lambda m, x: x @ m.w + (x @ m.a) @ torch.tanh(m.b)))


def _computed_scale() -> MergeFacts:
    return facts_of(lora(lambda m, x: x @ m.w + torch.tanh(m.s) * ((x @ m.a) @ m.b), s=t()))


def _scale() -> MergeFacts:
    return facts_of(lora(lambda m, x: x @ m.w + m.s * ((x @ m.a) @ m.b), s=t()))


def _mixed(dtype: torch.dtype) -> MergeFacts:
    """An adapter of ``dtype`` that reads X as it is, under a product that reads it in fp32."""
    model = lora(lambda m, x: x.float() @ m.w + ((x @ m.a) @ m.b).float(), adapter=dtype)
    return facts_of(model, t(M, K, dtype=dtype))


def _trainable(name: str) -> MergeFacts:
    model = lora(lambda m, x: x @ m.w + m.s * ((x @ m.a) @ m.b), s=t())
    getattr(model, name).requires_grad_()
    return facts_of(model)


def _written() -> MergeFacts:
    facts = facts_of(lora(plain))
    node, graph = facts.weights.by_name["p_a"], facts.weights.graph
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        graph.call_function(aten.copy_.default, (node, node))
    return facts


def _shared() -> MergeFacts:
    return facts_of(lora(lambda m, x: ((x @ m.w + (x @ m.a) @ m.b), torch.relu(x) @ m.w.t().t())))


def _packed(gap: int) -> MergeFacts:
    """W and A as views of one buffer, ``gap`` elements from the end of one to the begin of the other."""
    model = lora(plain)
    buffer = torch.ones(K * N + K * 4)
    model.w = nn.Parameter(buffer[: K * N].view(K, N), requires_grad=False)
    at = K * N + gap
    model.a = nn.Parameter(buffer[at : at + K * 4].view(K, 4), requires_grad=False)
    return facts_of(model)


@dataclass(frozen=True)
class Case:
    rule: str
    refused: Callable[[], MergeFacts]
    node: str
    words: str
    accepted: Callable[[], MergeFacts] = _plain


CASES = (
    Case("rounding_tier", lambda: replace(_plain(), numerics="fp32"), "mm", "numerics='fp32' does not allow"),
    Case("single_adapter", _two_adapters, "mm", "2 adapters are added to it"),
    Case("plain_branch", _biased, "addmm", "a bias inside the adapter"),
    Case("plain_branch", _saved, "mm", "the down product is read elsewhere"),
    Case(
        "finite_scale",
        lambda: facts_of(lora(lambda m, x: x @ m.w + ((x @ m.a) @ m.b) * float("inf"))),
        "mm_1",
        "the scale of the branch through mm_1 is not finite",
    ),
    Case("unquantised", _int8, "mul", "mul, computed from b_q, is quantised (int8)"),
    Case("checkable", _computed, "tanh", "tanh is computed in the graph"),
    Case("checkable", _computed_scale, "tanh", "tanh is computed in the graph", _scale),
    Case("one_dtype", lambda: _mixed(torch.bfloat16), "mm", "not of one dtype (bf16, fp32)", lambda: _mixed(X.dtype)),
    Case("frozen", lambda: _trainable("w"), "p_w", "p_w is trainable"),
    Case("frozen", lambda: _trainable("b"), "p_b", "p_b is trainable"),
    Case("frozen", lambda: _trainable("s"), "p_s", "p_s is trainable", _scale),
    Case("frozen", _written, "p_a", "p_a is written by copy_"),
    Case("unshared", _shared, "p_w", "p_w is shared: mm_3 reads it too"),
    Case("unaliased", lambda: _packed(-1), "p_w", "it overlaps in memory with p_a", lambda: _packed(0)),
)


RULE_OF = attrgetter("rule")


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=RULE_OF)
def test_rule_accepts(case: Case) -> None:
    assert isinstance(decision := RULES[case.rule](case.accepted()), Accepted)
    assert decision.rule == case.rule


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", one_of_each(CASES, RULE_OF, RULE_OF))
def test_rule_refuses(case: Case) -> None:
    decision = RULES[case.rule](case.refused())
    assert isinstance(decision, Rejected)
    assert (decision.rule, decision.node) == (case.rule, case.node)
    assert case.words in decision.reason


def test_a_refusal_of_one_member_holds_for_the_group_and_nothing_is_asked_below_the_tier() -> None:
    model = lora(lambda m, x: (x @ m.w + (x @ m.a) @ m.b, x @ m.w2 + (x @ m.a2) @ m.b2), w2=t(K, N))
    model.b2.requires_grad_()
    graph = capture(model, (X,)).graph
    (group,) = find(graph, RELAXED).groups
    assert [(each.rule, each.node) for each in check_merge(group, Weights(graph), "relaxed")] == [("frozen", "p_b2")]
    assert [each.rule for each in check_merge(group, Weights(graph), "fp32")] == ["rounding_tier"]


def test_without_a_graph_nothing_is_merged() -> None:
    setting = Setting(replace(RELAXED, schedule="merged"), get_device("h200"), Accepted("runnable"))
    (planned,), rejections = plan_groups((_plain().group,), setting)
    assert planned.schedule.kind == "library"
    assert [(each.rule, each.node) for each in rejections] == [("forced_schedule", "g0"), ("checkable", "g0")]
