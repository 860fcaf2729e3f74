"""Norms in front of a group without an emitted form are refused with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group, Operand
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.codegen.cases import DOWN, TILE, Lora, Main, group, inline, side_by_side, split, streams
from tests.codegen.norm_cases import normed

LORA = normed(group(33, 200, Main(136), Main(64)))
PLAIN = normed(group(33, 200, Main(136, ()), Main(64, ())))
BARE = normed(group(64, 256, Main(128, ()), Main(64, ())), weight=None)
SWAPPED = TileConfig(16, 64, 64, 4, 3, swap_operands=True)


def with_norm(value: Group, **changes: Any) -> Group:
    assert value.norm is not None
    return replace(value, norm=replace(value.norm, **changes))


def concat(value: Group, tile: TileConfig = TILE, **changes: Any) -> Schedule:
    return Schedule("concat", (Pool("main", value.mains, tile, 0, **changes),))


HALF = normed(group(33, 200, Main(136), Main(64), dtype="fp16"))
REFUSED: dict[str, tuple[Group, Schedule, str]] = {
    "split": (LORA, split(LORA, TILE, DOWN), "not schedule 'split'"),
    "streams": (LORA, streams(LORA, DOWN), "not schedule 'streams'"),
    "down tiles beside": (LORA, side_by_side(LORA, "concat", TILE, DOWN), "not schedule 'concat'"),
    "a member without a pool": (LORA, Schedule("inline", inline(LORA, TILE).pools[:1]), "all main members have a pool"),
    "fp16": (HALF, inline(HALF, TILE), "a norm from fp16 to fp16"),
    "a cast": (
        with_norm(LORA, normed=replace(LORA.lhs, dtype="fp32")),
        inline(LORA, TILE),
        "a norm from bf16 to fp32 has no emitted form",
    ),
    "other rows": (with_norm(LORA, normed=replace(LORA.lhs, shape=(33, 100))), inline(LORA, TILE), "rows of 200"),
    "another weight": (with_norm(LORA, weight=Operand("g", (100,), (1,), "bf16")), inline(LORA, TILE), "as many"),
    "a weight of bytes": (with_norm(LORA, weight=Operand("g", (200,), (1,), "int8")), inline(LORA, TILE), "is int8"),
    "no number": (with_norm(LORA, epsilon=float("nan")), inline(LORA, TILE), "is a number"),
    "below zero": (with_norm(LORA, epsilon=-1.0), inline(LORA, TILE), "none below 0"),
    "TMA": (BARE, concat(BARE, replace(TILE, tma=True), workers=3), "TMA tiles have no emitted form behind a norm"),
    "squares beside the MMA": (BARE, concat(BARE, TileConfig(64, 64, 64, 4, 3)), "would overwrite it"),
    "the same, swapped": (BARE, concat(BARE, SWAPPED), "would overwrite it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused(name: str) -> None:
    value, schedule, reason = REFUSED[name]
    with pytest.raises(EmissionError, match=reason):
        emit(value, schedule, name="k", tier="fp32", why="a test")


def test_slices_of_k_have_no_whole_rows() -> None:
    pools = (Pool("main", PLAIN.mains, TILE, 0, k_split=2),)
    with pytest.raises(EmissionError, match="K in slices no program has the squares"):
        emit(PLAIN, Schedule("concat", pools), name="k", tier="fp32", why="a test")


@pytest.mark.parametrize("tile", [TileConfig(32, 64, 64, 4, 3), replace(SWAPPED, block_n=32), TILE])
def test_smaller_tiles_have_a_form_without_a_weight(tile: TileConfig) -> None:
    source = emit(BARE, concat(BARE, tile), name="k", tier="fp32", why="a test").source
    assert "rstd = tl.rsqrt(" in source and "g_ptr" not in source


@pytest.mark.parametrize("name", ["with", "without"])
def test_each_is_accepted_where_nothing_is_wrong(name: str) -> None:
    value, schedule = {"with": (LORA, inline(LORA, TILE)), "without": (PLAIN, concat(PLAIN))}[name]
    module = emit(value, schedule, name="k", tier="relaxed", why="a test")
    assert [operand.node for operand in module.operands][:2] == ["x", "g"]
    assert "xn" not in {operand.node for operand in module.operands}


def test_a_saved_down_product_is_that_of_the_normed_rows() -> None:
    value = normed(group(33, 200, Main(136, (Lora(8, saved=True),))))
    source = emit(value, inline(value, TILE), name="k", tier="fp32", why="a test").source
    assert source.index("y *= rstd") < source.index("tl.store(saved_tile")


def test_a_weight_that_lies_far_apart_is_addressed_with_64_bits() -> None:
    for stride, wide in ((1, False), (2**24, True)):
        value = with_norm(LORA, weight=Operand("g", (200,), (stride,), "bf16"))
        source = emit(value, inline(value, TILE), name="k", tier="fp32", why="a test").source
        assert ("(k + ks).to(tl.int64) * G_STRIDE" in source) == wide
