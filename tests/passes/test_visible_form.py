"""Kernels as Inductor sees them, each a functional call that copies what it writes: the graph is run as it is, under
Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch import nn

from fusioncc.codegen import EmittedModule
from fusioncc.codegen.emission import KINDS
from fusioncc.errors import FusionError
from fusioncc.passes import emit_groups
from fusioncc.pipeline import rewrite
from tests.passes.doors import DOORS, inputs_of
from tests.passes.test_insertion import close, setting
from tests.shown import shown

K, R = 64, 4
WIDTHS = (96, 32, 32)
VISIBLE = [kind for kind in KINDS if kind not in ("streams", "k_concat")]


class Bundle(nn.Module):
    """Products that share X: three with an adapter, whose down products all come out where ``saves``, and one
    without."""

    def __init__(self, saves: bool) -> None:
        super().__init__()
        self.saves = saves
        generator = torch.Generator().manual_seed(0)
        for index, n in enumerate(WIDTHS):
            for name, shape in (("w", (n, K)), ("a", (R, K)), ("b", (n, R))):
                self.register_parameter(f"{name}{index}", nn.Parameter(torch.randn(*shape, generator=generator) / 8))
        self.bare = nn.Parameter(torch.randn(48, K, generator=generator) / 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = [x @ self.bare.T]
        for index in range(len(WIDTHS)):
            w, a, b = (getattr(self, f"{name}{index}") for name in "wab")
            low = x @ a.T
            results += [x @ w.T + 2 * (low @ b.T), *([low] if self.saves else [])]
        return tuple(results)


def visible(
    kind: str, rows: int, saves: bool = False
) -> tuple[Any, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The rewritten graph, its inputs, and what it gave before."""
    module = DOORS["export"](Bundle(saves), (torch.ones(rows, K),))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(kind), "visible")
    assert [(group.schedule.kind, group.insertion) for group in plan.groups] == [(kind, "visible")]
    module.recompile()
    return module, inputs, wanted


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [40, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", shown(VISIBLE, 1))
def test_every_kind_is_right_as_functional_calls(kind: str, rows: int) -> None:
    module, inputs, wanted = visible(kind, rows)
    close(module(*inputs), wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", VISIBLE)
def test_down_products_that_come_out_are_right_too(kind: str) -> None:
    module, inputs, wanted = visible(kind, 40, saves=True)
    close(module(*inputs), wanted)


def test_two_names_for_what_a_kernel_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = emit_groups.emit

    def emit(*args: Any, **kwargs: Any) -> EmittedModule:
        emitted = real(*args, **kwargs)
        written = [arg for launch in emitted.launches for arg in launch.args if arg.kind == "buffer"]
        object.__setattr__(written[0], "value", written[-1].value)
        return emitted

    monkeypatch.setattr(emit_groups, "emit", emit)
    with pytest.raises(FusionError, match=r"has two names for one buffer"):
        visible("inline", 40)
