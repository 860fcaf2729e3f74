"""Tiles of one row: no tensor cores, every product in fp32, as close as eager on every kind of group of one row."""

import re
from dataclasses import replace

import pytest

from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.codegen import reference
from tests.codegen.cases import Lora, Main, bundled, early, group, inline, side_by_side, split
from tests.codegen.test_numerics import run

ROW = TileConfig(1, 16, 64, 4, 1, swap_operands=True)
DOWN_ROW = TileConfig(1, 16, 64, 4, 1, swap_operands=True)
GROUPS: dict[str, Group] = {
    "lora": group(1, 128, Main(128)),
    "unrolled_ragged": group(1, 150, Main(130, (Lora(3),)), Main(70, (Lora(64),), bias=True)),
    "ragged": group(1, 200, Main(130, (Lora(3),)), Main(70, (Lora(64),), bias=True)),
    "long_scales": group(1, 200, Main(130, (Lora(12, tensor_scales=2),)), Main(64, (Lora(8), Lora(1)))),
    "biases": group(1, 200, Main(136, (Lora(8, down_bias=2.0, up_bias=0.5),), bias=True)),
    "kn": group(1, 200, Main(136, layout="kn"), Main(64, ())),
    "saved": group(1, 200, Main(136, (Lora(8, saved=True),))),
    "fp16": group(1, 200, Main(136, (Lora(8, dtype="fp16"),), dtype="fp16"), dtype="fp16"),
    "fp32_adapters": group(1, 200, Main(136, (Lora(8, dtype="fp32"),)), Main(64)),
    "fp32": group(1, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32"),
    "tf32": group(1, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32", precision="tf32"),
}


def schedules(value: Group) -> dict[str, Schedule]:
    k_split = 1 if any(branch.saved for branch in value.branches) else 3
    one_launch = bundled(split(value, ROW, DOWN_ROW, k_split=k_split))
    return {
        "split": one_launch,
        "split_early": early(one_launch),
        "split_one_by_one_early": early(split(value, ROW, DOWN_ROW, k_split=k_split)),
        "inline": inline(value, ROW),
        "concat": side_by_side(value, "concat", ROW, DOWN_ROW, k_split, main_split=2),
        "split_main_only": bundled(split(value, ROW, TileConfig(16, 16, 32, 4, 3), k_split=k_split)),
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", schedules(GROUPS["lora"]))
@pytest.mark.parametrize("name", GROUPS)
def test_as_close_as_eager(load, name: str, kind: str) -> None:
    """A row has few elements: errors are added up over three draws. In fp32 both orders of summation are those of the
    CPU at hand (numpy's for a dot, ATen's), and equally good ones differ by a fifth."""
    value = GROUPS[name]
    ours = theirs = 0.0
    for seed in range(3):
        outputs, eager, exact = run(load, value, schedules(value)[kind], seed=seed)
        assert len(outputs) == len(exact)
        ours += sum(reference.rms(output, truth) for output, truth in zip(outputs, exact, strict=True))
        theirs += sum(reference.rms(plain, truth) for plain, truth in zip(eager, exact, strict=True))
    assert ours <= (1.2 if name == "fp32" else 1.1) * theirs


def test_plain_members(load) -> None:
    value = group(1, 200, Main(192, (), bias=True), Main(70, ()))
    schedule = Schedule("concat", (Pool("main", value.mains, ROW, 0),))
    outputs, eager, exact = run(load, value, schedule)
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


def test_a_whole_row_of_k_in_one_step() -> None:
    source = emit(
        GROUPS["lora"], split(GROUPS["lora"], replace(ROW, block_k=128), DOWN_ROW), name="k", tier="fp32", why=""
    )
    assert "tl.dot" not in source.source.split("def launch")[0]
    assert "acc = tl.sum(acc, 1, keep_dims=True)" in source.source


@pytest.mark.parametrize(("k", "unrolled"), [(128, True), (150, True), (192, True), (200, False), (320, False)])
def test_a_loop_of_few_steps_is_unrolled(k: int, unrolled: bool) -> None:
    value = group(1, k, Main(128))
    source = emit(value, split(value, ROW, DOWN_ROW, k_split=1), name="k", tier="fp32", why="").source
    loops = re.findall(r"for k in (.*range)\(0, K, BLOCK_K\):", source)
    assert loops == ["tl.static_range" if unrolled else "range"] * 2
    sliced = side_by_side(value, "concat", ROW, DOWN_ROW, 2, main_split=2)
    assert "for k in tl.static_range" not in emit(value, sliced, name="k", tier="fp32", why="").source


@pytest.mark.parametrize(
    ("value", "tile", "reason"),
    [
        (group(2, 128, Main(128)), ROW, "groups with one row"),
        (group(1, 128, Main(128), symbol="s0"), ROW, "groups with one row"),
        (GROUPS["lora"], replace(ROW, swap_operands=False), "swapped"),
        (GROUPS["lora"], replace(ROW, block_n=3), "powers of two"),
        (GROUPS["lora"], replace(ROW, block_n=64, block_k=1024), "at most 32768 elements"),
        (group(1, 4096, Main(128)), replace(ROW, block_k=4), "at most 512 products in a chain"),
    ],
)
def test_refused(value: Group, tile: TileConfig, reason: str) -> None:
    with pytest.raises(EmissionError, match=reason):
        emit(value, split(value, tile, replace(DOWN_ROW, block_m=16)), name="k", tier="fp32", why="")
