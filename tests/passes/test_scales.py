"""Low-rank branches as people write them: scales, biases, dtypes, ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.passes.doors import DOORS, found_in
from tests.passes.models import BF16, LORA, K, M, N, R, X, lora, shapes, t, through_all
from tests.shown import shown

# name: function, extra parameters, constant scale, number of tensor scales
SCALES: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor], float, int]] = {
    "none": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, {}, 1.0, 0),
    "on x": (lambda s, x: x @ s.w + ((x * 2) @ s.a) @ s.b, {}, 2.0, 0),
    "on a": (lambda s, x: x @ s.w + ((x @ s.a) * 3) @ s.b, {}, 3.0, 0),
    "on b": (lambda s, x: 0.5 * ((x @ s.a) @ s.b) + x @ s.w, {}, 0.5, 0),
    "everywhere": (lambda s, x: x @ s.w + 0.5 * (((x * 2) @ s.a) * 3) @ s.b, {}, 3.0, 0),
    "division": (lambda s, x: x @ s.w + ((x @ s.a) @ s.b) / 4, {}, 0.25, 0),
    "negated": (lambda s, x: x @ s.w + -((x @ s.a) @ s.b), {}, -1.0, 0),
    "subtracted": (lambda s, x: x @ s.w - (x @ s.a) @ s.b, {}, -1.0, 0),
    "subtracted and scaled": (lambda s, x: x @ s.w - 2 * ((x @ s.a) @ s.b), {}, -2.0, 0),
    "alpha of sub": (lambda s, x: torch.sub(x @ s.w, (x @ s.a) @ s.b, alpha=3), {}, -3.0, 0),
    "alpha of add": (lambda s, x: torch.add(x @ s.w, (x @ s.a) @ s.b, alpha=3), {}, 3.0, 0),
    "alpha of addmm": (lambda s, x: torch.addmm(x @ s.w, x @ s.a, s.b, alpha=0.25), {}, 0.25, 0),
    "tensor, 0-dim": (lambda s, x: x @ s.w + 2 * ((x @ s.a) @ s.b) * s.s, {"s": torch.tensor(1.5)}, 2.0, 1),
    "tensor, [1]": (lambda s, x: x @ s.w + ((x @ s.a) * s.s) @ s.b, {"s": t(1)}, 1.0, 1),
    "tensor on x": (lambda s, x: x @ s.w + ((x * s.s) @ s.a) @ s.b, {"s": t(1)}, 1.0, 1),
    "main reads a scaled x too": (lambda s, x: (lambda h: h @ s.w + (h @ s.a) @ s.b)(x * 0.3), {}, 1.0, 0),
}


@pytest.mark.parametrize("name", shown(SCALES, 2))
def test_scale_wherever_it_stands(name: str) -> None:
    function, more, scale, tensors = SCALES[name]
    found = through_all(lora(function, **more), X)
    (group,) = found.groups
    (branch,) = group.branches
    assert (shapes(found), found.rejections) == (LORA, ())
    assert branch.scale == pytest.approx(scale)
    assert len(branch.scale_tensors) == tensors
    assert not branch.saved


def test_biases_of_every_product_and_what_multiplies_them() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        low = functional.linear(x * 2, s.a.T, s.c) * 3
        return functional.linear(x, s.w.T, s.d) + 0.5 * torch.addmm(s.e, low, s.b, alpha=4)

    found = through_all(lora(function, c=t(R), d=t(N), e=t(N)), X)
    main, down, up = found.groups[0].members
    assert all(member.bias is not None for member in (main, down, up))
    assert found.groups[0].branches[0].scale == pytest.approx(2 * 3 * 0.5 * 4)
    assert down.bias_scale == pytest.approx(3 * 0.5 * 4)
    assert up.bias_scale == pytest.approx(0.5)


def test_fp32_adapters_over_bf16() -> None:
    function = lambda s, x: x @ s.w + 2 * ((x.float() @ s.a) @ s.b).to(BF16)
    (group,) = through_all(lora(function, BF16, torch.float32), X.to(BF16)).groups
    assert group.lhs.dtype == "bf16"
    assert [member.dtype for member in group.members] == ["bf16", "fp32", "fp32"]
    assert group.outputs[0].dtype == "bf16"


@pytest.mark.exhaustive
def test_narrowing_cast_behind_the_sum_is_absorbed_and_widening_is_not() -> None:
    narrow = lora(lambda s, x: (x @ s.w + (x.float() @ s.a) @ s.b).to(BF16), BF16, torch.float32)
    wide = lora(lambda s, x: (x @ s.w + (x @ s.a) @ s.b).float(), BF16)
    quantised = lora(lambda s, x: (x @ s.w + (x @ s.a) @ s.b).to(torch.float8_e4m3fn).float(), BF16)
    for model in (narrow, wide, quantised):
        assert through_all(model, X.to(BF16)).groups[0].outputs[0].dtype == "bf16"


def test_main_and_down_read_one_rounded_value() -> None:
    found = through_all(lora(lambda s, x: (lambda h: h @ s.w + (h @ s.a) @ s.b)(x.to(BF16)), BF16), X)
    assert shapes(found) == LORA
    assert found.groups[0].lhs.dtype == "bf16"


@pytest.mark.exhaustive
def test_rank_one_and_rank_limits() -> None:
    found = through_all(lora(lambda s, x: x @ s.w + 0.5 * ((x @ s.a) @ s.b), a=t(K, 1), b=t(1, N)), X)
    assert shapes(found) == [("main", M, N, K), ("down", M, 1, K), ("up", M, N, 1)]
    assert found.groups[0].branches[0].scale == 0.5
    wide = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b, a=t(K, 17), b=t(17, N))
    (rejection,) = through_all(wide, X).rejections
    assert rejection.rule == "low_rank"
    assert "rank 17 is more than 0.25 of K=64 or N=96" in rejection.reason
    assert found_in(DOORS["export"](wide, (X,)), max_rank_fraction=0.3).groups[0].branches
    small = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b)
    assert not found_in(DOORS["export"](small, (X,)), max_rank_fraction=R / K - 0.01).groups[0].branches
