"""Offsets that pass 32 bits are computed in 64, and no others. Operands so large fit into no test: the text is read."""

from dataclasses import replace

import pytest

from fusioncc.codegen import emit
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.codegen.cases import DOWN, TILE, Main, group, inline, split
from tests.codegen.epilogue_cases import SWIGLU, ended, together


def source(value: Group, schedule: Schedule) -> str:
    return emit(value, schedule, name="k", tier="fp32", why="a test").source


@pytest.mark.parametrize(
    ("rows", "first_k"), [((1 << 19) - 1, "k_slice * K_SLICE"), (1 << 19, "k_slice.to(tl.int64) * K_SLICE")]
)
def test_first_k_of_a_slice_where_x_lies_column_by_column(rows: int, first_k: str) -> None:
    value = group(rows, 4096, Main(4096), x_layout="km")
    assert f"    first_k = {first_k}\n" in source(value, split(value, TILE, DOWN, k_split=4))


@pytest.mark.parametrize(("rows", "cast"), [((1 << 25) - 1, ""), (1 << 25, ".to(tl.int64)")])
def test_one_step_along_k_of_x_column_by_column(rows: int, cast: str) -> None:
    value = group(rows, 4096, Main(4096), x_layout="km")
    assert f"    ks = tl.arange(0, BLOCK_K){cast}\n" in source(value, inline(value, TILE))


@pytest.mark.parametrize(("rows", "row_block"), [((1 << 19) - 1, "row_block"), (1 << 19, "row_block.to(tl.int64)")])
def test_rows_of_x(rows: int, row_block: str) -> None:
    value = group(rows, 4096, Main(4096))
    assert f"    rows = {row_block} * BLOCK_M + " in source(value, inline(value, TILE))


def test_rows_of_a_symbol_may_be_any_number() -> None:
    value = group(64, 4096, Main(4096), symbol="s0")
    assert "    rows = row_block.to(tl.int64) * BLOCK_M + " in source(value, inline(value, TILE))


@pytest.mark.parametrize(("n", "col_block"), [((1 << 19) - 1, "col_block"), (1 << 19, "col_block.to(tl.int64)")])
def test_columns_of_w(n: int, col_block: str) -> None:
    value = group(64, 4096, Main(n))
    assert f"    cols = {col_block} * BLOCK_N + " in source(value, inline(value, TILE))


@pytest.mark.parametrize("wide", [0, 1])
def test_columns_of_any_weight_of_a_program(wide: int) -> None:
    value = ended(group(33, 4096, Main(14336, ()), Main(14336, ())), (0, 1), *SWIGLU)
    members = list(value.members)
    weight = members[value.mains[wide]].weight
    members[value.mains[wide]] = replace(members[value.mains[wide]], weight=replace(weight, strides=(1, 200000)))
    schedule = replace(together(inline(value, TILE)), kind="concat")
    assert "    cols = col_block.to(tl.int64) * BLOCK_N + " in source(replace(value, members=tuple(members)), schedule)
    assert "    cols = col_block * BLOCK_N + " in source(value, schedule)
