"""What only looks like a branch is refused, with rule and reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.passes.doors import DOORS, found_in
from tests.passes.models import BF16, K, M, N, X, lora, t, through_all
from tests.shown import one_of_each

# name: function, input shape, dtype of the adapters, rule, words of the reason
NO_BRANCH: dict[str, tuple[Callable[..., Any], dict[str, Any], str, str]] = {
    "only the down product rounds x": (
        lambda s, x: x @ s.w + ((x.to(BF16) @ s.a) @ s.b).float(),
        {"adapter": BF16},
        "same_lhs",
        "not the same value",
    ),
    "two slices": (lambda s, x: x[:3] @ s.w + (x[3:] @ s.a) @ s.b, {}, "same_lhs", "the down product reads slice"),
    "unlike views permuted alike": (
        lambda s, x: (
            x.view(2, 3, K).permute(1, 0, 2).reshape(M, K) @ s.w
            + (x.view(3, 2, K).permute(1, 0, 2).reshape(M, K) @ s.a) @ s.b
        ),
        {},
        "same_lhs",
        "not the same value",
    ),
    "dropout": (
        lambda s, x: x @ s.w + (functional.dropout(x, 0.5, True) @ s.a) @ s.b,
        {},
        "same_lhs",
        "a random op",
    ),
    "sum that broadcasts": (
        lambda s, x: (x @ s.w).view(M, 1, N) + (x @ s.a) @ s.b,
        {},
        "same_shape",
        "the sum broadcasts to (6, 6, 96)",
    ),
    "difference that broadcasts": (
        lambda s, x: (x @ s.w).view(M, 1, N) - (x @ s.a) @ s.b,
        {},
        "same_shape",
        "the sum broadcasts to (6, 6, 96)",
    ),
    "second user of the up product": (
        lambda s, x: (lambda u: (x @ s.w + u, u.relu()))((x @ s.a) @ s.b),
        {},
        "single_user",
        "also read by relu",
    ),
    "operand computed from the down product": (
        lambda s, x: (lambda y: x @ s.w + y @ (s.b * y.sum()))(x @ s.a),
        {},
        "independent",
        "an operand of the fused kernel is computed from",
    ),
    "bias and tensor scale": (
        lambda s, x: x @ s.w + torch.addmm(s.c, x @ s.a, s.b) * s.s,
        {"c": t(N), "s": t(1)},
        "scale_order",
        "a bias and the tensor scale",
    ),
    "bias of rows": (lambda s, x: torch.addmm(s.c, x, s.w) + (x @ s.a) @ s.b, {"c": t(M, 1)}, "plain_main", "no bias"),
    "matrix as bias": (
        lambda s, x: torch.addmm(s.c, x, s.w) + (x @ s.a) @ s.b,
        {"c": t(M, N)},
        "plain_main",
        "no bias",
    ),
    "scaled main": (
        lambda s, x: torch.addmm(s.c, x, s.w, alpha=2) + (x @ s.a) @ s.b,
        {"c": t(N)},
        "plain_main",
        "alpha=2",
    ),
    "double": (
        lambda s, x: x.double() @ s.w.double() + (x.double() @ s.a.double()) @ s.b.double(),
        {},
        "dtypes",
        "fp64",
    ),
    "no rows": (lambda s, x: x[:0] @ s.w + (x[:0] @ s.a) @ s.b, {}, "sizes", "M is 0"),
    "rank 0": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, {"a": t(K, 0), "b": t(0, N)}, "sizes", "rank is 0"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", one_of_each(NO_BRANCH, lambda name: NO_BRANCH[name][2]))
def test_what_only_looks_like_a_branch_is_refused_with_rule_and_reason(name: str) -> None:
    function, more, rule, words = NO_BRANCH[name]
    found = through_all(lora(function, **more), X)
    assert not any(group.branches for group in found.groups)
    (rejection,) = found.rejections
    assert rejection.rule == rule
    assert words in rejection.reason
    assert rejection.node


@pytest.mark.exhaustive
def test_complex_and_integer_products_make_no_group() -> None:
    for dtype in (torch.complex64, torch.int64):
        model = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b, dtype)
        for module in (DOORS["export"](model, (X.to(dtype),)), DOORS["aot"](model, (X.to(dtype),))):
            found = found_in(module)
            assert found.groups == ()
            assert [rejection.rule for rejection in found.rejections] == ["dtypes"]
