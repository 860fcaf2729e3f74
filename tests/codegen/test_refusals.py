"""What has no emitted form is refused with its reason."""

from dataclasses import replace

import pytest

from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.codegen.cases import DOWN, TILE, Lora, Main, bundled, group, inline, split

PLAIN = group(33, 200, Main(136))
SAVED = group(33, 200, Main(136, (Lora(8, saved=True),)))
BARE = group(33, 200, Main(136, branches=()), Main(64, branches=()))
TWO = group(33, 200, Main(136), Main(64))


def with_lhs(**changes) -> Group:
    return replace(PLAIN, lhs=replace(PLAIN.lhs, **changes))


def with_pool(schedule: Schedule, index: int, **changes) -> Schedule:
    pools = list(schedule.pools)
    pools[index] = replace(pools[index], **changes)
    return replace(schedule, pools=tuple(pools))


REFUSED: dict[str, tuple[Group, Schedule, str, str]] = {
    "library": (PLAIN, Schedule("library"), "fp32", "'library' has no emitted form; emitted kinds: inline, split"),
    "tier": (PLAIN, inline(PLAIN, TILE), "eager", "tier 'eager' has no emitted form"),
    "no pools": (PLAIN, Schedule("inline"), "fp32", "lists no main member"),
    "no branch": (BARE, inline(BARE, TILE), "fp32", "no main member of the schedule has a low-rank branch"),
    "fp8": (with_lhs(dtype="fp8e4m3"), inline(PLAIN, replace(TILE, block_k=32)), "fp32", "x is fp8e4m3"),
    "empty": (with_lhs(shape=(0, 200)), inline(PLAIN, TILE), "fp32", "x has a dimension of size 0"),
    "rank": (group(33, 2048, Main(4096, (Lora(512),))), inline(PLAIN, TILE), "fp32", "rank 512 of mm_a00 does not fit"),
    "scale": (group(33, 200, Main(136, (Lora(8, scale=float("nan")),))), inline(PLAIN, TILE), "fp32", "not finite"),
    "order": (
        group(33, 200, Main(136, (Lora(8, tensor_scales=1, up_bias=1.0),))),
        inline(PLAIN, TILE),
        "fp32",
        "a tensor scale and a bias",
    ),
    "saved slices": (SAVED, split(SAVED, TILE, DOWN, k_split=2), "fp32", "mm_a00 is saved"),
    "two meanings": (
        group(33, 200, Main(136, (Lora(8, saved=True, down_bias=0.5),))),
        split(PLAIN, TILE, DOWN),
        "fp32",
        "another scale than the product",
    ),
    "no down": (PLAIN, replace(inline(PLAIN, TILE), kind="split"), "fp32", "no down pool before the main pool of"),
    "down of inline": (PLAIN, replace(split(PLAIN, TILE, DOWN), kind="inline"), "fp32", "a down pool has no emitted"),
    "tile": (PLAIN, inline(PLAIN, replace(TILE, block_n=48)), "fp32", "tile size 48"),
    "long steps": (
        group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32"),
        split(PLAIN, TILE, DOWN),
        "fp32",
        "K steps of at most 32",
    ),
    "workers": (PLAIN, with_pool(inline(PLAIN, TILE), 0, workers=132), "fp32", "a TMA pool is persistent"),
    "down of a launch": (PLAIN, with_pool(split(PLAIN, TILE, DOWN), 1, launch=0), "fp32", "a launch of its own"),
    "launches": (PLAIN, with_pool(split(PLAIN, TILE, DOWN), 1, launch=2), "fp32", "in order of their launches"),
    "unequal warps": (
        TWO,
        with_pool(bundled(inline(TWO, TILE)), 1, tile=replace(TILE, num_warps=8)),
        "fp32",
        "the same warps, stages and workers",
    ),
    "batch": (
        replace(PLAIN, members=tuple(replace(member, batch=2) for member in PLAIN.members)),
        inline(PLAIN, TILE),
        "fp32",
        "batched members",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(case: str) -> None:
    value, schedule, tier, reason = REFUSED[case]
    with pytest.raises(EmissionError, match=reason):
        emit(value, schedule, name="k", tier=tier, why="a test")
