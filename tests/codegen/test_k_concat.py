"""``[X | s X A]`` as the emitted kernel writes it: X bit for bit, low-rank columns against fp64, zeros between them."""

import math
from dataclasses import replace

import pytest
import torch

from fusioncc.codegen import emit
from fusioncc.group import Group
from fusioncc.packing import concat_begins, concat_columns
from fusioncc.runtime.interpreter import launcher
from fusioncc.runtime.load import load
from fusioncc.schedule import TileConfig
from tests.codegen import reference
from tests.codegen.cases import DOWN, Lora, Main, group, k_concat
from tests.shown import shown

SWAPPED = replace(DOWN, block_m=16, swap_operands=True)
GROUPS: dict[str, Group] = {
    **{f"rank_{rank}": group(33, 200, Main(136, (Lora(rank),))) for rank in (1, 3, 8, 12, 64)},
    **{f"rows_{m}": group(m, 128, Main(128)) for m in (1, 16, 33)},
    "symbol": group(130, 64, Main(72), symbol="s0"),
    "gqa": group(33, 200, Main(192), Main(64, ()), Main(64, (Lora(12), Lora(4, scale=0.5)))),
    "down_bias": group(33, 200, Main(136, (Lora(12, down_bias=2.0),), bias=True)),
    "tensor_scales": group(16, 200, Main(64, (Lora(8, tensor_scales=2),)), Main(64, (Lora(12, tensor_scales=1),))),
    "x_column_by_column": group(33, 200, Main(136), x_layout="km"),
}


@pytest.mark.parametrize("k_split", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
@pytest.mark.parametrize("tile", [DOWN, SWAPPED], ids=["plain", "swapped"])
@pytest.mark.parametrize("name", shown(GROUPS, 2))
def test_columns(name: str, tile: TileConfig, k_split: int) -> None:
    value = GROUPS[name]
    if name == "rank_64":  # on warp groups, swapped: refused
        tile = replace(tile, swap_operands=False)
    module = emit(value, k_concat(value, tile, k_split), name="k", tier="fp32", why="a test")
    tensors = reference.draw(module, value)
    poisoned: list[torch.Tensor] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        poisoned.append(torch.full((math.prod(shape) + 128,), math.nan, dtype=dtype, device=device))
        return poisoned[-1][64:-64].view(shape)

    loaded = load(module.name, module.source)
    (xy,) = launcher(loaded)(*(tensors[each] for each in module.operands), empty)
    assert xy.shape == (value.m, concat_columns(value))
    assert all(each[:64].isnan().all() and each[-64:].isnan().all() for each in poisoned)
    x = tensors[value.lhs]
    assert torch.equal(xy[:, : value.k], x)
    free = torch.ones(xy.shape[1], dtype=torch.bool)
    free[: value.k] = False
    for branch in value.branches:
        down = value.members[branch.down]
        begin = concat_begins(value)[branch.up]
        columns = slice(begin, begin + down.n)
        free[columns] = False
        scale = math.prod((tensors[each].double() for each in branch.scale_tensors), start=branch.scale)
        exact = scale * (x.double() @ tensors[down.weight].double())
        if down.bias is not None:
            exact = exact + down.bias_scale * tensors[down.bias].double()
        assert reference.rms(xy[:, columns], exact) <= 1.05 * reference.rms(exact.bfloat16(), exact)
    assert not xy[:, free].any(), "what a rank leaves free is zero"
    (again,) = launcher(loaded)(*(tensors[each] for each in module.operands), empty)
    assert torch.equal(again, xy)
