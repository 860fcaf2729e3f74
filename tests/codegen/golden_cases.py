"""Modules whose source is kept, by name. Plain values: no torch, no triton."""

from dataclasses import replace

from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.codegen.cases import (
    DOWN,
    Lora,
    Main,
    bundled,
    early,
    group,
    inline,
    joined_last,
    k_concat,
    side_by_side,
    split,
    streams,
    two_pool,
)
from tests.codegen.epilogue_cases import epilogues
from tests.codegen.norm_cases import norms


def golden() -> dict[str, tuple[Group, Schedule, str]]:
    """Modules whose source is kept: name -> group, schedule, tier."""
    big, wide = TileConfig(64, 128, 64, 4, 4), TileConfig(128, 256, 64, 8, 3)
    narrow, square = TileConfig(16, 32, 128, 4, 4, swap_operands=True), TileConfig(64, 64, 64, 4, 2)
    down = TileConfig(64, 16, 128, 4, 4)
    small = TileConfig(32, 64, 32, 4, 3)
    row = TileConfig(1, 2, 2048, 4, 1, swap_operands=True)
    one_row = group(1, 4096, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024)))
    plain_row = group(1, 4096, *(Main(n, ()) for n in (4096, 1024, 1024)))
    mlp = group(64, 4096, Main(28672))
    q_k_v = group(512, 4096, *(Main(n, (Lora(16, dtype="fp32"),)) for n in (4096, 1024, 1024)), symbol="s0")
    tiny = group(1, 4096, Main(28672))
    ragged = group(
        300, 200, Main(330, (Lora(12, tensor_scales=1, scale=0.5), Lora(4, saved=True)), bias=True, layout="kn")
    )
    biased = group(
        48,
        256,
        Main(192, (Lora(16, dtype="fp32", down_bias=0.5, up_bias=2.0),), dtype="fp32", bias=True),
        dtype="fp32",
        precision="tf32",
    )
    ieee = group(48, 256, Main(192, (Lora(16, dtype="fp32"),), dtype="fp32"), dtype="fp32")
    plain = group(300, 200, Main(330, (Lora(12),)))
    mixed = {name: group(256, 512, Main(256, (Lora(16, "fp32"),), dtype=name), dtype=name) for name in ("bf16", "fp16")}
    long = group(2048, 4096, Main(4096, (Lora(16),)))
    saved = group(2048, 4096, Main(4096, (Lora(16, saved=True),)))
    plain_few = group(64, 4096, *(Main(n, ()) for n in (4096, 1024, 1024)))
    few = group(16, 4096, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024)))
    odd = group(
        300, 200, Main(136, (Lora(12, tensor_scales=1),)), Main(64, ()), Main(64, (Lora(8, down_bias=0.5), Lora(16)))
    )
    q_and_v = group(2048, 4096, Main(4096, (Lora(16),)), Main(1024, branches=()), Main(1024, (Lora(16),)))
    return {
        "inline_mlp": (mlp, inline(mlp, big), "fp32"),
        "inline_swapped": (tiny, inline(tiny, narrow), "fp32"),
        "inline_qkv_fp32_adapters": (q_k_v, inline(q_k_v, big), "fp32"),
        "inline_ragged": (ragged, inline(ragged, small, group_m=4), "fp32"),
        "inline_fp32": (biased, inline(biased, small), "fp32"),
        "split_one_row": (
            one_row,
            early(bundled(split(one_row, row, replace(row, block_n=16, block_k=256), k_split=4))),
            "fp32",
        ),
        "split_early": (mlp, early(joined_last(split(mlp, big, down, k_split=4))), "fp32"),
        "split_early_tma": (long, early(split(long, replace(wide, tma=True), down, k_split=4)), "fp32"),
        "split_early_tma_bundle": (
            q_and_v,
            early(joined_last(bundled(split(q_and_v, replace(wide, tma=True, epilogue_subtiles=2), down, k_split=2)))),
            "fp32",
        ),
        "concat_one_row": (plain_row, Schedule("concat", (Pool("main", plain_row.mains, row, 0),)), "fp32"),
        "split_fp32_adapters": (mixed["bf16"], split(mixed["bf16"], square, DOWN), "fp32"),
        "split_early_fp16_fp32_adapters": (
            mixed["fp16"],
            early(joined_last(split(mixed["fp16"], square, DOWN))),
            "fp32",
        ),
        "split_ieee": (ieee, split(ieee, small, replace(DOWN, block_k=32), k_split=2), "fp32"),
        "split_mlp": (mlp, split(mlp, big, down, k_split=8), "fp32"),
        "split_qkv_relaxed": (q_k_v, split(q_k_v, TileConfig(128, 128, 64, 8, 3), down, k_split=4), "relaxed"),
        "split_ragged": (plain, split(plain, small, DOWN, k_split=3), "fp32"),
        "split_tma": (long, split(long, replace(wide, tma=True), down, k_split=2), "fp32"),
        "inline_bundle": (few, bundled(inline(few, narrow)), "fp32"),
        "split_bundle_tma": (
            q_and_v,
            bundled(split(q_and_v, TileConfig(128, 128, 64, 8, 3, tma=True), down, k_split=4)),
            "fp32",
        ),
        "concat_plain": (plain_few, side_by_side(plain_few, "concat", TileConfig(64, 64, 64, 4, 4), down), "fp32"),
        "horizontal_split": (
            tiny,
            side_by_side(tiny, "horizontal", narrow, replace(down, block_m=16, swap_operands=True), 8, main_split=4),
            "fp32",
        ),
        "horizontal_lora": (
            mlp,
            side_by_side(mlp, "horizontal", big, replace(down, block_k=64), k_split=4),
            "fp32",
        ),
        "streams_lora": (mlp, streams(mlp, replace(down, block_k=64), k_split=4), "fp32"),
        "streams_bundle": (q_and_v, streams(q_and_v, down, k_split=2), "fp32"),
        "streams_plain": (plain_few, streams(plain_few, down), "fp32"),
        "k_concat": (long, k_concat(long, replace(down, block_m=32), 4), "fp32"),
        "k_concat_bundle": (odd, k_concat(odd, replace(DOWN, block_m=16, block_k=32, swap_operands=True), 1), "fp32"),
        "two_pool_stripes": (
            long,
            two_pool(long, replace(wide, tma=True), replace(down, block_k=64), 132, 64, 4, late=1),
            "fp32",
        ),
        "two_pool_queue": (q_and_v, two_pool(q_and_v, TileConfig(64, 64, 64, 4, 3), down, 264, 16, 2, chunk=4), "fp32"),
        "split_tma_subtiles": (
            long,
            split(long, replace(wide, tma=True, epilogue_subtiles=4), down, k_split=2),
            "fp32",
        ),
        "split_saved": (saved, split(saved, wide, down), "fp32"),
        **epilogues(),
        **norms(),
    }
