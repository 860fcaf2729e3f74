"""The cost model held to measurement on an H200: the groups of layers.py, schedules of every kind over their spaces.

    python benchmarks/cost_model.py --out benchmarks/results/cost_model.json
    python benchmarks/cost_model.py --resume FILE --out FILE       # goes on with the groups that FILE lacks
    python benchmarks/cost_model.py --predict FILE --out FILE      # what the model says now; needs no card

Everything is compiled in parallel, ahead of what is timed. Each schedule is checked against fp64; all of a group are
timed in turns, with operands rotated out of L2. The file is written after each group; accuracy.py reads it.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from accuracy import accuracy, line, sample
from calls import call_of, drawn, exact_results, wrong
from candidates import DEVICE, build_one, candidates, compact
from layers import LAYERS, Layer, group_of
from timing import captured, facts, interleaved_us, sets_needed

from fusioncc.autotune import pick
from fusioncc.cost_models import estimate
from fusioncc.group import Group
from fusioncc.packing import PACKED
from fusioncc.schedule import Candidate, Schedule

Row = dict[str, Any]
SAME = ("card", "driver", "torch", "triton")
"""Facts that all rows of a file share."""


def timed(group: Group, schedules: Sequence[Schedule]) -> list[Row]:
    """``us`` and ``spread`` of each schedule, or what is ``wrong`` with it."""
    count = sets_needed(2 * group.k * (group.m + sum(group.members[main].n for main in group.mains)))
    sets = [drawn(group, seed, "cuda") for seed in range(count)]
    exact = exact_results(group, sets[0])
    problems = [wrong(group, schedule, sets[0], exact) for schedule in schedules]
    del exact
    right = [schedule for schedule, problem in zip(schedules, problems, strict=True) if not problem]
    pool = torch.cuda.graph_pool_handle()
    graphs = [captured([call_of(group, schedule, named) for named in sets], pool) for schedule in right]
    times = interleaved_us(graphs, target_ms=24.0, rounds=6)
    rows = iter([{"us": round(us, 2), "spread": round(spread, 2)} for us, spread in times])
    return [{"wrong": problem} if problem else next(rows) for problem in problems]


def measured(
    layers: Sequence[Layer],
    executor: Executor,
    build: Callable[[tuple[Group, Schedule]], str],
    timed: Callable[[Group, Sequence[Schedule]], list[Row]],
    limit: float,
) -> Iterator[Row]:
    """A row for each layer, in order. None is begun that would pass ``limit`` seconds from the start on if it took as
    long as the longest so far; those behind it are still being compiled while one is timed."""
    end, longest = time.monotonic() + limit, 0.0
    groups = [group_of(layer) for layer in layers]
    planned = list(executor.map(candidates, groups))
    jobs = [(group, schedule) for group, schedules in zip(groups, planned, strict=True) for schedule in schedules]
    problems = executor.map(build, jobs, timeout=end - time.monotonic())
    for layer, group, schedules in zip(layers, groups, planned, strict=True):
        try:
            errors = list(islice(problems, len(schedules)))
        except TimeoutError:
            return
        began = time.monotonic()
        if began + longest > end:
            return
        times = iter(timed(group, [schedule for schedule, error in zip(schedules, errors, strict=True) if not error]))
        rows = [
            {"schedule": compact(schedule), **({"error": error} if error else next(times))}
            for schedule, error in zip(schedules, errors, strict=True)
        ]
        yield predicted({"layer": msgspec.to_builtins(layer), "schedules": rows})
        longest = max(longest, time.monotonic() - began)


def predicted(row: Row) -> Row:
    """The row with what the model says of it now: the time of each schedule, and which of those that were timed the
    planner would choose (its place in the list). Kinds that move weights are not chosen unless they are asked for."""
    group = group_of(msgspec.convert(row["layer"], Layer))
    rows: list[Row] = []
    estimated: list[tuple[Candidate, int]] = []
    for at, each in enumerate(row["schedules"]):
        schedule = msgspec.convert(each["schedule"], Schedule)
        found = estimate(group, schedule, DEVICE)
        rows.append({**each, "predicted": round(found.us, 2) if found else None})
        if found and "us" in each and schedule.kind not in PACKED:
            estimated.append((Candidate(schedule.kind, True, "", found.us, schedule, found), at))
    first: dict[str, tuple[Candidate, int]] = {}
    for candidate, at in sorted(estimated, key=lambda each: each[0].estimate.us):
        first.setdefault(candidate.kind, (candidate, at))
    choice = pick(tuple(candidate for candidate, _ in first.values()), group)
    return {"layer": row["layer"], "chosen": first[choice.kind][1], "schedules": rows}


def lacking(layers: Sequence[Layer], rows: Sequence[Row]) -> list[Layer]:
    """The layers that no row is of."""
    found = {msgspec.convert(row["layer"], Layer) for row in rows}
    return [layer for layer in layers if layer not in found]


def written(body: Row) -> str:
    """A result file: one schedule a line. Lists come last, in the file and in each of its rows."""
    rows = [_opened(row, "schedules") + ",\n".join(map(json.dumps, row["schedules"])) + "]}" for row in body["rows"]]
    return _opened(body, "rows") + ",\n".join(rows) + "]}\n"


def _opened(body: Row, last: str) -> str:
    """JSON up to the first element of the list that comes last."""
    return json.dumps({**body, last: []}).removesuffix("]}") + "\n"


def resumed(before: Row, now: dict[str, str]) -> Row:
    """The body of an earlier file, to go on with.

    Raises:
        SystemExit: it was measured on another card or with other versions.
    """
    other = [name for name in SAME if before[name] != now[name]]
    if other:
        raise SystemExit(f"not measured here: {other[0]} {before[other[0]]!r}, now {now[other[0]]!r}")
    return before


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of compiling and timing")
    parser.add_argument("--resume", type=Path, help="a result file to go on with")
    parser.add_argument("--predict", type=Path, help="a result file to predict anew")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    if arguments.predict:
        body = json.loads(arguments.predict.read_text())
        out.write_text(written({**body, "rows": [predicted(row) for row in body["rows"]]}))
        return
    body = {**facts(), "unit": "us", "rows": []}
    if arguments.resume:
        body = resumed(json.loads(arguments.resume.read_text()), body)
    spawn = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(mp_context=spawn, initializer=os.nice, initargs=(10,))  # the timing comes first
    try:
        for row in measured(lacking(LAYERS, body["rows"]), executor, build_one, timed, arguments.limit):
            body["rows"].append(row)
            out.write_text(written(body))
            print(line(accuracy([sample(row)])), flush=True)
    finally:
        executor.shutdown(cancel_futures=True)
    print(f"{len(lacking(LAYERS, body['rows']))} of {len(LAYERS)} groups left")


if __name__ == "__main__":
    main()
