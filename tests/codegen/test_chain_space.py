"""The dimensions over which a chain's kernel walks, and offsets of 64 bits where a tensor is that large."""

import re

import pytest

from fusioncc.autotune.chain_tile import chain_tile
from fusioncc.chain import Argument, Chain, Op, Result
from fusioncc.codegen.chain import emit_chain
from fusioncc.codegen.chain_space import INT32_ELEMENTS, Space, space_of
from fusioncc.device import get_device
from fusioncc.group import Operand

Shape = tuple[int, ...]


def packed(shape: Shape, order: Shape = ()) -> Shape:
    """Strides of a tensor whose dimensions lie in memory in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)


def chain(*tensors: tuple[Shape, Shape], out: Shape = (), rows: bool = False, dtype: str = "bf16") -> Chain:
    """The sum of tensors of these shapes and strides; with ``rows`` the sums of its rows are added to it. ``out``:
    strides of the result."""
    dims = max(len(shape) for shape, _ in tensors)
    shape = tuple(map(max, zip(*((1,) * (dims - len(one)) + one for one, _ in tensors), strict=True)))
    operands = tuple(Operand(f"x{at}", one, strides, dtype, True) for at, (one, strides) in enumerate(tensors))
    ops = [Op("relu", "aten.relu.default", (Argument(0),), dtype, shape)]
    for at in range(1, len(tensors)):
        args = (Argument(len(tensors) + len(ops) - 1), Argument(at), Argument(None, "1"))
        ops.append(Op(f"add{at}", "aten.add.Tensor", args, dtype, shape))
    last = len(tensors) + len(ops) - 1
    if rows:
        args = (Argument(last), Argument(None, "[-1]"), Argument(None, "True"), Argument(None, "None"))
        ops.append(Op("sum", "aten.sum.dim_IntList", args, dtype, (*shape[:-1], 1)))
        args = (Argument(last), Argument(last + 1), Argument(None, "1"))
        ops.append(Op("last", "aten.add.Tensor", args, dtype, shape))
    made = len(tensors) + len(ops) - 1
    return Chain("chain0", shape, operands, tuple(ops), (Result(made, ops[-1].node, out or packed(shape)),))


def plain(*shape: int) -> tuple[Shape, Shape]:
    return shape, packed(shape)


def test_what_no_tensor_tells_apart_is_one_dimension() -> None:
    assert space_of(chain(plain(4, 6, 8), plain(4, 6, 8))) == Space((192,), ((1,), (1,), (1,)), 0, 48)


def test_a_vector_of_the_last_dimension_leaves_two() -> None:
    assert space_of(chain(plain(4, 6, 8), plain(8))) == Space((24, 8), ((8, 1), (0, 1), (8, 1)), 0, 6)


def test_a_column_leaves_two_and_a_vector_of_the_middle_three() -> None:
    assert space_of(chain(plain(4, 6, 8), plain(4, 6, 1))).strides == ((8, 1), (1, 0), (8, 1))
    assert space_of(chain(plain(4, 6, 8), plain(6, 1))).sizes == (4, 6, 8)


def test_sizes_of_one_vanish() -> None:
    space = space_of(chain(((4, 1, 8), (8, 77, 1)), plain(1, 1, 8)))
    assert (space.sizes, space.strides) == ((4, 8), ((8, 1), (0, 1), (8, 1)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_one_dimension(shape: Shape) -> None:
    space = space_of(chain(plain(*shape)))
    assert (space.sizes, space.strides, space.wide) == ((1,), ((0,), (0,)), False)


def test_the_order_is_that_of_the_first_result() -> None:
    """Channels last, and a transposed result."""
    last = packed((2, 3, 4, 5), (0, 2, 3, 1))
    assert space_of(chain(((2, 3, 4, 5), last), out=last)).sizes == (120,)
    space = space_of(chain(plain(6, 8), out=(1, 6)))
    assert (space.sizes, space.strides, space.outer) == ((8, 6), ((1, 8), (6, 1)), 1)


def test_rows_that_are_reduced_stay_the_last_dimension() -> None:
    space = space_of(chain(plain(4, 6, 8), rows=True))
    assert (space.sizes, space.rows) == ((24, 8), 24)
    transposed = space_of(chain(((6, 8), (1, 6)), out=(1, 6), rows=True))
    assert (transposed.sizes, transposed.strides) == ((6, 8), ((1, 6), (1, 6)))
    assert space_of(chain(plain(8), rows=True)).sizes == (8,)


def test_a_tensor_with_gaps_and_one_that_repeats() -> None:
    assert space_of(chain(((4, 8), (10, 1)), plain(4, 8))).sizes == (4, 8)
    assert space_of(chain(((4, 8), (0, 0)), plain(4, 8))).strides == ((0,), (1,), (1,))


# Large tensors.

EDGE = INT32_ELEMENTS
ROW = 4096


def text(value: Chain) -> str:
    tile = chain_tile(value, get_device("h200"))
    source = emit_chain(value, tile, name="c0", tier="fp32", why="a test").source
    return source[source.index("def chain") : source.index("def launch")]


def is_wide(value: Chain) -> bool:
    """Whether every index of the kernel has 64 bits; otherwise none has."""
    indices = re.findall(r"^    (?:rows|cols|tile) = .*$", text(value), re.MULTILINE)
    wide = ["int64" in line or "tile //" in line or "tile %" in line for line in indices]
    direct = [line for line in indices if "tile //" not in line and "tile %" not in line]
    assert len({"int64" in line for line in direct}) == 1
    assert indices
    return all(wide) and any("int64" in line for line in direct)


@pytest.mark.parametrize("extra", [0, 1])
def test_elements_near_2_to_the_31_need_64_bits(extra: int) -> None:
    assert is_wide(chain(plain(EDGE - 1 + extra))) == bool(extra)
    rows = EDGE // ROW - 1 + extra
    assert is_wide(chain(plain(rows, ROW), plain(ROW))) == bool(extra)
    assert is_wide(chain(plain(rows, ROW), rows=True)) == bool(extra)


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("rows", [False, True])
def test_so_do_offsets_where_a_small_tensor_has_large_gaps(rows: bool, extra: int) -> None:
    """Also along a row that one program holds whole."""
    gap = EDGE // 64 - 2 + 2 * extra
    assert is_wide(chain(((64 + 1, 65), (gap, 1)), rows=rows)) == bool(extra)
    assert is_wide(chain(((65, 64 + 1), (1, gap)), rows=rows)) == bool(extra)


def test_offsets_of_a_large_tensor_do_not_wrap() -> None:
    """The lines of the kernel that make offsets, run as numbers of the widths that they name."""
    import numpy as np

    gap = EDGE // 8
    source = text(chain(((16, 16), (1, gap)), rows=True))
    cols = np.arange(16, dtype=np.int64 if "tl.arange(0, BLOCK_N).to(tl.int64)" in source else np.int32)
    assert re.search(rf"cols\[None, :\] \* {gap}\b", source)
    assert (cols * cols.dtype.type(gap)).max() == 15 * gap
