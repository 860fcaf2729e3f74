"""Measure tile configs of the emitted kernels, one at a time: the data behind the cost models' constants.

    python benchmarks/sweep_tiles.py --out benchmarks/results/sweep_tiles.json

Each row is one launch (``inline`` main, ``split`` main, ``split`` down) of one group shape with one tile config; the
vendor GEMM alone is timed beside them.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch

from fusioncc.codegen import emit
from fusioncc.group import Branch, Group, Member, Operand, Output
from fusioncc.schedule import Pool, Schedule, TileConfig

SHAPES = [
    (1, 4096, 28672, 8),
    (16, 4096, 28672, 8),
    (64, 4096, 28672, 8),
    (256, 4096, 28672, 8),
    (64, 4096, 4096, 16),
    (2048, 4096, 4096, 16),
    (8192, 4096, 14336, 16),
    (64, 4096, 1024, 16),
    (64, 14336, 4096, 16),
    (512, 4096, 4096, 16),
]


def lora_group(m: int, k: int, n: int, r: int) -> Group:
    """One linear layer ``[n, k]`` in bf16 with one adapter of rank ``r``."""
    members = (
        Member("main", "main", m, n, k, Operand("w", (k, n), (1, k), "bf16"), "bf16"),
        Member("down", "down", m, r, k, Operand("a", (k, r), (1, k), "bf16"), "bf16"),
        Member("up", "up", m, n, r, Operand("b", (r, n), (1, r), "bf16"), "bf16"),
    )
    lhs = Operand("x", (m, k), (k, 1), "bf16")
    return Group("g0", lhs, members, (Branch(0, 1, 2, 2.0),), (Output(0, "sum", "bf16"),))


def main_tiles(m: int, n: int) -> list[TileConfig]:
    """Tile configs worth measuring for M rows."""
    found = []
    if m <= 16:
        for bn, bk, stages in itertools.product((32, 64, 128), (64, 128, 256), (3, 4, 6)):
            found.append(TileConfig(16, bn, bk, 4, stages, True))
        for bn, bk, stages in itertools.product((32, 64, 128), (128, 256), (3, 5)):
            found.append(TileConfig(16, bn, bk, 4, stages))
    elif m <= 64:
        for bm, bn, bk, stages in itertools.product((32, 64), (16, 32, 64, 128, 256), (64, 128), (3, 4, 5)):
            if (bn >= 32 or n <= 4096) and bm * bn >= 16 * 64:
                found.append(TileConfig(bm, bn, bk, 8 if bm * bn >= 64 * 256 else 4, stages))
    else:
        for bm, bn, bk, warps, stages in itertools.product((64, 128, 256), (64, 128, 256), (32, 64), (4, 8), (3, 4)):
            many = bm * bn >= 128 * 256
            if 64 * 128 <= bm * bn <= 128 * 256 and (warps == 8 or not many) and (warps == 4 or bm * bn > 64 * 128):
                found.append(TileConfig(bm, bn, bk, warps, stages))
    return [t for t in found if t.num_stages * (t.block_m + t.block_n + 16) * t.block_k * 2 <= 230000]


def jobs(shape: tuple[int, int, int, int]) -> list[tuple[str, Schedule, int]]:
    """``(label, schedule, launch to time)`` for one shape."""
    m, k, n, _ = shape
    found: list[tuple[str, Schedule, int]] = []
    down = TileConfig(16 if m <= 16 else 64, 16, 128, 4, 3)
    for tile in main_tiles(m, n):
        found.append(("inline", Schedule("inline", (Pool("main", (0,), tile, 0),)), 0))
        split = Schedule("split", (Pool("down", (1,), down, 0, k_split=8), Pool("main", (0,), tile, 1)))
        if 32 <= m <= 64 and tile.num_stages != 4:
            continue
        found.append(("split_main", split, 1))
    main = main_tiles(m, n)[0]
    for bm, bk, warps, stages, cut in itertools.product((16, 64, 128), (128, 256), (4,), (3,), (1, 4, 8, 16, 32)):
        if bm > max(16, m) or cut * bk > k or stages * (bm + 16) * bk * 2 > 230000:
            continue
        pools = (Pool("down", (1,), TileConfig(bm, 16, bk, warps, stages), 0, k_split=cut), Pool("main", (0,), main, 1))
        found.append(("split_down", Schedule("split", pools), 0))
    return found


def _arguments(launch: Any, buffers: dict[str, Any], tensors: dict[str, Any], m: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for arg in launch.args:
        if arg.kind == "operand":
            values[arg.name] = tensors[arg.operand.node]
        elif arg.kind == "buffer":
            values[arg.name] = buffers[arg.value]
        else:
            values[arg.name] = m if arg.kind == "rows" else arg.value
    return values


def compile_one(job: tuple[tuple[int, int, int, int], str, Schedule, int]) -> tuple[int, int] | str:
    """Compile one launch (fills Triton's cache); registers and spills, or the error."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError
    from triton.runtime.jit import MockTensor

    from fusioncc.graph import TORCH_DTYPES
    from fusioncc.runtime.load import load

    shape, _, schedule, at = job
    torch.cuda.init()
    emitted = emit(lora_group(*shape), schedule, name="sweep", tier="fp32", why="sweep")
    launch = emitted.launches[at]
    buffers = {b.name: MockTensor(TORCH_DTYPES[b.dtype]) for b in emitted.buffers}
    tensors = {o.node: MockTensor(TORCH_DTYPES[o.dtype]) for o in emitted.operands}
    try:
        module = load(emitted.name, emitted.source)
        values = _arguments(launch, buffers, tensors, shape[0])
        kernel = getattr(module, launch.kernel).warmup(
            **values, grid=(1,), num_warps=launch.num_warps, num_stages=launch.num_stages
        )
        kernel._init_handles()
        return kernel.n_regs, kernel.n_spills
    except (RuntimeError, ValueError, CompilationError, OutOfResources, PTXASError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1] if str(error) else ''}"[:200]


def measure(
    shape: tuple[int, int, int, int], found: list[tuple[str, Schedule, int]], built: list[Any], limit_s: float
) -> list[dict[str, Any]]:
    """Time every launch that compiled, vendor GEMM first."""
    from timing import graph_us, sets_needed

    from fusioncc.graph import TORCH_DTYPES
    from fusioncc.runtime.load import load

    m, k, n, r = shape
    count = sets_needed(2 * (k * n + m * k))
    make = lambda *s: torch.randn(*s, device="cuda", dtype=torch.bfloat16)
    operands = [
        {"x": make(m, k), "w": make(n, k) * k**-0.5, "a": make(r, k) * k**-0.5, "b": make(n, r)} for _ in range(count)
    ]
    rows: list[dict[str, Any]] = []
    alone, spread = graph_us([lambda o=o: torch.nn.functional.linear(o["x"], o["w"]) for o in operands])
    rows.append({"shape": shape, "kind": "gemm_alone", "us": round(alone, 2), "spread": round(spread, 2)})
    started = time.time()
    for (label, schedule, at), facts in zip(found, built, strict=True):
        pool = schedule.pools[at]
        tile = pool.tile
        row = {
            "shape": shape, "kind": label, "tile": [tile.block_m, tile.block_n, tile.block_k], "warps": tile.num_warps,
            "stages": tile.num_stages, "swap": tile.swap_operands, "k_split": pool.k_split,
        }  # fmt: skip
        if isinstance(facts, str) or facts[1] > 64 or time.time() - started > limit_s:
            rows.append(
                {
                    **row,
                    "error": facts
                    if isinstance(facts, str)
                    else f"spills {facts[1]}"
                    if facts[1] > 64
                    else "no time left",
                }
            )
            continue
        emitted = emit(lora_group(*shape), schedule, name="sweep", tier="fp32", why="sweep")
        module, launch = load(emitted.name, emitted.source), emitted.launches[at]
        calls = []
        for tensors in operands:
            buffers = {
                b.name: torch.randn([m if s == "M" else s for s in b.shape], device="cuda").to(TORCH_DTYPES[b.dtype])
                for b in emitted.buffers
            }
            values = _arguments(launch, buffers, tensors, m)
            kernel, grid = getattr(module, launch.kernel), (launch.programs(m),)
            options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
            calls.append(
                lambda kernel=kernel, grid=grid, values=values, options=options: kernel[grid](**values, **options)
            )
        us, spread = graph_us(calls, target_ms=8.0, rounds=5)
        rows.append({**row, "us": round(us, 2), "spread": round(spread, 2), "regs": facts[0]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=float, default=18.0, help="seconds of timing for each shape")
    arguments = parser.parse_args()
    work = {shape: jobs(shape) for shape in SHAPES}
    flat = [(shape, *job) for shape in SHAPES for job in work[shape]]
    started = time.time()
    with multiprocessing.get_context("spawn").Pool(15) as pool:
        built = pool.map(compile_one, flat, chunksize=8)
    print(f"compiled {len(flat)} in {time.time() - started:.0f} s", flush=True)
    from timing import facts

    rows: list[dict[str, Any]] = []
    at = 0
    for shape in SHAPES:
        count = len(work[shape])
        rows += measure(shape, work[shape], built[at : at + count], arguments.limit)
        at += count
        Path(arguments.out).write_text(json.dumps({**facts(), "rows": rows}, indent=0))
        summary(rows, shape)


def summary(rows: list[dict[str, Any]], shape: tuple[int, int, int, int]) -> None:
    """The best of each kind for one shape."""
    mine = [row for row in rows if row["shape"] == shape and "us" in row]
    print(shape, "gemm", mine[0]["us"], f"{time.strftime('%X')}")
    for kind in ("inline", "split_main", "split_down"):
        best = sorted((row for row in mine if row["kind"] == kind), key=lambda row: row["us"])[:3]
        for row in best:
            print(
                "  ",
                kind,
                row["us"],
                row["tile"],
                row["warps"],
                row["stages"],
                row["swap"],
                row["k_split"],
                row["regs"],
                flush=True,
            )


if __name__ == "__main__":
    main()
