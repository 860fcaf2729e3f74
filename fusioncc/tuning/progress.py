"""How tuning goes on, for people: bars on a terminal, or a line at the end; and a table of everything measured."""

import csv
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from fusioncc.in_words import counted, describe_group, describe_pools
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Dropped, Failed, Timed
from fusioncc.tuning.outcome import Observer, Outcome, Raced

COLUMNS = ("group", "kind", "tiles", "result", "us", "spread_us", "library_us", "why")
log = logging.getLogger("fusioncc.tuning")


def observer_for(console: Console, first_rank: bool) -> Observer:
    """What shows tuning: bars where the first rank has a terminal, else one line of the log."""
    return Bars(console) if first_rank and console.is_terminal else Summary()


class Summary(Observer):
    """One line when all is over: how many groups, how many schedules, which failures, how long."""

    def __init__(self, say: Callable[[str], None] = log.info, clock: Callable[[], float] = monotonic) -> None:
        self._say, self._clock = say, clock
        self._outcomes: list[Outcome] = []
        self._begun = 0.0

    def begin(self, keys: Sequence[Key], seconds: float) -> None:
        self._outcomes, self._begun = [], self._clock()

    def done(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)

    def end(self) -> None:
        self._say(in_one_line(self._outcomes, self._clock() - self._begun))


class Bars(Observer):
    """Groups that are done and time that is left; of the group in hand how many schedules were measured, and the best
    so far beside library."""

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        self._console, self._clock = console, clock
        self._summary = Summary(lambda line: console.print(line, markup=False, highlight=False), clock)
        self._progress: Progress | None = None
        self._seen: list[Raced] = []

    def begin(self, keys: Sequence[Key], seconds: float) -> None:
        self._summary.begin(keys, seconds)
        group = TextColumn("{task.description}", markup=False)
        columns = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), group)
        left = _TimeLeft(self._clock() + seconds, self._clock)
        self._progress = Progress(*columns, left, console=self._console, transient=True)
        self._task = self._progress.add_task("", total=len(keys))
        self._progress.start()

    def searching(self, key: Key, seconds: float) -> None:
        self._seen = []
        self._show(key)

    def raced(self, key: Key, raced: Sequence[Raced]) -> None:
        self._seen += raced
        self._show(key)

    def done(self, outcome: Outcome) -> None:
        self._summary.done(outcome)
        if self._progress is not None:
            self._progress.update(self._task, advance=1, refresh=True)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._summary.end()

    def _show(self, key: Key) -> None:
        if self._progress is not None:
            description = f"{describe_group(key.group)}: {best_so_far(self._seen)}"
            self._progress.update(self._task, description=description, refresh=True)


class _TimeLeft(ProgressColumn):
    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._deadline, self._clock = deadline, clock

    def render(self, task: Task) -> Text:
        return Text(f"{max(0.0, self._deadline - self._clock()):.0f} s left")


class CsvLog(Observer):
    """Everything that was measured, a row for each schedule in each race, written as it comes; a context manager.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)

    def __enter__(self) -> "CsvLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    def raced(self, key: Key, raced: Sequence[Raced]) -> None:
        for each in raced:
            schedule = each.schedule
            what = (describe_group(key.group), schedule.kind, describe_pools(schedule))
            self._rows.writerow((*what, *_result(each), f"{each.library.us:.6g}", _why(each)))
        self._file.flush()


def in_one_line(outcomes: Sequence[Outcome], seconds: float) -> str:
    """``4 groups tuned, 31 schedules measured, 2 failed (1 hang, 1 wrong), 3 groups faster than library, 52 s``; where
    it is the case also ``library failed for 1 group (1 memory)``."""
    failures: Counter[str] = Counter()
    for outcome in outcomes:
        failures.update(outcome.failures)
    measured = sum(len({each.schedule for each in outcome.raced}) for outcome in outcomes)
    broken: Counter[str] = Counter(outcome.broken.kind for outcome in outcomes if outcome.broken is not None)
    without = f"library failed for {counted(broken.total(), 'group')}{_by_kind(broken)}, " if broken else ""
    faster = sum(outcome.entry is not None and outcome.entry.schedule.kind != "library" for outcome in outcomes)
    return (
        f"{counted(len(outcomes), 'group')} tuned, {counted(measured, 'schedule')} measured, "
        f"{failures.total()} failed{_by_kind(failures)}, {without}"
        f"{counted(faster, 'group')} faster than library, {seconds:.0f} s"
    )


def _by_kind(failures: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items()))
    return f" ({kinds})" if kinds else ""


def best_so_far(raced: Sequence[Raced]) -> str:
    """``7 measured, split 20.1 us against 30.2 us for library``."""
    timed = [(each.result.time.us / each.library.us, each) for each in raced if isinstance(each.result, Timed)]
    if not timed:
        return f"{len(raced)} measured"
    part, best = min(timed, key=lambda each: each[0])
    us = best.library.us
    return f"{len(raced)} measured, {best.schedule.kind} {part * us:.1f} us against {us:.1f} us for library"


def _result(raced: Raced) -> tuple[str, str, str]:
    """The class of a result, its time and its spread."""
    if isinstance(raced.result, Timed):
        return "timed", f"{raced.result.time.us:.6g}", f"{raced.result.time.spread_us:.3g}"
    if isinstance(raced.result, Dropped):
        return "dropped", f"{raced.result.us:.6g}", ""
    return raced.result.kind, "", ""


def _why(raced: Raced) -> str:
    return raced.result.why if isinstance(raced.result, Failed) else ""
