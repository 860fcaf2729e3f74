"""What tuning says of itself: bars on a terminal, a line elsewhere, a row for everything measured."""

import csv
import io
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fusioncc.schedule import Schedule
from fusioncc.tuning.database import Database
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.measuring import Failed, Job, Race, Timed
from fusioncc.tuning.outcome import Observer
from fusioncc.tuning.progress import COLUMNS, Bars, CsvLog, Summary, observer_for
from fusioncc.tuning.tune import Means, Tuned, Tuner
from tests.cost_models.groups import lora
from tests.tuning.entries import DATE, DEVICE, key
from tests.tuning.fake_meter import Clock, FakeMeter

KEYS = [key(lora(64, 4096, 14336, 16)), key(lora(64, 1024, 1024, 16))]


def tuned(folder: Path, observer: Observer, clock: Clock, seconds: float = 200.0) -> Tuned:
    """Two groups, of which some schedules fail."""
    order: dict[Schedule, str] = {}

    def fault(schedule: Schedule) -> str:
        return order.setdefault(schedule, ("", "wrong", "", "hang", "")[len(order) % 5])

    meter = FakeMeter(clock, library=10.0, fault=fault)
    means = Means(DEVICE, KEYS[0].card, lambda: meter, EFFORTS["quick"], seconds, (observer,), clock, lambda: DATE)
    return Tuner(Database(folder)).tune(KEYS, means)


def test_bars_on_a_terminal(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    clock = Clock()
    shown = Bars(console, clock)
    done = tuned(tmp_path / "tuned", shown, clock)
    text = screen.getvalue()
    assert "64x4096 bf16 → 14336 r16" in text and "for library" in text and "s left" in text and "1/2" in text
    failed = sum(sum(outcome.failures.values()) for outcome in done.outcomes)
    last = [line for line in text.splitlines() if "tuned" in line][-1]
    assert "2 groups tuned" in last and f"{failed} failed (" in last and "hang" in last and "wrong" in last


def test_a_line_of_the_log_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    silent = Console(file=io.StringIO(), force_terminal=False)
    chosen = observer_for(silent, first_rank=True)
    assert isinstance(chosen, Summary)
    assert isinstance(observer_for(Console(file=io.StringIO(), force_terminal=True), first_rank=True), Bars)
    assert isinstance(observer_for(Console(file=io.StringIO(), force_terminal=True), first_rank=False), Summary)
    with caplog.at_level(logging.INFO, "fusioncc.tuning"):
        tuned(tmp_path / "tuned", chosen, Clock())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("2 groups tuned, ") and "2 groups faster than library" in line


def test_groups_whose_library_fails_are_counted(tmp_path: Path) -> None:
    class NoLibrary(FakeMeter):
        def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
            found = super().race(job, schedules, seconds)
            return replace(found, library=Failed("crash", "gone")) if job.group == KEYS[0].group else found

    said: list[str] = []
    meter, summary = NoLibrary(Clock(), library=10.0), Summary(said.append)
    means = Means(DEVICE, KEYS[0].card, lambda: meter, EFFORTS["quick"], 200.0, (summary,), meter.clock, lambda: DATE)
    Tuner(Database(tmp_path / "tuned")).tune(KEYS, means)
    assert ", 0 failed, library failed for 1 group (1 crash), 1 group faster than library, " in said[0]


def test_an_interrupt_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    class Interrupted(Clock):
        def __call__(self) -> float:
            if self.now > 5.0:
                raise KeyboardInterrupt
            return self.now

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "tuned", Bars(console, Clock()), Interrupted())
    assert screen.getvalue().count("\x1b[?25h") == screen.getvalue().count("\x1b[?25l") == 1, "the cursor is back"


def test_everything_measured_has_a_row(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    with CsvLog(path) as log:
        done = tuned(tmp_path / "tuned", log, Clock())
        before = path.read_text()
    rows = [*csv.DictReader(path.read_text(encoding="utf-8").splitlines())]
    assert before == path.read_text(), "written as it comes"
    raced = [each for outcome in done.outcomes for each in outcome.raced]
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(raced)
    for row, each in zip(rows, raced, strict=True):
        assert row["kind"] == each.schedule.kind and float(row["library_us"]) > 0
        if isinstance(each.result, Timed):
            assert row["result"] == "timed" and row["us"] == f"{each.result.time.us:.6g}"
            assert float(row["spread_us"]) > 0 and row["why"] == ""
        else:
            assert isinstance(each.result, Failed)
            assert (row["result"], row["us"], row["why"]) == (each.result.kind, "", each.result.why)
    assert {row["result"] for row in rows} == {"timed", "wrong", "hang"}
    assert {row["group"] for row in rows} == {"64x4096 bf16 → 14336 r16", "64x1024 bf16 → 1024 r16"}
    assert all("x" in row["tiles"] and "warps" in row["tiles"] for row in rows)
