"""Products without a branch that share X: they join a group only as ``X @ W`` or with a bias of N elements."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.graph import aten
from fusioncc.pipeline import find, rewrite
from tests.passes.doors import DOORS, inputs_of
from tests.passes.models import K, Model, N, t, through_all
from tests.passes.test_insertion import close, setting
from tests.shown import one_of_each, shown

M, V = 40, 64
X = t(M, K)
Case = tuple[Callable[..., Any], tuple[int, ...]]

ACCEPTED: dict[str, Case] = {
    "bias": (lambda s, x: torch.addmm(s.c, x, s.w), (N,)),
    "bias as a row": (lambda s, x: torch.addmm(s.c, x, s.w), (1, N)),
    "beta of nothing": (lambda s, x: torch.addmm(s.c, x, s.w, beta=0), (M, N)),
}
REFUSED: dict[str, Case] = {
    "alpha": (lambda s, x: torch.addmm(s.c, x, s.w, alpha=3), (N,)),
    "alpha of nothing": (lambda s, x: torch.addmm(s.c, x, s.w, alpha=0), (N,)),
    "beta": (lambda s, x: torch.addmm(s.c, x, s.w, beta=0.5), (N,)),
    "residual": (lambda s, x: torch.addmm(s.c, x, s.w), (M, N)),
    "one element a row": (lambda s, x: torch.addmm(s.c, x, s.w), (M, 1)),
    "one element": (lambda s, x: torch.addmm(s.c, x, s.w), (1,)),
    "one element as a matrix": (lambda s, x: torch.addmm(s.c, x, s.w), (1, 1)),
}
BESIDE: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "plain": (lambda s, x: x @ s.v, ("concat",)),
    "lora": (
        lambda s, x: x @ s.v + 2 * ((x @ s.a) @ s.b),
        ("concat", "two_pool"),
    ),
}


def model(case: Case, beside: str) -> Model:
    (function, shape), (other, _) = case, BESIDE[beside]
    weights = {"w": t(K, N), "v": t(K, V), "a": t(K, 4), "b": t(4, V), "c": t(*shape)}
    return Model(lambda s, x: (function(s, x), other(s, x)), **weights)


def mains(found: Any) -> list[list[int]]:
    """The N of the main members of each group."""
    return [[member.n for member in group.members if member.role == "main"] for group in found.groups]


@pytest.mark.parametrize("name", shown(ACCEPTED, 3))
def test_what_joins_a_group(name: str) -> None:
    assert mains(through_all(model(ACCEPTED[name], "plain"), X)) == [[N, V]]


@pytest.mark.parametrize("name", shown(REFUSED, 1))
def test_what_stays_out_and_why(name: str) -> None:
    alone = through_all(model(REFUSED[name], "plain"), X)
    assert mains(alone) == []
    assert {rejection.rule for rejection in alone.rejections} == {"plain_main"}
    assert mains(through_all(model(REFUSED[name], "lora"), X)) == [[V]]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        pytest.param(name, kind, marks=pytest.mark.exhaustive if kind == "two_pool" else ())
        for name, (_, kinds) in BESIDE.items()
        for kind in kinds
    ],
)
@pytest.mark.parametrize("name", shown([*ACCEPTED, *REFUSED], 1))
def test_results_are_equal(name: str, beside: str, kind: str) -> None:
    module = DOORS["export"](model((ACCEPTED | REFUSED)[name], beside), (X,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(kind), "call")
    assert all(group.schedule.kind == kind for group in plan.groups)
    assert len(plan.groups) == (name in ACCEPTED or beside == "lora")
    module.recompile()
    close(module(*inputs), wanted)


def test_an_x_that_is_changed_between_two_products() -> None:
    module = DOORS["export"](Model(lambda s, x: (x @ s.w, x @ s.v), w=t(K, N), v=t(K, V)), (X,))
    assert mains(find(module.graph, Options())) == [[N, V]]
    first, second = (node for node in module.graph.nodes if node.target is aten.mm.default)
    with module.graph.inserting_before(second):
        changed = module.graph.call_function(aten.neg_.default, (first.args[0],))
        changed.meta["val"] = first.args[0].meta["val"]
    found = find(module.graph, Options())
    assert mains(found) == []
    assert [rejection.rule for rejection in found.rejections] == ["no_barrier"]


def _biased_down(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    low = torch.addmm(s.ab, x, s.a)
    return x @ s.w + s.c + 2 * (low @ s.b), low, x @ s.v


def _scaled_x(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    low = (x * 2) @ s.a
    return x @ s.w + s.c + low @ s.b, low, x @ s.v


LOSES_ITS_BRANCH: dict[str, tuple[Callable[..., Any], str]] = {
    "down product with a bias, read elsewhere": (_biased_down, "saved_products"),
    "down product of a scaled X, read elsewhere": (_scaled_x, "saved_products"),
    "scale in fp64": (
        lambda s, x: (x @ s.w + s.c + ((x @ s.a) @ s.b) * s.d, x @ s.v),
        "dtypes",
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", shown(["horizontal", "concat"], 1))
@pytest.mark.parametrize("name", one_of_each(LOSES_ITS_BRANCH, lambda name: LOSES_ITS_BRANCH[name][1]))
def test_a_bias_that_a_sum_adds_stays_with_the_sum(name: str, kind: str) -> None:
    """The main product of a refused region joins the group as it stands: without the bias on the way to its branch."""
    function, rule = LOSES_ITS_BRANCH[name]
    scale = torch.ones((), dtype=torch.float64)
    weights = {"w": t(K, N), "v": t(K, V), "a": t(K, 4), "b": t(4, N), "c": t(N), "ab": t(4), "d": scale}
    module = DOORS["export"](Model(function, **weights), (X,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(kind), "call")
    assert mains(plan) == [[N, V]]
    assert not any(group.branches or any(member.bias for member in group.members) for group in plan.groups)
    assert {rejection.rule for rejection in plan.rejections} == {rule}
    module.recompile()
    close(module(*inputs), wanted)


@pytest.mark.exhaustive
def test_one_element_without_a_dimension_beside_a_product_of_one_column() -> None:
    """No bias of N = 1 elements: it has no last dimension to have them in."""
    model = Model(lambda s, x: (torch.addmm(s.c, x, s.w), x @ s.v, x @ s.u), c=t(), w=t(K, 1), v=t(K, V), u=t(K, N))
    found = through_all(model, X)
    assert mains(found) == [[V, N]]
    assert [rejection.rule for rejection in found.rejections] == ["plain_main"]


@pytest.mark.exhaustive
def test_a_batch_that_became_a_number_while_it_was_captured() -> None:
    """Its size stays a symbol's, with a number as its expression; such sizes have no hash."""

    def function(s: Any, x: torch.Tensor) -> Any:
        weights = s.w * torch.ones_like(x[:, :1, :1])
        return torch.bmm(x, weights), torch.bmm(x, weights * 2), x @ s.w, x @ s.v

    x, shapes = torch.ones(2, 3, K), (({0: torch.export.Dim.AUTO},),)
    program = torch.export.export(Model(function, w=t(K, N), v=t(K, V)), (x,), dynamic_shapes=shapes, strict=False)
    module = capture(program)
    batch = module.graph.find_nodes(op="call_function", target=aten.bmm.default)[0].meta["val"].shape[0]
    assert isinstance(batch, torch.SymInt) and batch == 2  # which is a guard
    groups = find(module.graph, Options()).groups
    assert [{member.batch for member in group.members} for group in groups] == [{2}, {1}]
