"""The search for the schedule of one group: the model proposes, a meter measures, and the fastest that is confirmed is
named.

Clocks of a card drift from run to run, so a schedule is judged by its time as a part of what the vendor's kernels took
in the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

from fusioncc.autotune.choose import pruned
from fusioncc.cost_models.estimate import estimate
from fusioncc.device import Device
from fusioncc.schedule import Schedule
from fusioncc.tuning.candidates import WAITING, first_candidates, measured_kinds, waiting_candidates
from fusioncc.tuning.efforts import Effort
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Dropped, Failed, Job, Meter, Race, Timed
from fusioncc.tuning.neighbours import neighbours
from fusioncc.tuning.outcome import Outcome, Raced
from fusioncc.tuning.verdict import Findings, verdict

CONFIRMING = 0.15
"""Part of the time that is kept for the last race."""
WAITING_PLACES = 2
"""Of the first candidates, those of ``two_pool``, which are raced when the others are known."""
CONFIRMED = 2
"""Schedules in the last race."""
BATCH = 8
"""Neighbours in one race."""


def search(
    key: Key,
    device: Device,
    meter: Meter,
    effort: Effort,
    seconds: float,
    *,
    clock: Callable[[], float] = monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    tell: Callable[[Sequence[Raced]], None] = lambda raced: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Outcome:
    """Search for the best schedule of the group of ``key``, which was made of ``device``, in so many seconds.

    Unless a kind was forced, ``library`` is the outcome where nothing beats it by more than both spreads. ``effort`` of
    an entry is what was carried out: a local search that had no time to end counts as ``quick``, and what had no time
    for its first candidates keeps only a schedule that wins.

    Args:
        tell: is given what came of each race.
        meanwhile: is called when the first schedules are being compiled.
    """
    kinds = measured_kinds(key)
    begun = clock()
    running = _Search(key, device, meter, effort, begun + seconds, seconds * CONFIRMING, clock, tell, meanwhile)
    if not kinds:
        entry, why = None, "no schedule of it can be measured"
    elif seconds <= 0.0:
        entry, why, running.cut = None, "there was no time to measure anything", True
    else:
        entry, why = running.run(kinds, now)
    counts = pruned(key.group, device, kinds, key.tier)
    return Outcome(key, entry, why, tuple(running.raced), counts, clock() - begun, running.broken, running.cut)


def prepare(key: Key, device: Device, meter: Meter, effort: Effort) -> tuple[Schedule, ...]:
    """Have those schedules compiled that a search for this key measures first: the model's candidates, which are
    returned, and of ``two_pool``, which is raced when they are known, what follows if the likeliest wins."""
    kinds, job = measured_kinds(key), job_of(key)
    others = tuple(kind for kind in kinds if kind != WAITING)
    places = effort.candidates - WAITING_PLACES * (WAITING in kinds)
    proposed = first_candidates(key, device, places, others) if others else ()
    meter.prepare(job, proposed)
    if WAITING in kinds:
        likeliest = next(iter(proposed), None)
        meter.prepare(job, waiting_candidates(key, device, _waiting_places(kinds, effort), likeliest))
    return proposed


def job_of(key: Key) -> Job:
    """What a meter is asked for."""
    return Job(key.group, key.tier, "eager" if key.wishes.rest == "eager" else "inductor")


def _waiting_places(kinds: tuple[str, ...], effort: Effort) -> int:
    return effort.candidates if kinds == (WAITING,) else WAITING_PLACES


@dataclass(frozen=True)
class _Score:
    """The time of a schedule and its spread, as parts of the library's."""

    part: float
    spread: float

    def beats(self, other: "_Score") -> bool:
        return self.part + self.spread + other.spread < other.part


@dataclass
class _Search:
    key: Key
    device: Device
    meter: Meter
    effort: Effort
    deadline: float
    kept_s: float
    clock: Callable[[], float]
    tell: Callable[[Sequence[Raced]], None]
    meanwhile: Callable[[], None]
    raced: list[Raced] = field(default_factory=list)
    scores: dict[Schedule, _Score] = field(default_factory=dict)
    seen: set[Schedule] = field(default_factory=set)
    climbed: set[Schedule] = field(default_factory=set)
    """Those of which no neighbour was faster."""
    cut: bool = False
    """Whether a schedule that was to be measured had no time."""
    broken: Failed | None = None
    """How the vendor's kernels failed."""

    def run(self, kinds: tuple[str, ...], now: Callable[[], datetime]) -> tuple[Entry | None, str]:
        """What is to be kept, and why."""
        self._first(kinds)
        whole = not self.cut
        while True:
            ended = self.effort.local and whole and self._climb()
            best, race = self._confirmed()
            if not ended or not self.scores or self._fastest(1)[0] in self.climbed:
                break
        if self.broken is not None:
            return None, f"the vendor's kernels could not be timed: {self.broken.kind}: {self.broken.why}"
        found = Findings(tuple(self.raced), tuple(best), race, whole, "full" if ended else "quick")
        return verdict(self.key, self.device, found, now())

    def _first(self, kinds: tuple[str, ...]) -> None:
        """The schedules that every effort measures."""
        self.meter.begin()  # while the candidates are ranked
        proposed = prepare(self.key, self.device, self.meter, self.effort)
        self.meanwhile()
        self._race(proposed, self.kept_s)
        if WAITING in kinds:
            best, places = next(iter(self._fastest(1)), None), _waiting_places(kinds, self.effort)
            self._race(waiting_candidates(self.key, self.device, places, best), self.kept_s)

    def _climb(self) -> bool:
        """Measure the neighbours of the fastest schedule, until none gains more than the spreads; whether there was
        time for all of them."""
        best = next(iter(self._fastest(1)), None)
        while best is not None and self.broken is None:
            around = self._likeliest(neighbours(best, self.key, self.device))
            self.meter.prepare(job_of(self.key), tuple(around))
            better = None
            for at in range(0, len(around), BATCH):
                if better is None:
                    self._race(around[at : at + BATCH], self.kept_s)
                    better = self._better(best)
            if self.cut:
                return False
            if better is None:
                self.climbed.add(best)
            best = better
        return self.broken is None

    def _confirmed(self) -> tuple[list[Schedule], Race | None]:
        """The fastest schedules and their last race; where one fails in it, the next takes its place in another."""
        while True:
            best = self._fastest(CONFIRMED)
            race = self._race(best, 0.0)
            if race is None or all(each in self.scores for each in best):
                return best, race

    def _fastest(self, count: int) -> list[Schedule]:
        """So many of those that were timed, fastest first."""
        return sorted(self.scores, key=lambda each: self.scores[each].part)[:count]

    def _better(self, than: Schedule) -> Schedule | None:
        """The fastest schedule so far, where it is ahead of another by more than the spreads."""
        best = self._fastest(1)[0]
        return best if self.scores[best].beats(self.scores[than]) else None

    def _likeliest(self, schedules: tuple[Schedule, ...]) -> list[Schedule]:
        """Those that were not raced yet, predicted fastest first."""
        new = (each for each in schedules if each not in self.seen)
        timed = [(estimate(self.key.group, each, self.device, self.key.tier), each) for each in new]
        return [each for cost, each in sorted(timed, key=lambda pair: pair[0].us if pair[0] else float("inf"))]

    def _race(self, schedules: Sequence[Schedule], kept_s: float) -> Race | None:
        """Race schedules in the time that is left but for ``kept_s``; None where nothing was."""
        left = self.deadline - kept_s - self.clock()
        if not schedules or self.broken is not None:
            return None
        if left <= 0.0:
            self.cut = True
            return None
        race = self.meter.race(job_of(self.key), tuple(schedules), left)
        self.seen.update(schedules)
        if isinstance(race.library, Failed):
            self.broken = race.library
            return None
        came = []
        for schedule, result in zip(schedules, race.results, strict=True):
            if result is None:
                self.cut = True
                continue
            came.append(Raced(schedule, result, race.library))
            self._judge(schedule, result, race.library)
        self.raced += came
        self.tell(came)
        return race if came else None

    def _judge(self, schedule: Schedule, result: Timed | Dropped | Failed, library: Measured) -> None:
        if isinstance(result, Timed):
            time = result.time
            part = time.us / library.us
            spread = part * (time.spread_us / time.us + library.spread_us / library.us)
            self.scores[schedule] = _Score(part, spread)
        else:
            self.scores.pop(schedule, None)  # who failed once is not trusted
