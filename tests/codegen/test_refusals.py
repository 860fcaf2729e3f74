"""What has no emitted form is refused with its reason."""

from dataclasses import replace

import pytest

from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule
from tests.codegen.cases import DOWN, TILE, Lora, Main, bundled, group, inline, k_concat, side_by_side, split, two_pool

PLAIN = group(33, 200, Main(136))
SAVED = group(33, 200, Main(136, (Lora(8, saved=True),)))
BARE = group(33, 200, Main(136, branches=()), Main(64, branches=()))
UNEQUAL = group(16, 200, Main(136), Main(64, (Lora(64),)))
TWO = group(33, 200, Main(136), Main(64))


def with_lhs(**changes) -> Group:
    return replace(PLAIN, lhs=replace(PLAIN.lhs, **changes))


def with_pool(schedule: Schedule, index: int, **changes) -> Schedule:
    pools = list(schedule.pools)
    pools[index] = replace(pools[index], **changes)
    return replace(schedule, pools=tuple(pools))


REFUSED: dict[str, tuple[Group, Schedule, str, str]] = {
    "library": (PLAIN, Schedule("library"), "fp32", "'library' has no emitted form; emitted kinds: concat, horizontal"),
    "k_concat twice": (
        PLAIN,
        Schedule("k_concat", (*k_concat(PLAIN, DOWN).pools, Pool("down", (1,), DOWN, 2))),
        "fp32",
        "a member is in one pool only",
    ),
    "k_concat half": (
        TWO,
        with_pool(k_concat(TWO, DOWN), 0, members=(1,)),
        "fp32",
        "schedule 'k_concat' has one pool of all down members, and an up pool behind it",
    ),
    "k_concat on warp groups": (
        PLAIN,
        k_concat(PLAIN, replace(DOWN, block_m=64)),
        "fp32",
        "its tiles have no warp-group MMA",
    ),
    "k_concat alone": (
        PLAIN,
        replace(k_concat(PLAIN, DOWN), pools=k_concat(PLAIN, DOWN).pools[:1]),
        "fp32",
        "behind it",
    ),
    "k_concat sums": (
        TWO,
        with_pool(k_concat(TWO, DOWN), 1, members=(0,)),
        "fp32",
        "the up pool of 'k_concat' lists the main members with a branch, and no others",
    ),
    "k_concat main": (PLAIN, replace(inline(PLAIN, TILE), kind="k_concat"), "fp32", "no main pool has an emitted form"),
    "k_concat saved": (SAVED, k_concat(SAVED, DOWN, 1), "fp32", "a down product is read elsewhere, unscaled"),
    "tier": (PLAIN, inline(PLAIN, TILE), "eager", "tier 'eager' has no emitted form"),
    "no pools": (PLAIN, Schedule("inline"), "fp32", "lists no main member"),
    "no branch": (BARE, inline(BARE, TILE), "fp32", "no main member has a low-rank branch"),
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
    "mixed down": (
        UNEQUAL,
        split(UNEQUAL, TILE, replace(DOWN, block_m=16, block_n=64, swap_operands=True)),
        "fp32",
        "a swapped down tile of such unequal ranks would overwrite X while a warp-group MMA reads it",
    ),
    "inline overwrites X": (
        UNEQUAL,
        inline(UNEQUAL, replace(TILE, block_m=16, block_n=32, swap_operands=True)),
        "fp32",
        "a swapped inline tile this wide would overwrite X",
    ),
    "saved slices": (SAVED, split(SAVED, TILE, DOWN, k_split=2), "fp32", "mm_a00 is saved"),
    "two meanings": (
        group(33, 200, Main(136, (Lora(8, saved=True, down_bias=0.5),))),
        split(PLAIN, TILE, DOWN),
        "fp32",
        "another scale than the product",
    ),
    "no down": (PLAIN, replace(inline(PLAIN, TILE), kind="split"), "fp32", "no down pool before the main pool of"),
    "down of inline": (PLAIN, replace(split(PLAIN, TILE, DOWN), kind="inline"), "fp32", "no down pool has an emitted"),
    "tile": (PLAIN, inline(PLAIN, replace(TILE, block_n=48)), "fp32", "tile size 48"),
    "split mains of inline": (PLAIN, with_pool(inline(PLAIN, TILE), 0, k_split=2), "fp32", "has no K split of main"),
    "split mains of any number of rows": (
        group(33, 200, Main(136), symbol="s0"),
        side_by_side(PLAIN, "horizontal", TILE, DOWN, main_split=2),
        "fp32",
        "may pass 2",
    ),
    "slices left": (
        PLAIN,
        with_pool(side_by_side(BARE, "concat", TILE, DOWN), 0, k_split=2, members=(0,)),
        "fp32",
        "a branch or a K split",
    ),
    "subtiles": (PLAIN, inline(PLAIN, replace(TILE, epilogue_subtiles=2)), "fp32", "other tiles whole"),
    "long steps": (
        group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32"),
        split(PLAIN, TILE, DOWN),
        "fp32",
        "K steps of at most 32",
    ),
    "workers": (PLAIN, with_pool(inline(PLAIN, TILE), 0, workers=132), "fp32", "a TMA pool is persistent"),
    "two down pools in a launch": (
        TWO,
        Schedule("split", (Pool("down", (1,), DOWN, 0), Pool("down", (4,), DOWN, 0), Pool("main", (0, 3), TILE, 1))),
        "fp32",
        "a launch of its own",
    ),
    "two roles in a launch": (
        PLAIN,
        Schedule("split", (*split(PLAIN, TILE, DOWN).pools[:1], Pool("main", (0,), TILE, 0))),
        "fp32",
        "no down pool before the main pool",
    ),
    "products and joins": (
        PLAIN,
        with_pool(side_by_side(PLAIN, "horizontal", TILE, DOWN), 2, launch=0, tile=TILE),
        "fp32",
        "main and down pools in one launch, up pools in the next",
    ),
    "no joins": (
        PLAIN,
        replace(side_by_side(PLAIN, "concat", TILE, DOWN), pools=side_by_side(PLAIN, "concat", TILE, DOWN).pools[:2]),
        "fp32",
        "an up pool lists the main members with a branch",
    ),
    "unequal tiles of concat": (
        PLAIN,
        replace(side_by_side(PLAIN, "horizontal", TILE, replace(DOWN, block_m=16)), kind="concat"),
        "fp32",
        "have one shape",
    ),
    "more down workers": (PLAIN, two_pool(PLAIN, TILE, DOWN, 2, 3, 1), "fp32", "down workers are some of all workers"),
    "no workers": (
        PLAIN,
        with_pool(two_pool(PLAIN, TILE, DOWN, 2, 1, 1), 1, workers=None),
        "fp32",
        "names its workers",
    ),
    "unequal rows": (
        PLAIN,
        with_pool(two_pool(PLAIN, TILE, DOWN, 2, 1, 1), 0, tile=replace(TILE, block_m=16)),
        "fp32",
        "blocks of the same rows",
    ),
    "late queue": (PLAIN, two_pool(PLAIN, TILE, DOWN, 2, 1, 1, chunk=2, late=1), "fp32", "are late in stripes"),
    "chunks": (PLAIN, two_pool(PLAIN, TILE, DOWN, 2, 1, 1, chunk=0), "fp32", "a chunk has 1 to"),
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
