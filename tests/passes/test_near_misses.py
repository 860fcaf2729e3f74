"""What nearly is a branch: the group stays as it was, and one rejection says which node is in the way."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.passes.models import K, M, N, R, X, lora, t, through_all
from tests.shown import one_of_each, shown

# name: function, rule, words of the reason as export's graph gives them
MISSES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "relu between": (lambda s, x: x @ s.w + (x @ s.a).relu() @ s.b, "linear_branch", "relu stands between the down"),
    "gelu between": (
        lambda s, x: x @ s.w + functional.gelu(x @ s.a) @ s.b,
        "linear_branch",
        "between the down product",
    ),
    "silu between": (
        lambda s, x: x @ s.w + functional.silu(x @ s.a) @ s.b,
        "linear_branch",
        "between the down product",
    ),
    "integers between": (
        lambda s, x: x @ s.w + (x @ s.a).to(torch.int32).float() @ s.b,
        "linear_branch",
        "a cast to int32",
    ),
    "8 bits between": (
        lambda s, x: x @ s.w + (x @ s.a).to(torch.float8_e4m3fn).float() @ s.b,
        "linear_branch",
        "a cast to fp8e4m3",
    ),
    "dropout between": (
        lambda s, x: x @ s.w + functional.dropout(x @ s.a, 0.5, True) @ s.b,
        "linear_branch",
        "a random op",
    ),
    "constant between": (lambda s, x: x @ s.w + (x @ s.a + 1) @ s.b, "linear_branch", "adds 1 between"),
    "a divided by a tensor": (
        lambda s, x: x @ s.w + ((x @ s.a) / s.s) @ s.b,
        "linear_branch",
        "divides by p_s of shape (1,)",
    ),
    "a times a vector": (
        lambda s, x: x @ s.w + ((x @ s.a) * s.r) @ s.b,
        "linear_branch",
        "multiplies by p_r of shape (4,)",
    ),
    "b divided by a tensor": (
        lambda s, x: x @ s.w + ((x @ s.a) @ s.b) / s.s,
        "plain_sum",
        "divides by p_s of shape (1,)",
    ),
    "b times a vector": (
        lambda s, x: x @ s.w + ((x @ s.a) @ s.b) * s.v,
        "plain_sum",
        "multiplies by p_v of shape (96,)",
    ),
    "relu behind b": (
        lambda s, x: x @ s.w + ((x @ s.a) @ s.b).relu(),
        "plain_sum",
        "relu stands between the up product",
    ),
    "dropout behind b": (
        lambda s, x: x @ s.w + functional.dropout((x @ s.a) @ s.b, 0.5, True),
        "plain_sum",
        "a random op",
    ),
    "1 - b": (lambda s, x: x @ s.w + (1 - (x @ s.a) @ s.b), "plain_sum", "from 1"),
    "relu behind main": (lambda s, x: (x @ s.w).relu() + (x @ s.a) @ s.b, "plain_sum", "relu stands between the main"),
    "8 bits behind main": (
        lambda s, x: (x @ s.w).to(torch.float8_e4m3fn).float() + (x @ s.a) @ s.b,
        "plain_sum",
        "a cast to fp8e4m3",
    ),
    "main scaled": (lambda s, x: (x @ s.w) * 2 + (x @ s.a) @ s.b, "plain_sum", "mul scales mm"),
    "main transposed": (lambda s, x: (x @ s.w).T + ((x @ s.a) @ s.b).T, "plain_sum", "permute"),
    "main + (branch + residual)": (
        lambda s, x: x @ s.w + ((x @ s.a) @ s.b + s.y),
        "plain_sum",
        "adds p_y between the up",
    ),
    "main + 2 * (residual + branch)": (lambda s, x: x @ s.w + (s.y + (x @ s.a) @ s.b) * 2, "plain_sum", "adds p_y"),
    "(main + residual) + branch": (
        lambda s, x: (x @ s.w + s.y) + (x @ s.a) @ s.b,
        "plain_sum",
        "adds p_y between the main",
    ),
    "(residual + main) + branch": (
        lambda s, x: (s.y + x @ s.w) + (x @ s.a) @ s.b,
        "plain_sum",
        "adds p_y between the main",
    ),
    "(residual + branch) + main": (
        lambda s, x: (s.y + (x @ s.a) @ s.b) + x @ s.w,
        "plain_sum",
        "adds p_y between the up",
    ),
    "(main - residual) + branch": (lambda s, x: (x @ s.w - s.y) + (x @ s.a) @ s.b, "plain_sum", "subtracts p_y"),
    "branch - main": (lambda s, x: (x @ s.a) @ s.b - x @ s.w, "plain_sum", "subtracts the main product"),
    "alpha on main": (
        lambda s, x: torch.add((x @ s.a) @ s.b, x @ s.w, alpha=2),
        "plain_sum",
        "multiplies the main product by alpha=2",
    ),
    "beta on main": (
        lambda s, x: torch.addmm(x @ s.w, x @ s.a, s.b, beta=0.5),
        "plain_sum",
        "multiplies the main product by beta=0.5",
    ),
    "main read elsewhere": (
        lambda s, x: (lambda m: (m + (x @ s.a) @ s.b, m.relu()))(x @ s.w),
        "unshared_main",
        "mm is also read by relu",
    ),
    "N of 1": (lambda s, x: x @ s.w1 + (x @ s.a) @ s.b1, "low_rank", "rank 4 is not smaller than both K=64 and N=1"),
    "N and rank of 1": (lambda s, x: x @ s.w1 + (x @ s.a1) @ s.c, "low_rank", "rank 1 is not smaller than both"),
    "rank of N": (lambda s, x: x @ s.wr + (x @ s.a) @ s.br, "low_rank", "rank 4 is not smaller than both K=64 and N=4"),
    "rank over K": (lambda s, x: x @ s.w + (x @ s.a80) @ s.b80, "low_rank", "rank 80 is not smaller than both K=64"),
    "rank over the limit": (
        lambda s, x: x @ s.w + (x @ s.a17) @ s.b17,
        "low_rank",
        "rank 17 is more than 0.25 of K=64",
    ),
}
MORE = {
    "s": t(1),
    "r": t(R),
    "v": t(N),
    "y": t(M, N),
    "w1": t(K, 1),
    "b1": t(R, 1),
    "a1": t(K, 1),
    "c": t(1, 1),
    "wr": t(K, R),
    "br": t(R, R),
    "a80": t(K, 80),
    "b80": t(80, N),
    "a17": t(K, 17),
    "b17": t(17, N),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", one_of_each(MISSES, lambda name: MISSES[name][1]))
def test_a_near_miss_is_left_alone_and_explained(name: str) -> None:
    function, rule, words = MISSES[name]
    found = through_all(lora(function, **MORE), X)
    assert not any(group.branches for group in found.groups)
    (rejection,) = found.rejections
    assert rejection.rule == rule
    assert words in rejection.reason
    assert rejection.node and "\n" not in rejection.reason


@pytest.mark.exhaustive
def test_a_near_miss_beside_a_joined_branch_is_explained() -> None:
    function = lambda s, x: (x @ s.w + (x @ s.a) @ s.b) + ((x @ s.a2) @ s.b2 + s.y)
    found = through_all(lora(function, **MORE), X)
    assert len(found.groups[0].branches) == 1
    (rejection,) = found.rejections
    assert (rejection.rule, "adds p_y between the up product mm_4" in rejection.reason) == ("plain_sum", True)


ANOTHER_PATTERN: dict[str, Callable[..., Any]] = {
    "two layers with a skip": lambda s, x: x @ s.w + (x @ s.a80).relu() @ s.b80,
    "gate": lambda s, x: (x @ s.w) * ((x @ s.a) @ s.b),
    "concatenated": lambda s, x: torch.cat([x @ s.w, (x @ s.a) @ s.b], -1),
    "another input": lambda s, x: s.z @ s.w + (x @ s.a).relu() @ s.b,
    "no main": lambda s, x: s.y + (x @ s.a) @ s.b,
    "not summed": lambda s, x: (x @ s.w, (x @ s.a).relu() @ s.b),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", shown(ANOTHER_PATTERN, 1))
def test_another_pattern_is_no_near_miss(name: str) -> None:
    found = through_all(lora(ANOTHER_PATTERN[name], z=t(M, K), **MORE), X)
    assert not any(group.branches for group in found.groups)
    assert found.rejections == ()
