"""Sums of several branches and mains, in every order, and what stands behind them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.passes.doors import aot, found_in
from tests.passes.models import LORA, SECOND, K, M, N, R, X, lora, shapes, t, through_all
from tests.shown import shown

SUMS: dict[str, Callable[..., Any]] = {
    "(m+b1)+b2": lambda s, x: (x @ s.w + (x @ s.a) @ s.b) + (x @ s.a2) @ s.b2,
    "m+(b1+b2)": lambda s, x: x @ s.w + ((x @ s.a) @ s.b + (x @ s.a2) @ s.b2),
    "b1+m+b2": lambda s, x: (x @ s.a) @ s.b + x @ s.w + (x @ s.a2) @ s.b2,
    "(b1+b2)+m": lambda s, x: ((x @ s.a) @ s.b + (x @ s.a2) @ s.b2) + x @ s.w,
    "addmm of addmm": lambda s, x: torch.addmm(torch.addmm(x @ s.w, x @ s.a, s.b), x @ s.a2, s.b2),
}


@pytest.mark.parametrize("name", shown(SUMS, 1))
def test_two_branches_in_every_order(name: str) -> None:
    found = through_all(lora(SUMS[name]), X)
    assert shapes(found) == [*LORA, *SECOND]
    assert [branch.main for branch in found.groups[0].branches] == [0, 0]


@pytest.mark.exhaustive
def test_three_branches_and_scale_of_a_sum_of_branches() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ s.w + 2 * ((x @ s.a) @ s.b + ((x @ s.a2) @ s.b2) * 3) + (x @ s.a3) @ s.b3

    (group,) = through_all(lora(function, a3=t(K, 2), b3=t(2, N)), X).groups
    assert [branch.scale for branch in group.branches] == pytest.approx([2.0, 6.0, 1.0])


def test_differences_of_branches_are_sums_with_negative_scales() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ s.w - 3 * ((x @ s.a) @ s.b - 2 * ((x @ s.a2) @ s.b2))

    (group,) = through_all(lora(function), X).groups
    assert [branch.scale for branch in group.branches] == pytest.approx([-3.0, 6.0])


@pytest.mark.exhaustive
def test_branch_added_twice_and_branches_of_one_down_product() -> None:
    twice = lora(lambda s, x: x @ s.w + (lambda u: u + u)((x @ s.a) @ s.b))
    assert shapes(through_all(twice, X)) == [*LORA, *LORA[1:]]
    shared = lora(lambda s, x: (lambda y: (x @ s.w + y @ s.b) + y @ s.b3)(x @ s.a), b3=t(R, N))
    found = through_all(shared, X)
    assert shapes(found) == [*LORA, *LORA[1:]]
    assert not any(branch.saved for branch in found.groups[0].branches)


def test_one_down_product_for_two_mains_is_offered_to_both() -> None:
    function = lambda s, x: (lambda y: (x @ s.w + y @ s.b, x @ s.w2 + y @ s.b3))(x @ s.a)
    found = through_all(lora(function, w2=t(K, N), b3=t(R, N)), X)
    first, second = (group for group in found.groups if group.branches)
    assert [member.role for member in first.members] == ["main", "down", "up", "main"]
    assert [member.role for member in second.members] == ["main", "main", "down", "up"]
    assert first.branches[0].saved and second.branches[0].saved
    assert [[member.role for member in group.members] for group in found.groups if not group.branches] == [
        ["main"] * 3,
        ["main"] * 2,
    ]
    assert found.rejections == ()


def test_grouped_query_attention_and_gate_up() -> None:
    class Projections(nn.Module):
        def __init__(self, *widths: int) -> None:
            super().__init__()
            self.mains = nn.ModuleList(nn.Linear(K, n) for n in widths)
            self.downs = nn.ModuleList(nn.Linear(K, R, bias=False) for _ in widths)
            self.ups = nn.ModuleList(nn.Linear(R, n, bias=False) for n in widths)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [m(x) + 2 * u(d(x)) for m, d, u in zip(self.mains, self.downs, self.ups, strict=True)]

    found = through_all(Projections(128, 32, 32), t(2, 3, K))
    assert [shape for shape in shapes(found) if shape[0] == "main"] == [("main", M, n, K) for n in (128, 32, 32)]
    assert [branch.main for branch in found.groups[0].branches] == [0, 3, 6]
    assert len(found.groups[0].outputs) == 3
    assert found.groups[0].members[0].weight.strides == (1, K)
    assert found.groups[0].members[0].source == "mains.0"
    assert len(through_all(Projections(160, 160), X).groups[0].branches) == 2


BIASED: dict[str, Callable[..., Any]] = {
    "(m+c)+b": lambda s, x: (x @ s.w + s.c) + (x @ s.a) @ s.b,
    "(c+m)+b": lambda s, x: (s.c + x @ s.w) + (x @ s.a) @ s.b,
    "b+(m+c)": lambda s, x: (x @ s.a) @ s.b + (x @ s.w + s.c),
    "(m+row)+b": lambda s, x: (x @ s.w + s.c[None]) + (x @ s.a) @ s.b,
    "addmm": lambda s, x: torch.addmm(s.c, x, s.w) + (x @ s.a) @ s.b,
}


@pytest.mark.parametrize("name", shown(BIASED, 1))
def test_a_bias_between_the_product_and_a_branch_is_the_products_own(name: str) -> None:
    found = through_all(lora(BIASED[name], c=t(N)), X)
    (group,) = found.groups
    assert (shapes(found), found.rejections) == (LORA, ())
    assert group.members[0].bias is not None
    assert group.outputs[0].node == ("add" if name == "addmm" else "add_1")


NO_BIAS: dict[str, Callable[..., Any]] = {
    "two": lambda s, x: (x @ s.w + s.c + s.c) + (x @ s.a) @ s.b,
    "subtracted": lambda s, x: (x @ s.w - s.c) + (x @ s.a) @ s.b,
    "of half the columns": lambda s, x: (
        (x @ s.w).view(M, 2, N // 2) + s.c[: N // 2] + ((x @ s.a) @ s.b).view(M, 2, N // 2)
    ),
    "a number": lambda s, x: (x @ s.w + s.c.tanh().sum()) + (x @ s.a) @ s.b,
}


@pytest.mark.parametrize("name", shown(NO_BIAS, 2))
def test_what_else_is_added_to_the_product_ends_the_region(name: str) -> None:
    found = through_all(lora(NO_BIAS[name], c=t(N)), X)
    assert "plain_sum" in {each.rule for each in found.rejections}
    assert not any(group.branches for group in found.groups)


def test_residual_behind_the_sum_is_not_absorbed() -> None:
    for function in (
        lambda s, x, y: (x @ s.w + (x @ s.a) @ s.b) + y,
        lambda s, x, y: y + (x @ s.w + (x @ s.a) @ s.b),
        lambda s, x, y: y - (x @ s.w + (x @ s.a) @ s.b),
    ):
        found = through_all(lora(function), X, t(M, N))
        assert found.groups[0].outputs[0].node == "add"
        assert (shapes(found), found.rejections) == (LORA, ())


def test_products_saved_for_a_backward_are_written_out() -> None:
    model = lora(lambda s, x: x @ s.w + 2 * ((x @ s.a) @ s.b)).requires_grad_(True)
    forward, backward = aot(model, (X,), train=True)
    (group,) = found_in(forward).groups
    assert group.branches[0].saved
    nothing = found_in(backward)
    assert nothing.groups == ()
    assert [rejection.rule for rejection in nothing.rejections] == ["forward_only"]


@pytest.mark.parametrize("flip", shown([False, True], 1))
def test_of_members_computed_from_each_other_each_is_offered_beside_the_rest(flip: bool) -> None:
    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = x @ s.w if flip else None
        q = x @ s.w2
        main = x @ s.w if early is None else early
        return main + (x @ s.a) @ (s.b * q.sum()), q, x @ s.w3

    found = through_all(lora(function, w2=t(K, 32), w3=t(K, 16)), X)
    assert [[found.groups[at].members[main].n for main in found.groups[at].mains] for at in (0, 1)] == [
        [N, 16] if flip else [32, 16],
        [32, 16] if flip else [N, 16],
    ]
    assert (len(found.groups), found.rejections) == (2, ())


def test_a_member_that_depends_on_the_only_other_one_is_in_no_group() -> None:
    found = through_all(lora(lambda s, x: (lambda q: (q, x @ (s.w * q.sum())))(x @ s.w2), w2=t(K, 32)), X)
    (rejection,) = found.rejections
    assert (rejection.rule, found.groups) == ("independent", ())
    assert "a product of the same input" in rejection.reason
