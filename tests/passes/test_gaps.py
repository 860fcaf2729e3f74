"""Strides with gaps: those of an input's slice stay, those of an intermediate's are Inductor's to choose."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusioncc.graph import is_dense
from fusioncc.pipeline import rewrite
from tests.passes.doors import DOORS, inputs_of
from tests.passes.models import K, N, lora, t, through_all
from tests.passes.test_insertion import close, setting
from tests.shown import shown

WIDE = t(40, 2 * K)
More = dict[str, torch.Tensor]


def adapted(x: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def function(s: Any, given: torch.Tensor) -> torch.Tensor:
        return (lambda v: v @ s.w + (v @ s.a) @ s.b)(x(given))

    return function


KEPT: dict[str, tuple[Callable[..., Any], More]] = {
    "columns of an input": (adapted(lambda x: x[:, :K]), {}),
    "every other column": (adapted(lambda x: x[:, ::2]), {}),
    "a half of an input": (adapted(lambda x: x.chunk(2, 1)[1]), {}),
    "a copy of an intermediate's columns": (adapted(lambda x: x.relu()[:, :K].contiguous()), {}),
    "rows of an intermediate": (adapted(lambda x: x[:, :K].relu()[8:]), {}),
    "an intermediate, transposed": (adapted(lambda x: x[:, :40].relu().t() @ x[:, :K]), {}),
    "a slice of W": (lambda s, x: adapted(lambda x: x[:, :K])(s, x) + x[:, :K] @ s.wide[:, :N], {"wide": t(K, N + 8)}),
}
CLOSED: dict[str, tuple[Callable[..., Any], More]] = {
    "columns": (adapted(lambda x: x.relu()[:, :K]), {}),
    "a half": (adapted(lambda x: x.relu().chunk(2, 1)[1]), {}),
    "every other row": (adapted(lambda x: x[:, :K].relu()[::2]), {}),
    "expanded columns": (adapted(lambda x: x.relu()[:, :1].expand(40, K)), {}),
    "columns behind a padding": (adapted(lambda x: F.pad(x, (0, 8))[:, :K]), {}),
    "W": (lambda s, x: x[:, :K] @ (s.wide * 2)[:, :N] + (x[:, :K] @ s.a) @ s.b, {"wide": t(K, N + 8)}),
    "a bias": (
        lambda s, x: torch.addmm((s.long * 2)[::2], x[:, :K], s.w) + (x[:, :K] @ s.a) @ s.b,
        {"long": t(2 * N)},
    ),
}


@pytest.mark.parametrize("name", shown(CLOSED, 1))
def test_gaps_that_inductor_may_close_are_refused(name: str) -> None:
    function, more = CLOSED[name]
    found = through_all(lora(function, **more), WIDE)
    assert not any(group.branches for group in found.groups)
    (reason,) = {rejection.reason for rejection in found.rejections if rejection.rule == "layout"}
    assert reason.startswith("Inductor may store this intermediate with other strides than (")


@pytest.mark.parametrize("form", shown(["visible", "call"], 1))
@pytest.mark.parametrize("name", shown(KEPT, 1))
def test_what_stays_as_it_is_stored_is_fused(name: str, form: str) -> None:
    function, more = KEPT[name]
    module = DOORS["export"](lora(function, **more), (WIDE,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    (group,) = (group for group in rewrite(module.graph, setting("split", "fallback"), form).groups if group.branches)
    assert group.schedule.kind == "split"
    module.recompile()
    close(module(*inputs), wanted)


def test_dense_is_without_gaps_in_any_order() -> None:
    x = torch.ones(4, 6, 8)
    assert all(map(is_dense, (x, x.permute(2, 0, 1), x[1:], x[:1, :, :].permute(1, 0, 2), x[:, :1, :1][:1])))
    assert not any(map(is_dense, (x[:, :3], x[..., ::2], x[:1].expand(4, 6, 8), x.as_strided((4, 8), (4, 1)))))
