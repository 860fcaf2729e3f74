"""Peak and held bytes of whole graphs, counted by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusioncc
from fusioncc.capture import capture
from fusioncc.cost_models import launches, peak_bytes
from fusioncc.passes.graph_memory import graph_memory
from fusioncc.plan import GroupPlan, Memory, Plan
from tests.passes.models import BF16, K, M, Model, N, R, lora, t
from tests.shown import shown

SQUARE = M * M * 4
"""Bytes of an fp32 [M, M], the input of the chains below."""


def memory(function: Callable[..., Any], *args: torch.Tensor) -> Memory | None:
    (found,) = graph_memory(capture(Model(function), args or (t(M, M),)).graph, ())
    return found


CHAINS: dict[str, tuple[Callable[..., Any], int]] = {
    "a value dies at its last use": (lambda s, x: x.exp().sin().cos(), 2),
    "a value lives until its last use": (lambda s, x: (lambda e: e.sin().cos() + e)(x.exp()), 3),
    "an output lives to the end": (lambda s, x: (x.exp(), x.sin(), x.cos()), 3),
    "a view has no bytes of its own": (lambda s, x: x.exp().view(-1).view(M, M).t()[2:], 1),
    "a view keeps what it views": (lambda s, x: (lambda e: (x.sin().cos(), e[:1]))(x.exp()), 3),
    "parts are views": (lambda s, x: (lambda a, b: a.sin() + b)(*x.exp().chunk(2)), 2),
    "what nothing reads is not there": (lambda s, x: (x.exp().sin(), x.cos())[1], 1),
    "an input is held": (lambda s, x: x.t(), 0),
}


@pytest.mark.parametrize("name", shown(CHAINS, 2))
def test_peak_of_a_chain(name: str) -> None:
    function, squares = CHAINS[name]
    assert memory(function) == Memory(squares * SQUARE, SQUARE)


def test_a_reshape_that_copies_has_bytes_of_its_own() -> None:
    for function, squares in ((lambda s, x: x.exp().reshape(-1), 1), (lambda s, x: x.exp().t().reshape(-1), 2)):
        graph = torch.export.export(Model(function), (t(M, M),)).graph_module.graph  # not decomposed
        assert graph_memory(graph, ()) == (Memory(squares * SQUARE, SQUARE),)


def test_each_result_of_an_op_has_its_own_life() -> None:
    """Values [M] fp32 are dropped, indices [M] int64 are not."""
    values, indices = M * 4, M * 8
    assert memory(lambda s, x: x.max(dim=1).indices.neg()) == Memory(2 * indices, SQUARE)
    both = memory(lambda s, x: (lambda v, i: (v.neg(), i))(*x.max(dim=1)))
    assert both == Memory(2 * values + indices, SQUARE)


def test_a_size_that_depends_on_data_is_not_guessed() -> None:
    assert memory(lambda s, x: x[x > 0].exp()) is None


X, OUT, LOW = M * K * 2, M * N * 2, M * R * 2
WEIGHTS = (K * N + K * R + R * N + K * 8 + 8 * N) * 2


def planned(function: Callable[..., Any], **options: Any) -> Plan:
    example = (t(M, K, dtype=BF16),)
    return fusioncc.plan(lora(function, BF16), example, device="h200", epilogues="never", **options)


def between(s: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.relu()
    return (x @ s.w + (x @ s.a) @ s.b).neg()


def of(plan: Plan) -> tuple[GroupPlan, Memory, Memory]:
    (group,) = plan.groups
    assert plan.before is not None and plan.after is not None
    return group, plan.before, plan.after


@pytest.mark.exhaustive
def test_a_fused_group_lives_as_its_launches_do() -> None:
    """Before: W's product, B's product and their sum. After: X and the sum, and then the sum and what follows it."""
    _, before, after = of(planned(between, schedule="inline"))
    assert before == Memory(max(X + OUT + LOW, 3 * OUT), X + WEIGHTS)
    assert after == Memory(max(X + OUT, 2 * OUT), X + WEIGHTS)
    group, _, after = of(planned(between, schedule="split"))
    sequence = launches(group.group, group.schedule)
    partial = sum(tensor.bytes for tensor in sequence[0].writes)
    assert after.peak_bytes == max(X + partial + OUT, 2 * OUT) == peak_bytes(sequence)


def test_a_group_that_stays_changes_nothing() -> None:
    _, before, after = of(planned(between, schedule="library"))
    assert before == after


def test_a_down_product_that_is_read_elsewhere_lives_on() -> None:
    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.relu()
        y = x @ s.a
        return x @ s.w + y @ s.b, y.neg()

    _, _, after = of(planned(function, schedule="inline"))
    assert after.peak_bytes == X + OUT + LOW


def test_a_merged_copy_is_held() -> None:
    _, before, after = of(planned(between, schedule="merged", numerics="relaxed"))
    assert after == Memory(max(X + OUT, 2 * OUT), before.held_bytes + K * N * 2)


@pytest.mark.exhaustive
def test_products_in_one_launch_live_at_once() -> None:
    """One by one, each product of X is read and gone before the next one is made; together they all live."""

    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.relu()
        return (x @ s.w).sum() + (x @ s.w + (x @ s.a) @ s.b).sum() + (x @ s.w + (x @ s.a2) @ s.b2).sum()

    _, before, after = of(planned(function, schedule="inline"))
    assert before.peak_bytes < X + 3 * OUT + 100
    assert after.peak_bytes == X + 3 * OUT


def test_the_figure_is_in_the_plan_and_read_back() -> None:
    plan = planned(between, schedule="inline")
    _, before, after = of(plan)
    assert Plan.from_json(plan.to_json()) == plan
    assert f'"before": {{\n    "peak_bytes": {before.peak_bytes},' in plan.to_json()
    assert f'"peak_bytes": {after.peak_bytes},\n    "held_bytes": {after.held_bytes}' in plan.to_json()
