"""Tuned schedules of 24 groups in bf16 against the model's choice, an exhaustive search and max-autotune, on one card.

    python benchmarks/autotune.py --out benchmarks/results/autotune.json

Each group is searched ``quick`` and then ``full`` from nothing; of six of them every schedule that can be chosen is
raced (``exhaustive``). All that were found are then timed again with torch.compile and max-autotune, in turns:
CUDA-graph replay, weights rotated out of L2, medians and half the interquartile range. ``*_s`` is what a search took,
compilation included; no kernel is in Triton's cache before it. Rows of a file that is there already stay, until their
group is run again.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from layers import Layer, group_of
from timing import captured, facts, interleaved_us, sets_needed

from fusioncc.autotune.choose import rank, rankings
from fusioncc.autotune.pick import pick
from fusioncc.codegen import emit
from fusioncc.codegen.reference import reference
from fusioncc.config import Options
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.runtime.executor import profile
from fusioncc.runtime.load import load
from fusioncc.schedule import Schedule
from fusioncc.tuning import Key, key_of
from fusioncc.tuning.candidates import measured_kinds
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.measuring import Job, Timed
from fusioncc.tuning.meter import CardMeter
from fusioncc.tuning.search import search
from fusioncc.tuning.space import is_selectable

QKV, QWEN_QKV = (4096, 1024, 1024), (3584, 512, 512)
SIZES: tuple[tuple[str, int, int, tuple[int, ...], int], ...] = (
    ("Llama q/k/v", 1, 4096, QKV, 16),
    ("Llama q/k/v", 16, 4096, QKV, 16),
    ("Llama q/k/v", 64, 4096, QKV, 16),
    ("Llama q/k/v", 256, 4096, QKV, 64),
    ("Llama q/k/v", 2048, 4096, QKV, 16),
    ("Llama q/k/v", 64, 4096, QKV, 0),
    ("Llama o", 1, 4096, (4096,), 16),
    ("Llama o", 64, 4096, (4096,), 16),
    ("Llama o", 512, 4096, (4096,), 16),
    ("Llama o", 2048, 4096, (4096,), 16),
    ("Llama gate/up", 1, 4096, (14336, 14336), 16),
    ("Llama gate/up", 16, 4096, (14336, 14336), 8),
    ("Llama gate/up", 64, 4096, (14336, 14336), 16),
    ("Llama gate/up", 512, 4096, (14336, 14336), 16),
    ("Llama gate/up", 2048, 4096, (14336, 14336), 16),
    ("Llama gate/up", 64, 4096, (14336, 14336), 0),
    ("Llama down", 16, 14336, (4096,), 16),
    ("Llama down", 64, 14336, (4096,), 64),
    ("Llama down", 512, 14336, (4096,), 16),
    ("Qwen2.5 q/k/v", 16, 3584, QWEN_QKV, 16),
    ("Qwen2.5 q/k/v", 512, 3584, QWEN_QKV, 64),
    ("Qwen2.5 gate/up", 64, 3584, (18944, 18944), 8),
    ("Qwen2.5 gate/up", 1024, 3584, (18944, 18944), 16),
    ("Qwen2.5 down", 128, 18944, (3584,), 16),
)
"""Name, M, K, N of each member, rank (0: no adapters)."""
EXHAUSTIVE = (2, 6, 8, 12, 13, 18)
"""Places of the groups of which everything is raced."""
MOST = 240
"""Schedules of an exhaustive race, the best by the model."""
LONG_S = 3600.0
NOTE = "Each row is of one call; a call with `--groups` leaves the other rows."
Row = dict[str, Any]


def everything(key: Key, device: Device) -> list[Schedule]:
    """Every form of each launch of every kind that can be chosen for a group, beside the model's best of the other
    launches; best first by its place."""
    found: dict[Schedule, int] = {}
    for kind in measured_kinds(key):
        for launches in rankings(key.group, device, kind, key.tier):
            for at, launch in enumerate(launches):
                for place, pools in enumerate(launch):
                    whole = (*(each[0] for each in launches[:at]), pools, *(each[0] for each in launches[at + 1 :]))
                    schedule = Schedule(kind, tuple(pool for part in whole for pool in part))
                    found.setdefault(schedule, place)
    ordered = sorted(found, key=lambda each: found[each])
    return list(itertools.islice((each for each in ordered if is_selectable(each, key, device)), MOST))


def fastest(meter: CardMeter, job: Job, schedules: list[Schedule]) -> Schedule:
    """The fastest of many, in one race after another, of which the winners meet again."""
    winners: list[Schedule] = []
    for at in range(0, len(schedules), 64):
        race = meter.race(job, tuple(schedules[at : at + 64]), LONG_S)
        timed = [each for each in race.results if isinstance(each, Timed)]
        winners += [each.schedule for each in sorted(timed, key=lambda each: each.time.us)[:2]]
    race = meter.race(job, tuple(winners), LONG_S)
    return min((each for each in race.results if isinstance(each, Timed)), key=lambda each: each.time.us).schedule


def functions(
    group: Group, found: dict[str, Schedule], columns: list[str]
) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """The module of the sums as eager has them, and what each column calls."""
    stand = reference(group, name="reference", tier="fp32")
    module = load(stand.name, stand.source)
    modes: dict[str, dict[str, Any]] = {"compile": {}, "max_autotune": {"mode": "max-autotune-no-cudagraphs"}}
    every: dict[str, Callable[..., Any]] = {
        name: torch.compile(module.eager, dynamic=False, **modes[name]) for name in columns if name in modes
    }
    for name, schedule in found.items():
        if schedule.kind == "library":
            every[name] = every["compile"]
            continue
        emitted = emit(group, schedule, name=f"{name}_{schedule.kind}", tier="fp32", why="A benchmark.")
        every[name] = load(emitted.name, emitted.source).launch
    return module, every


def timed(group: Group, found: dict[str, Schedule], columns: list[str]) -> Row:
    """Every column in turns, and the error of each relative to fp64."""
    module, every = functions(group, found, columns)
    first = module.draw(0)
    sets = [first, *(module.draw(seed) for seed in range(1, sets_needed(sum(each.nbytes for each in first))))]
    exact = module.eager(*(each.double() for each in first))[0]
    result: Row = {}
    graphs = {}
    for name, function in every.items():
        with torch.no_grad():
            error = (function(*first)[0].double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        result[f"{name}_error"] = float(f"{error.item():.2e}")
        graphs[name] = captured([lambda f=function, s=s: f(*s) for s in sets])
    for name, (us, spread) in zip(graphs, interleaved_us(list(graphs.values()), target_ms=100.0), strict=True):
        result[name], result[f"{name}_spread"] = round(us, 2), round(spread, 2)
    return result


def row(at: int, device: Device, meter: CardMeter, columns: list[str]) -> Row:
    """One group through every search, and the last race."""
    name, m, k, widths, rank_ = SIZES[at]
    group = group_of(Layer(name, name, m, k, widths, rank_))
    key = key_of(group, Options(), device, torch.cuda.get_device_name())
    job = Job(key.group, key.tier, "inductor")
    result: Row = {"group": name, "m": m, "k": k, "widths": list(widths), "rank": rank_}
    ranked = rank(group, device, ("library", *measured_kinds(key)))
    found = {"model": pick(ranked, group).schedule or Schedule("library")}
    for effort in ("quick", "full"):
        if effort in columns:
            outcome = search(key, device, meter, EFFORTS[effort], EFFORTS[effort].seconds)
            found[effort] = outcome.entry.schedule if outcome.entry is not None else found["model"]
            result[f"{effort}_s"] = round(outcome.seconds, 1)
            result[f"{effort}_measured"] = len({each.schedule for each in outcome.raced})
            result[f"{effort}_failures"] = outcome.failures
            result[f"{effort}_why"] = outcome.why
    if "exhaustive" in columns and at in EXHAUSTIVE:
        schedules = everything(key, device)
        result["legal"] = len(schedules)
        found["exhaustive"] = fastest(meter, job, schedules)
    result |= {f"{name}_schedule": each.kind for name, each in found.items()}
    result |= {f"{name}_pools": str(each.pools) for name, each in found.items()}
    return result | timed(group, found, columns)


def summary(rows: list[Row]) -> Row:
    """Geometric means of what was found over the best of an exhaustive run, and over the model's choice."""
    whole = [each for each in rows if "exhaustive" in each]
    of_best = {
        f"{name}_of_exhaustive": round(geometric_mean(each[name] / each["exhaustive"] for each in whole), 4)
        for name in ("model", "quick", "full")
        if whole and all(name in each for each in whole)
    }
    names = [name for name in ("quick", "full") if all(name in each for each in rows)]
    of_model = {f"{name}_of_model": round(geometric_mean(r[name] / r["model"] for r in rows), 4) for name in names}
    return of_best | of_model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--columns", default="compile,max_autotune,quick,full,exhaustive")
    parser.add_argument("--groups", default=",".join(map(str, range(len(SIZES)))), help="places in the list of sizes")
    arguments = parser.parse_args()
    device, columns = profile(torch.device("cuda"), None), arguments.columns.split(",")
    torch._inductor.config.max_autotune_gemm_backends = "TRITON,ATEN"
    out = Path(arguments.out)
    rows: list[Row] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        meter = CardMeter(device)
        try:
            for at in map(int, arguments.groups.split(",")):
                new = {"at": at, **row(at, device, meter, columns)}
                rows = sorted([new, *(each for each in rows if each["at"] != at)], key=lambda each: each["at"])
                print(json.dumps({key: value for key, value in new.items() if "pools" not in key}), flush=True)
                body = {**facts(), "unit": "us", "note": NOTE, "summary": summary(rows), "rows": rows}
                out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        finally:
            meter.close()
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
