"""Traced kernels: every tile is recorded once, by the worker that ran it; the rest of the module stays as it was."""

import json
import runpy
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fusioncc.codegen import EmittedModule, emit
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.codegen import reference
from tests.codegen.cases import DESCRIBED, DOWN, Lora, Main, bundled, group, side_by_side, split
from tests.codegen.golden_cases import golden
from tests.codegen.interleaving import interleaved
from tests.codegen.test_two_pool import SCHEDULES as TWO_POOL

pytestmark = pytest.mark.exhaustive

MIXED = group(70, 128, Main(128, (Lora(12),)), Main(64, ()), Main(64, (Lora(16),)))
PLAIN = group(70, 128, Main(128, ()), Main(64, ()))
SCHEDULES: dict[str, tuple[Group, Schedule]] = {
    "split": (MIXED, split(MIXED, DESCRIBED, DOWN, k_split=2)),
    "split bundle": (MIXED, bundled(split(MIXED, DESCRIBED, DOWN, k_split=2))),
    "concat": (PLAIN, side_by_side(PLAIN, "concat", DESCRIBED, DOWN)),
    "horizontal": (PLAIN, side_by_side(PLAIN, "horizontal", DESCRIBED, DOWN)),
}
PERSISTENT = TWO_POOL | SCHEDULES
GOLDEN = golden()


def module_of(value: Group, schedule: Schedule, trace: bool = True) -> EmittedModule:
    return emit(value, schedule, name="module", tier="fp32", why="a test", trace=trace)


def launched(module: ModuleType, emitted: EmittedModule, value: Group, seed: int) -> list[torch.Tensor]:
    tensors = reference.draw(emitted, value)
    with interleaved(seed, resident=3):
        return list(module.launch(*(tensors[operand] for operand in emitted.operands)))


def tiles_of(value: Group, schedule: Schedule, m: int) -> Counter[tuple[str, str]]:
    """How many tiles of each member the persistent kernels have, by role and the name of what they make."""
    counts: Counter[tuple[str, str]] = Counter()
    several = len(value.mains) > 1
    for pool in schedule.pools:
        rows = -(-m // pool.tile.block_m)
        if pool.role == "main":
            for main in pool.members:
                made = f"out_{value.mains.index(main)}" if several else "out"
                counts["main", made] += rows * -(-value.members[main].n // pool.tile.block_n)
        elif schedule.kind == "two_pool":
            counts["down", ""] += rows * pool.k_split
    return counts


@pytest.mark.parametrize("name", PERSISTENT)
def test_every_tile_is_recorded_once(load, name: str) -> None:
    """The interpreter's clock counts its readings: two for each tile, none left over, is one record a tile."""
    value, schedule = PERSISTENT[name]
    emitted = module_of(value, schedule)
    module = load(emitted)
    outputs = launched(module, emitted, value, seed=1)
    plain = module_of(value, schedule, trace=False)
    for one, other in zip(outputs, launched(load(plain), plain, value, seed=2), strict=True):
        assert torch.equal(one, other)

    table = [row for _, _, rows in module.TRACES for row in rows.tolist()]
    times = {time for _, _, *times in table for time in times}
    assert len(times) == 2 * len(table)
    if not any(pool.late for pool in schedule.pools):  # a turn without a tile reads the clock as well
        assert times == set(range(1, next(module.TICKS)))
    assert all(start < end for _, _, start, end in table)
    recorded: Counter[tuple[str, str]] = Counter()
    for _, tiles, rows in module.TRACES:
        assert len(rows) == sum(count for _, _, count in tiles)
        for role, made, count in tiles:
            recorded[role, "" if role == "down" else made] += count
    assert recorded == tiles_of(value, schedule, value.m)


@pytest.mark.parametrize("name", PERSISTENT)
def test_a_worker_runs_one_tile_at_a_time(load, name: str) -> None:
    value, schedule = PERSISTENT[name]
    emitted = module_of(value, schedule)
    module = load(emitted)
    launched(module, emitted, value, seed=3)
    workers = max(pool.workers or 0 for pool in schedule.pools)
    for _, _, rows in module.TRACES:
        lanes: dict[int, list[tuple[int, int]]] = {}
        for worker, _, start, end in rows.tolist():
            lanes.setdefault(worker, []).append((start, end))
        assert set(lanes) <= set(range(workers))
        for spans in lanes.values():
            spans.sort()
            assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_down_workers_run_the_down_tiles(load) -> None:
    value, schedule = TWO_POOL["stripes"]
    emitted = module_of(value, schedule)
    module = load(emitted)
    launched(module, emitted, value, seed=4)
    ((_, (main, down), rows),) = module.TRACES
    assert (main[0], down[:2]) == ("main", ("down", "y"))
    assert {row[0] for row in rows[main[2] :].tolist()} <= {0, 1}
    assert {row[0] for row in rows[: main[2]].tolist()} - {0, 1}, "main workers have tiles"


def test_the_events(load) -> None:
    value, schedule = TWO_POOL["bundle"]
    emitted = module_of(value, schedule)
    module = load(emitted)
    launched(module, emitted, value, seed=5)
    trace = json.loads(json.dumps(module.chrome_trace(module.TRACES)))
    ((kernel, tiles, rows),) = module.TRACES
    events: dict[str, list[dict[str, Any]]] = {"M": [], "X": []}
    for event in trace["traceEvents"]:
        events[event["ph"]].append(event)
    assert events["M"][0]["args"] == {"name": kernel}
    assert {each["tid"] for each in events["M"][1:]} == {each["tid"] for each in events["X"]}
    assert Counter(each["name"] for each in events["X"]) == {f"{role} {made}": count for role, made, count in tiles}
    assert {(each["args"]["member"], each["args"]["tile"]) for each in events["X"]} == {
        (made, tile) for _, made, count in tiles for tile in range(count)
    }
    zero = int(rows[:, 2].min())
    found = sorted((each["tid"], each["ts"], each["dur"]) for each in events["X"])
    assert found == sorted(
        (worker, (start - zero) / 1000, (end - start) / 1000) for worker, _, start, end in rows.tolist()
    )


def test_launches_have_a_lane_each(load) -> None:
    """Kernels of one text are told apart, and only the last call is kept."""
    value = group(70, 128, Main(128, (Lora(16),)), Main(64, (Lora(16),)))
    emitted = module_of(value, split(value, DESCRIBED, DOWN, k_split=2))
    module = load(emitted)
    for seed in range(2):
        launched(module, emitted, value, seed)
    assert [(kernel, tiles[0][1]) for kernel, tiles, _ in module.TRACES] == [
        ("main_0", "out_0"),
        ("main_0", "out_1"),
    ]
    assert {each["pid"] for each in module.chrome_trace(module.TRACES)["traceEvents"]} == {0, 1}


@pytest.mark.parametrize("name", ["two_pool_stripes", "two_pool_queue", "split_tma", "split_bundle_tma"])
def test_a_trace_only_adds_lines(name: str) -> None:
    value, schedule, tier = GOLDEN[name]
    source = emit(value, schedule, name=name, tier=tier, why="A golden file.", trace=True).source
    rest = iter(source.splitlines())
    assert all(line in rest for line in (Path(__file__).parent / "golden" / f"{name}.py").read_text().splitlines())
    assert source.count("record(trace_ptr, ") == {"two_pool_stripes": 3, "two_pool_queue": 3}.get(name, 2)


@pytest.mark.parametrize("name", [name for name in GOLDEN if not any(pool.workers for pool in GOLDEN[name][1].pools)])
def test_nothing_to_trace(name: str) -> None:
    value, schedule, tier = GOLDEN[name]
    plain, traced = (emit(value, schedule, name=name, tier=tier, why="k", trace=trace) for trace in (False, True))
    assert plain == traced and not traced.traced


def test_what_a_module_says_of_itself() -> None:
    traced, plain = (module_of(*TWO_POOL["queue"], trace=trace) for trace in (True, False))
    assert traced.traced and traced.opaque
    assert not plain.traced and not plain.opaque
    (launch,) = traced.launches
    assert [arg.kind for arg in launch.args].count("trace") == 1
    without = tuple(arg for arg in launch.args if arg.kind != "trace")
    assert replace(launch, args=without) == plain.launches[0] and traced.buffers == plain.buffers


def test_the_script_writes_a_trace(tmp_path: Path, capsys, monkeypatch) -> None:
    value, schedule, tier = GOLDEN["split_tma"]
    path, out = tmp_path / "traced.py", tmp_path / "out.json"
    path.write_text(emit(value, schedule, name="traced", tier=tier, why="a test", trace=True).source)
    monkeypatch.setattr(sys, "argv", [str(path), "--trace", str(out)])
    runpy.run_path(str(path), run_name="__main__")
    right, said = capsys.readouterr().out.splitlines()
    spans = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert right.startswith("traced: right for M=")
    assert said == f"traced: trace of {len(spans)} tiles in {out}"
    assert {event["tid"] for event in spans} == {0, 1, 2}
