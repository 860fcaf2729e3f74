"""Emitted kernels against fp64: they are at least as close as eager in the same dtypes, on every kind of group."""

import math
from dataclasses import replace

import pytest
import torch

from fusioncc.codegen import emit
from fusioncc.descriptors import refusal
from fusioncc.group import Group, Output
from fusioncc.schedule import COMPENSATED_STEP, MOST_BESIDE, Schedule, TileConfig, overwrites_x, padded_rank
from tests.codegen import reference
from tests.codegen.cases import (
    DESCRIBED,
    DOWN,
    SWAPPED,
    TILE,
    Lora,
    Main,
    bundled,
    group,
    inline,
    side_by_side,
    split,
    two_pool,
)

pytestmark = pytest.mark.exhaustive


def schedules(value: Group) -> dict[str, Schedule]:
    """Schedules of both kinds; tiles of few rows are swapped unless that overwrites X."""
    tile, swapped, down = TILE, SWAPPED, DOWN
    if "fp32" in (value.lhs.dtype, *(value.members[main].dtype for main in value.mains)):
        tile, swapped, down = (replace(each, block_k=COMPENSATED_STEP) for each in (tile, swapped, down))
    ranks = tuple(padded_rank(value.members[branch.down].n) for branch in value.branches)
    few = replace(down, block_m=16, swap_operands=True)
    few = replace(few, swap_operands=not overwrites_x(few, ranks))
    swapped_inline = replace(swapped, swap_operands=not overwrites_x(swapped, ranks, main=True))
    return {
        "inline": inline(value, tile, group_m=2),
        "inline_swapped": inline(value, swapped_inline),
        "split_1": split(value, tile, down),
        "split_3": split(value, tile, down, k_split=3, group_m=1),
        "split_swapped_4": split(value, swapped, few, k_split=4),
    }


PLAIN = group(70, 208, Main(192, (), bias=True), Main(64, ()), Main(72, ()))
BUNDLES = {
    "gqa": group(33, 200, Main(192), Main(64), Main(64)),
    "one_without_a_branch": group(33, 200, Main(192, bias=True), Main(64, branches=()), Main(72)),
    "unequal_ranks": group(16, 200, Main(192, (Lora(8),)), Main(64, (Lora(4),)), Main(64, (Lora(64), Lora(12)))),
    "saved": group(70, 200, Main(136, (Lora(8, saved=True),)), Main(70, (Lora(12, saved=True),), bias=True)),
    "many_row_blocks_of_a_symbol": group(130, 64, Main(70), Main(136), symbol="s0"),
    "one_row": group(1, 128, Main(128), Main(130)),
    "kn_and_fp32_adapters": group(33, 200, Main(136, (Lora(8, dtype="fp32"),), layout="kn"), Main(64)),
    "equal": group(33, 208, Main(128), Main(128)),
    "tensor_scales": group(16, 200, *(Main(64, (Lora(8, tensor_scales=count),)) for count in (2, 1, 1))),
}
WIDE = (
    Lora(100, dtype="fp32", down_bias=2.0, up_bias=0.5),
    Lora(64, dtype="fp32", scale=-0.5, tensor_scales=1),
    Lora(8, dtype="fp32"),
)
"""Ranks that are joined in steps, padded, with all that may be about a branch, beside one that is not."""
KINDS = ("inline", "inline_swapped", "split_1", "split_3", "split_swapped_4")
GROUPS: dict[str, Group] = {
    **{f"rank_{rank}": group(33, 200, Main(136, (Lora(rank),))) for rank in (1, 4, 8, 12, 64)},
    **{f"rows_{m}": group(m, 128, Main(128)) for m in (1, 3, 16, 33)},
    "rows_1_of_a_symbol": group(1, 128, Main(130), symbol="s0"),
    "many_row_blocks": group(130, 64, Main(70), symbol="s0"),
    "gqa": group(33, 200, Main(192), Main(64), Main(64)),
    "gqa_unequal_ranks": group(16, 200, Main(192, (Lora(8),)), Main(64, (Lora(4),)), Main(64, (Lora(64),))),
    "two_branches": group(33, 200, Main(136, (Lora(8), Lora(12, scale=0.5)))),
    "two_branches_unequal_tiles": group(33, 200, Main(136, (Lora(12), Lora(64, scale=-0.5)))),
    "k_within_one_tile": group(33, 24, Main(136)),
    "bias": group(33, 200, Main(136, bias=True)),
    "branch_biases": group(33, 200, Main(136, (Lora(8, down_bias=2.0, up_bias=0.5),), bias=True)),
    "tensor_scale": group(33, 200, Main(136, (Lora(8, tensor_scales=1, scale=1.0),))),
    "two_tensor_scales": group(33, 200, Main(136, (Lora(8, tensor_scales=2),))),
    "fp32_adapters": group(33, 200, Main(136, (Lora(8, dtype="fp32"),))),
    "fp32": group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32"),
    "tf32": group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32"), dtype="fp32", precision="tf32"),
    "fp32_wide_ranks": group(33, 200, Main(136, WIDE, bias=True, dtype="fp32"), dtype="fp32"),
    "fp32_weight": group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp32")),
    "fp16": group(33, 200, Main(136, (Lora(8, dtype="fp16"),), dtype="fp16"), dtype="fp16"),
    "fp16_fp32_adapters": group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype="fp16"), dtype="fp16"),
    "kn": group(33, 200, Main(136, layout="kn")),
    "expanded": group(33, 200, Main(136, layout="expanded")),
    "x_transposed": group(33, 200, Main(136), x_layout="km"),
}


def run(load, value: Group, schedule: Schedule, tier: str = "fp32", seed: int = 0):
    """Results of the kernels, of eager, and exactly; scratch and outputs start as NaN."""
    emitted = emit(value, schedule, name="module", tier=tier, why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value, seed)
    operands = [tensors[operand] for operand in emitted.operands]

    def nan(shape, **options):
        return torch.full(shape, math.nan, **options)

    return module.launch(*operands, empty=nan), module.eager(*operands), reference.results(value, tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GROUPS)
def test_as_close_as_eager(load, name: str, kind: str) -> None:
    value = GROUPS[name]
    outputs, eager, exact = run(load, value, schedules(value)[kind])
    slack = 2.0 if value.lhs.dtype == "fp32" and value.fp32_precision == "ieee" else 1.1
    assert len(outputs) == len(exact)
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert output.shape == truth.shape
        assert output.dtype == reference.DTYPES[value.outputs[0].dtype]
        assert reference.rms(output, truth) <= slack * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("kind", ["inline", "inline_swapped", "split_1", "split_3"])
@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_are_as_close_as_eager(load, name: str, kind: str) -> None:
    value = BUNDLES[name]
    if name == "saved" and kind == "split_3":
        kind = "split_1"  # a saved product is written whole
    outputs, eager, exact = run(load, value, bundled(schedules(value)[kind]))
    assert len(outputs) == len(exact)
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("kind", ["concat", "horizontal"])
@pytest.mark.parametrize(
    "name", [*BUNDLES, "plain", "bias", "branch_biases", "tensor_scale", "fp32", "tf32", "fp16", "fp32_wide_ranks"]
)
def test_side_by_side_is_as_close_as_eager(load, name: str, kind: str) -> None:
    value = PLAIN if name == "plain" else {**GROUPS, **BUNDLES}[name]
    fp32, saved = value.lhs.dtype == "fp32", any(branch.saved for branch in value.branches)
    rank = max((padded_rank(value.members[branch.down].n) for branch in value.branches), default=16)
    down = replace(DOWN, block_n=rank, block_k=COMPENSATED_STEP if fp32 else DOWN.block_k)
    tile = replace(TILE, block_k=down.block_k)
    outputs, eager, exact = run(load, value, side_by_side(value, kind, tile, down, 1 if saved else 3))
    assert len(outputs) == len(exact)
    slack = 2.0 if fp32 and value.fp32_precision == "ieee" else 1.1
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= slack * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("kind", ["concat", "horizontal"])
@pytest.mark.parametrize("name", ["plain", "gqa", "one_row", "one_without_a_branch", "saved", "fp32", "bias"])
def test_main_tiles_split_along_k(load, name: str, kind: str) -> None:
    value = PLAIN if name == "plain" else {**GROUPS, **BUNDLES}[name]
    fp32, saved = value.lhs.dtype == "fp32", any(branch.saved for branch in value.branches)
    tile, down = (replace(each, block_k=COMPENSATED_STEP if fp32 else 64) for each in (TILE, DOWN))
    schedule = side_by_side(value, kind, tile, down, 1 if saved else 2, main_split=3)
    outputs, eager, exact = run(load, value, schedule)
    slack = 2.0 if fp32 else 1.1
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= slack * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("name", ["equal", "gqa", "kn_and_fp32_adapters"])
@pytest.mark.parametrize("subtiles", [2, 4])
def test_epilogue_subtiles(load, name: str, subtiles: int) -> None:
    value = BUNDLES[name]
    tile = replace(DESCRIBED, epilogue_subtiles=subtiles)
    outputs, eager, exact = run(load, value, bundled(split(value, tile, DOWN)))
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("kind", ["concat", "horizontal"])
def test_plain_members_through_descriptors(load, kind: str) -> None:
    outputs, eager, exact = run(load, PLAIN, side_by_side(PLAIN, kind, DESCRIBED, DOWN))
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


def test_a_bundle_of_unequal_tiles(load) -> None:
    value = BUNDLES["gqa"]
    first, *others = inline(value, TILE).pools
    other = replace(TILE, block_m=16, block_n=32, block_k=32)
    pools = (first, *(replace(pool, launch=0, tile=other) for pool in others))
    outputs, eager, exact = run(load, value, Schedule("inline", pools))
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.parametrize(
    "name", [name for name, value in BUNDLES.items() if not any(refusal(value, main) for main in value.mains)]
)
def test_bundles_through_descriptors(load, name: str) -> None:
    value = BUNDLES[name]
    k_split = 1 if any(branch.saved for branch in value.branches) else 2
    outputs, eager, exact = run(load, value, bundled(split(value, DESCRIBED, DOWN, k_split=k_split, group_m=2)))
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("name", [name for name, value in GROUPS.items() if not refusal(value, 0)])
def test_tma_is_as_close_as_eager(load, name: str) -> None:
    value = GROUPS[name]
    outputs, eager, exact = run(load, value, split(value, DESCRIBED, DOWN, k_split=2, group_m=2))
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("kind", ["inline", "inline_swapped", "split_1"])
@pytest.mark.parametrize("lora", [Lora(12, saved=True), Lora(8, saved=True, down_bias=2.0)], ids=["plain", "biased"])
def test_saved_down_product(load, kind: str, lora: Lora) -> None:
    value = group(70, 200, Main(136, (lora,)))
    outputs, eager, exact = run(load, value, schedules(value)[kind])
    assert [tuple(output.shape) for output in outputs] == [(70, 136), (70, lora.rank)]
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.parametrize("kind", ["inline", "split_1"])
def test_one_of_two_down_products_is_saved(load, kind: str) -> None:
    value = group(33, 200, Main(136, (Lora(8), Lora(4, saved=True))))
    outputs, eager, exact = run(load, value, schedules(value)[kind])
    assert [tuple(output.shape) for output in outputs] == [(33, 136), (33, 4)]
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_symbol_differ_from_the_hint(load, kind: str, rows: int) -> None:
    value = group(33, 200, Main(136), symbol="s0")
    emitted = emit(value, schedules(value)[kind], name="module", tier="fp32", why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value)
    tensors[value.lhs] = torch.randn(rows, 200, generator=torch.Generator().manual_seed(1)).bfloat16()
    operands = [tensors[operand] for operand in emitted.operands]
    [output], [plain], [truth] = module.launch(*operands), module.eager(*operands), reference.results(value, tensors)
    assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "kind"),
    [
        *(("bf16", "fp32", "fp32", kind) for kind in KINDS),
        *(("fp16", "fp32", "fp32", kind) for kind in KINDS),
        *(("bf16", "fp32", "bf16", kind) for kind in ("inline", "split_3")),
        *(("bf16", "bf16", "fp32", kind) for kind in ("inline", "split_3")),
    ],
)
def test_fp32_adapters_keep_fp32_accuracy(load, dtype: str, a: str, b: str, kind: str) -> None:
    """With an fp32 output nothing rounds to 16 bits: the error is fp32's, far below that of a bf16 adapter."""
    value = group(33, 200, Main(136, (Lora(8, dtype=a, up_dtype=b),), dtype=dtype), dtype=dtype)
    value = replace(value, outputs=(Output(0, "add0", "fp32"),))
    outputs, _, exact = run(load, value, schedules(value)[kind])
    assert reference.rms(outputs[0], exact[0]) < 1e-6


@pytest.mark.parametrize("rank", [3, 32, 33, 64])
@pytest.mark.parametrize("kind", ["inline", "inline_swapped", "split_1", "split_3"])
def test_pieces_lie_beside_one_another_where_registers_hold_them(load, kind: str, rank: int) -> None:
    """One product of X in three bf16 pieces of A, or three: as accurate."""
    value = group(33, 200, Main(136, (Lora(rank, dtype="fp32"),)))
    value = replace(value, outputs=(Output(0, "add0", "fp32"),))
    schedule = schedules(value)[kind]
    beside = rank <= MOST_BESIDE and not schedule.pools[0].tile.swap_operands
    source = emit(value, schedule, name="module", tier="fp32", why="a test").source
    assert ("tl.dot(x, pieces_beside(a, x.dtype), y)" in source) is beside
    assert ("a_high, a_middle, a_low = in_pieces(a, x.dtype)" in source) is not beside
    outputs, _, exact = run(load, value, schedule)
    assert reference.rms(outputs[0], exact[0]) < 1e-6


@pytest.mark.parametrize("kind", ["inline", "split_3", "concat", "horizontal", "two_pool"])
def test_relaxed_rounds_fp32_adapters(load, kind: str) -> None:
    value = GROUPS["fp32_adapters"]
    beside = {name: side_by_side(value, name, TILE, DOWN, main_split=2) for name in ("concat", "horizontal")}
    known = {**schedules(value), **beside, "two_pool": two_pool(value, TILE, DOWN, 6, 2, 1)}
    outputs, eager, exact = run(load, value, known[kind], tier="relaxed")
    assert reference.rms(outputs[0], exact[0]) <= 1.1 * reference.rms(eager[0], exact[0])


@pytest.mark.parametrize("kind", ["inline", "split_1"])
def test_a_long_fp32_sum_is_compensated(load, kind: str) -> None:
    """One chain of 16384 additions of positive terms drifts; the compensated sum keeps the rounding of one step."""
    value = group(16, 16384, Main(32, (Lora(16, dtype="fp32"),), dtype="fp32"), dtype="fp32")
    emitted = emit(value, schedules(value)[kind], name="module", tier="fp32", why="a test")
    tensors = {operand: tensor.abs() for operand, tensor in reference.draw(emitted, value).items()}
    (output,) = load(emitted).launch(*(tensors[operand] for operand in emitted.operands))
    (truth,) = reference.results(value, tensors)
    assert reference.rms(output, truth) < 1e-7


@pytest.mark.parametrize("kind", ["split_1", "concat"])
def test_wide_ranks_of_fp32_are_joined_in_steps(kind: str) -> None:
    """The additions of one dot are one chain: 128 of them were twice as far from fp64 as the vendor GEMM is (H200)."""
    value = group(33, 200, Main(136, (Lora(128, dtype="fp32"),), dtype="fp32"), dtype="fp32")
    tile, down = (replace(each, block_k=COMPENSATED_STEP) for each in (TILE, replace(DOWN, block_n=128)))
    schedule = schedules(value)[kind] if kind == "split_1" else side_by_side(value, kind, tile, down)
    source = emit(value, schedule, name="module", tier="fp32", why="a test").source
    assert f"for first_rank in tl.range(0, RP, {COMPENSATED_STEP}, num_stages=1):" in source
    assert "ranks = tl.arange(0, RP)" in source  # the pass over X makes all of them
    assert source.count("ranks = ") == 2


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_infinities_and_no_numbers_come_out_as_eager_has_them(load, precision: str) -> None:
    value = group(16, 128, Main(32, (Lora(16, dtype="fp32"),), dtype="fp32"), dtype="fp32", precision=precision)
    emitted = emit(value, schedules(value)["inline"], name="module", tier="fp32", why="a test")
    tensors = {operand: tensor.abs() for operand, tensor in reference.draw(emitted, value).items()}
    x = tensors[value.lhs]
    x[0, 3], x[1, 70], x[2, 5] = math.inf, -math.inf, math.nan
    x.view(torch.int32)[3, 9] = 0x7FFFFFFF  # the NaN of a CUDA card: adding to its bits would make it a number
    (output,) = load(emitted).launch(*(tensors[operand] for operand in emitted.operands))
    assert output[0].isposinf().all()
    assert output[1].isneginf().all()
    assert output[2:4].isnan().all()
    assert output[4:].isfinite().all()


def test_an_emitted_main_beside_one_that_is_not(load) -> None:
    value = group(33, 200, Main(136), Main(64, branches=()))
    schedule = Schedule("inline", inline(value, TILE).pools[:1])
    emitted = emit(value, schedule, name="module", tier="fp32", why="a test")
    tensors = reference.draw(emitted, value)
    (output,) = load(emitted).launch(*tensors.values())
    (truth,) = reference.results(value, tensors, mains=(0,))
    assert reference.rms(output, truth) < 4e-3


def test_large_tile_with_eight_warps(load) -> None:
    value = group(200, 96, Main(300, (Lora(16),)))
    outputs, eager, exact = run(load, value, inline(value, TileConfig(128, 256, 64, 8, 3)))
    assert reference.rms(outputs[0], exact[0]) <= 1.1 * reference.rms(eager[0], exact[0])
