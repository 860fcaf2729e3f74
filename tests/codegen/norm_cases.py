"""Groups behind a norm that their tiles carry out, by name, with a schedule each. Plain values: no torch, no triton."""

from dataclasses import replace

from fusioncc.group import Group, Norm, Operand
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.codegen.cases import Lora, Main, bundled, group, inline
from tests.codegen.epilogue_cases import SWIGLU, ended, rotary, together


def normed(value: Group, epsilon: float = 1e-6, weight: str | None = "bf16", stride: int = 1) -> Group:
    """The group behind an RMSNorm of its X, with a weight of this dtype or none; with one of its own dtype as Llama
    has it."""
    columns = None if weight is None else Operand("g", (value.k,), (stride,), weight)
    rounded = weight == value.lhs.dtype == "bf16"
    return replace(value, norm=Norm(replace(value.lhs, node="xn"), epsilon, columns, rounded))


def norms() -> dict[str, tuple[Group, Schedule, str]]:
    """Name -> group, schedule, tier."""
    tile, narrow = TileConfig(64, 64, 64, 4, 3), TileConfig(16, 64, 128, 4, 3, swap_operands=True)
    row, small = TileConfig(1, 2, 2048, 4, 1, swap_operands=True), TileConfig(32, 32, 32, 4, 2)
    widths = (4096, 1024, 1024)
    lora = normed(group(64, 4096, *(Main(n, (Lora(16),)) for n in widths)))
    few = normed(group(16, 4096, *(Main(n, (Lora(8, saved=True),)) for n in widths)))
    plain, one = (normed(group(m, 4096, *(Main(n, ()) for n in widths))) for m in (16, 1))
    rotated = rotary(normed(group(64, 4096, *(Main(n, ()) for n in widths))), 0, 1)
    pair = normed(ended(group(16, 4096, Main(14336, ()), Main(14336, ())), (0, 1), *SWIGLU), weight="fp32")
    ragged = normed(
        group(50, 200, Main(330, (Lora(12, down_bias=0.5), Lora(4)), bias=True), symbol="s0"), 1e-5, stride=2
    )
    wide = normed(group(48, 200, Main(192, (Lora(16, dtype="fp32"),), dtype="fp32"), dtype="fp32"), weight="fp32")
    bare = normed(group(48, 200, Main(192, ()), Main(64, ())), weight=None)
    heads = replace(tile, block_n=128, num_warps=8)
    wides, halves = bare.mains[:1], bare.mains[1:]
    return {
        "inline_norm": (lora, bundled(inline(lora, tile)), "fp32"),
        "inline_norm_swapped": (few, bundled(inline(few, replace(narrow, block_n=32))), "fp32"),
        "inline_norm_ragged": (ragged, inline(ragged, small), "fp32"),
        "inline_norm_ieee": (wide, inline(wide, small), "relaxed"),
        "concat_norm": (plain, Schedule("concat", (Pool("main", plain.mains, narrow, 0),)), "fp32"),
        "concat_norm_one_row": (one, Schedule("concat", (Pool("main", one.mains, row, 0),)), "fp32"),
        "concat_norm_rotary": (rotated, Schedule("concat", (Pool("main", rotated.mains, heads, 0),)), "fp32"),
        "concat_norm_swiglu": (pair, together(Schedule("concat", (Pool("main", pair.mains, narrow, 0),))), "fp32"),
        "horizontal_norm_unweighted": (
            bare,
            Schedule(
                "horizontal", (Pool("main", wides, replace(small, block_n=64), 0), Pool("main", halves, small, 0))
            ),
            "fp32",
        ),
    }
