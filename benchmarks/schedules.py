"""Every kind of schedule on LoRA layers and bundles, several choices of tiles each: predicted against measured.

    python benchmarks/schedules.py --out benchmarks/results/schedules.json

For each group and kind the model's best schedule and others down its ranking are compiled (in parallel, before
anything is timed), checked against fp64, and timed with operands rotated out of L2. The vendor GEMM over the
concatenated weights, without adapters, stands beside them. All of a group are timed in turns.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layers
import torch
from candidates import build_one, compact
from cost_model import written

from fusioncc.autotune import best, ranked_pools
from fusioncc.codegen import emit
from fusioncc.codegen.emission import KINDS
from fusioncc.cost_models import estimate
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.in_words import describe_pools
from fusioncc.packing import PACKED
from fusioncc.schedule import SCHEDULES, Schedule

EMITTED = tuple(kind for kind in SCHEDULES if kind in KINDS and kind not in PACKED)
DEVICE = get_device("h200")
Layer = tuple[int, int, tuple[int, ...], int]
LAYERS: list[Layer] = [
    (1, 4096, (28672,), 8),
    (16, 4096, (28672,), 8),
    (64, 4096, (28672,), 8),
    (256, 4096, (28672,), 8),
    (64, 4096, (4096,), 16),
    (64, 4096, (1024,), 16),
    (64, 14336, (4096,), 16),
    (64, 4096, (6144,), 64),
    (2048, 4096, (4096,), 16),
    (8192, 4096, (14336,), 16),
    *((m, 4096, (4096, 1024, 1024), rank) for m in (1, 16, 64, 512, 2048) for rank in (16, 0)),
    *((m, 4096, (14336, 14336), rank) for m in (1, 64, 512, 2048) for rank in (16, 0)),
    *((m, 4096, (4096, 1024, 1024), 16) for m in (128, 256, 1024)),
    *((m, 4096, (14336, 14336), 16) for m in (128, 1024)),
    *((m, 4096, (4096,), 16) for m in (128, 256, 512, 1024)),
    *((m, 14336, (4096,), 16) for m in (1, 16, 256, 512, 2048)),
]
"""M, K, N of each main member, rank (0: no adapters)."""
DOWN_THE_RANKING = (0, 1, 2, 4, 8, 16, 32, 64)


def group_of(m: int, k: int, widths: tuple[int, ...], rank: int) -> Group:
    """Linear layers in bf16 that share an input, each with one adapter or none."""
    return layers.group_of(layers.Layer("", "", m, k, widths, rank))


def schedules(group: Group, kind: str) -> Iterator[Schedule]:
    """The model's best of a kind, then schedules that take another choice for one launch."""
    found = best(group, DEVICE, kind)
    if found is None:
        return
    yield found[0]
    for launch, choices in enumerate(ranked_pools(group, DEVICE, found[0])):
        for place in DOWN_THE_RANKING[1:]:
            if place < len(choices):
                others = [pool for pool in found[0].pools if pool.launch != launch]
                pools = sorted((*others, *choices[place]), key=lambda pool: pool.launch)
                yield Schedule(kind, tuple(pools))


def measured(layer: Layer, candidates: list[tuple[Group, Schedule, str]]) -> dict[str, Any]:
    """What each schedule is predicted and measured at, and whether it is right; the vendor's GEMM beside them."""
    from timing import captured, interleaved_us, sets_needed

    from fusioncc.runtime.load import load

    m, k, widths, _ = layer
    count = sets_needed(2 * k * (sum(widths) + m))
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    plain = [(draw(m, k), draw(sum(widths), k)) for _ in range(count)]
    graphs = [captured([lambda s=s: torch.nn.functional.linear(*s) for s in plain])]
    rows: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    sets: list[Any] = []
    for group, schedule, why in candidates:
        rows.append({"kind": schedule.kind, "pools": describe_pools(schedule)})
        if why:
            rows[-1]["error"] = why
            continue
        emitted = emit(group, schedule, name="bench", tier="fp32", why="a benchmark")
        module = load(emitted.name, emitted.source)
        sets = sets or [module.draw(seed) for seed in range(count)]
        predicted = estimate(group, schedule, DEVICE)
        rows[-1] |= {
            "schedule": compact(schedule),
            "predicted": round(predicted.us, 2) if predicted else None,
            "wrong": module.check(sets[0]),
        }
        graphs.append(captured([lambda s=s, launch=module.launch: launch(*s) for s in sets]))
        timed.append(rows[-1])
    (alone, _), *others = interleaved_us(graphs, target_ms=24.0, rounds=6)
    for row, (us, spread) in zip(timed, others, strict=True):
        row |= {"us": round(us, 2), "spread": round(spread, 2)}
    return {"layer": layer, "alone": round(alone, 2), "schedules": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--kinds", default=",".join(EMITTED))
    parser.add_argument("--layers", default="", help="indices of the groups to run, for example 0,4,7")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds of timing")
    arguments = parser.parse_args()
    chosen = [LAYERS[int(at)] for at in arguments.layers.split(",") if at] or LAYERS
    jobs = [
        (layer, group, schedule)
        for layer in chosen
        for group in (group_of(*layer),)
        for kind in arguments.kinds.split(",")
        for schedule in schedules(group, kind)
    ]
    started = time.time()
    with multiprocessing.get_context("spawn").Pool() as pool:
        problems = pool.map(build_one, [(group, schedule) for _, group, schedule in jobs], chunksize=4)
    print(f"compiled {len(jobs)} in {time.time() - started:.0f} s", flush=True)

    from timing import facts

    rows: list[dict[str, Any]] = []
    started = time.time()
    for layer in chosen:
        if time.time() - started > arguments.limit:
            break
        mine = [
            (group, schedule, why) for (of, group, schedule), why in zip(jobs, problems, strict=True) if of == layer
        ]
        row = measured(layer, mine)
        torch.cuda.empty_cache()
        rows.append(row)
        summary(row)
        body = {**facts(), "unit": "us", "rows": rows}
        Path(arguments.out).write_text(written(body))


def summary(row: dict[str, Any]) -> None:
    """The best of each kind for one group."""
    print(row["layer"], "one GEMM", row["alone"], flush=True)
    for kind in EMITTED:
        timed = [each for each in row["schedules"] if each["kind"] == kind and "us" in each]
        wrong = sum(bool(each["wrong"]) for each in timed)
        for each in sorted(timed, key=lambda each: each["us"])[:1]:
            ratio = each["us"] / row["alone"]
            print(
                f"   {kind:10} {each['us']:8} ({ratio:.2f}x, predicted {each['predicted']}) {each['pools']}", flush=True
            )
        if wrong:
            print(f"   {kind:10} {wrong} WRONG", flush=True)


if __name__ == "__main__":
    main()
