"""A run of benchmarks/cost_model.py in which nothing is compiled and times are made up; and what a schedule runs."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cost_model
import msgspec
import pytest
import torch
from calls import call_of, drawn, exact_results, wrong
from candidates import EXACT, PLACES, compact, spread
from cost_model import lacking, measured, predicted, resumed, written
from layers import LAYERS, Layer, group_of

from fusioncc.cost_models import estimate
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.runtime.interpreter import mended
from fusioncc.schedule import Schedule

pytestmark = pytest.mark.exhaustive

H200 = get_device("h200")
FACTS = {"card": "CARD", "driver": "1", "torch": "2", "triton": "3", "date": "2026-01-02", "command": "it"}
PLAIN = [layer for layer in LAYERS if not layer.rank][:3]
"""Groups that are planned quickly."""
Row = dict[str, Any]


def builds(job: tuple[Group, Schedule]) -> str:
    return "spills" if job[1].kind == "horizontal" else ""


def doubled(group: Group, schedules: Sequence[Schedule]) -> list[Row]:
    """Everything takes twice as long as predicted; what ``streams`` computes is wrong."""
    found = [(schedule.kind, estimate(group, schedule, H200)) for schedule in schedules]
    return [
        {"wrong": "NaN"} if kind == "streams" else {"us": 2 * each.us, "spread": 0.1} for kind, each in found if each
    ]


def rows_of(layers: Sequence[Layer], limit: float = 60.0, timed: Callable[..., list[Row]] = doubled) -> list[Row]:
    with ThreadPoolExecutor(1) as executor:
        return list(measured(layers, executor, builds, timed, limit))


def test_a_row_has_every_candidate() -> None:
    (row,) = rows_of(PLAIN[:1])
    group = group_of(PLAIN[0])
    kinds: dict[str, list[Row]] = {}
    for each in row["schedules"]:
        kinds.setdefault(each["schedule"]["kind"], []).append(each)
    assert set(kinds) == {"library", "streams", "concat", "horizontal", "packed"}
    assert all(each["error"] == "spills" and "us" not in each for each in kinds["horizontal"])
    assert all(each["wrong"] == "NaN" and "us" not in each for each in kinds["streams"])
    assert len(kinds["concat"]) == PLACES
    for each in kinds["concat"]:
        schedule = msgspec.convert(each["schedule"], Schedule)
        assert each["predicted"] == pytest.approx(estimate(group, schedule, H200).us, abs=0.01)
        assert each["us"] == pytest.approx(2 * each["predicted"], abs=0.02)
    assert row["schedules"][row["chosen"]]["schedule"]["kind"] in ("library", "concat")
    assert msgspec.convert(row["layer"], Layer) == PLAIN[0]


def test_the_limit_counts_the_longest_group_so_far() -> None:
    def slow(group: Group, schedules: Sequence[Schedule]) -> list[Row]:
        time.sleep(0.8)
        return doubled(group, schedules)

    assert len(rows_of(PLAIN)) == 3
    assert len(rows_of(PLAIN, 1.5, slow)) == 1
    assert rows_of(PLAIN, 0.0) == []


def test_a_compile_that_does_not_end_stops_the_run() -> None:
    def stuck(job: tuple[Group, Schedule]) -> str:
        time.sleep(0.01 if job[0].signature() == group_of(PLAIN[0]).signature() else 0.4)
        return ""

    with ThreadPoolExecutor(1) as executor:
        rows = list(measured(PLAIN, executor, stuck, doubled, 1.5))
        executor.shutdown(cancel_futures=True)
    assert [row["layer"]["m"] for row in rows] == [PLAIN[0].m]


def test_a_run_and_its_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "cost_model.json"
    monkeypatch.setattr(cost_model, "LAYERS", PLAIN[:2])
    monkeypatch.setattr(cost_model, "ProcessPoolExecutor", lambda **_: ThreadPoolExecutor(1))
    monkeypatch.setattr(cost_model, "facts", lambda: dict(FACTS))
    monkeypatch.setattr(cost_model, "build_one", builds)
    seen = []

    def timed(group: Group, schedules: Sequence[Schedule]) -> list[Row]:
        seen.append(group.m)
        return doubled(group, schedules)

    monkeypatch.setattr(cost_model, "timed", timed)
    run(monkeypatch, "--out", str(out))
    first = json.loads(out.read_text())
    assert first | FACTS == first and len(first["rows"]) == 2
    monkeypatch.setattr(cost_model, "LAYERS", PLAIN)
    run(monkeypatch, "--out", str(out), "--resume", str(out))
    second = json.loads(out.read_text())
    assert second["rows"][:2] == first["rows"] and len(second["rows"]) == 3
    assert seen == [layer.m for layer in PLAIN]
    run(monkeypatch, "--out", str(out), "--predict", str(out))
    assert json.loads(out.read_text()) == second


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cost_model.py", *arguments])
    cost_model.main()


def test_only_the_same_card_and_versions_resume() -> None:
    body = {**FACTS, "rows": []}
    assert resumed(body, {**FACTS, "date": "2026-01-03"}) is body
    with pytest.raises(SystemExit, match=r"^not measured here: triton '3', now '3\.7'$"):
        resumed(body, {**FACTS, "triton": "3.7"})


def test_measured_groups_are_not_lacking() -> None:
    rows = [{"layer": json.loads(json.dumps(msgspec.to_builtins(layer)))} for layer in LAYERS[3:]]
    assert lacking(LAYERS, rows) == list(LAYERS[:3])


def test_new_predictions_replace_old_ones() -> None:
    (row,) = rows_of(PLAIN[:1])
    stale = {**row, "chosen": -1, "schedules": [{**each, "predicted": 1.0} for each in row["schedules"]]}
    assert predicted(stale) == row


def test_of_equal_predictions_the_first_is_chosen() -> None:
    (row,) = rows_of(PLAIN[:1])
    chosen = row["schedules"][row["chosen"]]
    assert predicted({**row, "schedules": [*row["schedules"], chosen]})["chosen"] == row["chosen"]


def test_a_schedule_survives_the_file() -> None:
    group = group_of(LAYERS[0])
    schedules = [schedule for kind in EXACT for schedule in spread(group, kind)]
    text = written({"unit": "us", "rows": [{"layer": {}, "schedules": [{"schedule": compact(s)} for s in schedules]}]})
    assert text.count("\n") == len(schedules) + 2
    (row,) = json.loads(text)["rows"]
    assert [msgspec.convert(each["schedule"], Schedule) for each in row["schedules"]] == schedules


SMALL = Layer("any", "q/k/v", 20, 128, (48, 16, 16), 4, bias=True)
BARE = Layer("any", "q/k/v", 20, 128, (48, 16, 16), 0)


@pytest.mark.parametrize(("layer", "kind"), [(SMALL, kind) for kind in EXACT if kind != "packed"] + [(BARE, "packed")])
def test_what_each_kind_runs_is_right(layer: Layer, kind: str) -> None:
    group = group_of(layer)
    named = drawn(group, 0, "cpu")
    exact = exact_results(group, named)
    schedule = spread(group, kind)[0]
    with mended():
        assert wrong(group, schedule, named, exact) == ""
        moved = tuple(result.roll(1, 0) for result in exact)
        assert wrong(group, schedule, named, moved).startswith("RMS error 1.")
        results = call_of(group, schedule, named)()
    assert [result.shape for result in results] == [(20, 48), (20, 16), (20, 16)]


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer is made up, and what a card has; the rest of ``timed`` runs under the interpreter."""
    group = group_of(SMALL)
    schedules = [*spread(group, "library"), *spread(group, "inline")[:2]]
    monkeypatch.setattr(cost_model, "drawn", lambda group, seed, device: drawn(group, seed, "cpu"))
    monkeypatch.setattr(cost_model, "sets_needed", lambda size: 2)
    monkeypatch.setattr(cost_model, "captured", lambda calls, pool: [call() for call in calls])
    monkeypatch.setattr(
        cost_model, "interleaved_us", lambda graphs, **_: [(len(graphs), at) for at in range(len(graphs))]
    )
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    bad = schedules[1]
    monkeypatch.setattr(cost_model, "wrong", lambda *given: "far off" if given[1] is bad else wrong(*given))
    with mended():
        found = cost_model.timed(group, schedules)
    assert found == [{"us": 2, "spread": 0}, {"wrong": "far off"}, {"us": 2, "spread": 1}]


def test_operands_have_the_layout_of_the_group() -> None:
    group = group_of(SMALL)
    named = drawn(group, 0, "cpu")
    operands = [group.lhs, *(member.weight for member in group.members)]
    operands += [member.bias for member in group.members if member.bias]
    assert all(named[each.node].shape == each.shape and named[each.node].stride() == each.strides for each in operands)
    assert len(named) == len(operands) == 1 + 9 + 3
    assert torch.equal(named["x"], drawn(group, 0, "cpu")["x"]) and not torch.equal(
        named["x"], drawn(group, 1, "cpu")["x"]
    )
