"""One race: each schedule as soon as it is compiled, then rounds through those that are right and not slow.

The worker is asked for one thing at a time, so that whoever it dies of is known: that one has failed, and the others go
on in the next worker with the times they have.
"""

import contextlib
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from fusioncc.errors import MeasuringError
from fusioncc.runtime.samples import summary
from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import LIBRARY, CardWorker
from fusioncc.tuning.compile_pool import Outcome
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.measuring import Dropped, Failed, Job, Race, Result, Timed

SLOW = 1.5
"""Times the fastest so far, from which on a first look is enough."""
ROUNDS, LEAST_ROUNDS = 15, 5
LANE_S = 0.1
"""About what the rounds take of each that is raced."""


@dataclass(eq=False)
class Lane:
    """What is known of one that is raced; the vendor's kernels have no schedule."""

    place: int
    schedule: Schedule | None
    us: float | None = None
    """In a first look; None: it did not come to that."""
    samples: list[float] = field(default_factory=list)
    generation: int = 0
    """The worker that has tried it."""
    failed: Failed | None = None
    dropped: bool = False

    @property
    def runs(self) -> bool:
        return self.us is not None and self.failed is None and not self.dropped

    def measured(self) -> Measured | None:
        return Measured(*summary(self.samples)) if self.samples else None

    def result(self) -> Result | None:
        if self.failed is not None:
            return self.failed
        if self.dropped:
            return Dropped(self.us or 0.0)
        time = self.measured()
        return None if time is None or self.schedule is None else Timed(self.schedule, time)


class Racing:
    """The race of some schedules of a job until about ``deadline``, of the monotonic clock."""

    def __init__(self, worker: CardWorker, job: Job, schedules: Sequence[Schedule], deadline: float) -> None:
        self._worker, self._job, self._deadline = worker, job, deadline
        self._lanes = [Lane(at, schedule) for at, schedule in enumerate(schedules)]
        self._library = Lane(LIBRARY, None)
        self._over: MeasuringError | None = None
        """Why there is no worker any more."""

    def run(self, compiled: Sequence[Future[Outcome]]) -> Race:
        """All of it, unless the vendor's kernels fail: then there is nothing to be faster than, and it ends.
        ``compiled`` is what comes of each schedule."""
        self._attempt(self._library)
        self._look(dict(zip(self._lanes, compiled, strict=True)))
        self._drop(lane for lane in self._lanes if lane.runs)
        self._rounds()
        self._forget(self._lanes)
        return self._race()

    def _look(self, compiled: dict[Lane, Future[Outcome]]) -> None:
        """Try each schedule once it is compiled, while there is time for that."""
        while compiled and not self._ended:
            racing = sum(lane.runs for lane in (*self._lanes, self._library))
            left = self._deadline - time.monotonic() - LANE_S * racing
            if left <= 0 or not wait(compiled.values(), left, FIRST_COMPLETED).done:
                return
            lane = next(lane for lane, future in compiled.items() if future.done())
            outcome = compiled.pop(lane).result()
            if isinstance(outcome, Failed):
                lane.failed = outcome
                continue
            lane.schedule = outcome
            self._attempt(lane)
            self._drop([lane] if lane.runs else [])

    def _drop(self, lanes: Iterable[Lane]) -> None:
        """Those of ``lanes`` that are slow are not raced."""
        best = min((lane.us for lane in (*self._lanes, self._library) if lane.runs and lane.us), default=0.0)
        slow = [lane for lane in lanes if (lane.us or 0.0) > SLOW * best]
        for lane in slow:
            lane.dropped = True
        self._forget(slow)

    def _rounds(self) -> None:
        turns, generator = [*self._lanes, self._library], random.Random(0)
        for number in range(ROUNDS):
            if number >= LEAST_ROUNDS and self._late:
                return
            generator.shuffle(turns)
            for lane in turns:
                if lane.runs and not self._ended:
                    self._sample(lane)

    @property
    def _ended(self) -> bool:
        """Whether there is no worker any more, or nothing to be faster than."""
        return self._over is not None or self._library.failed is not None

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _sample(self, lane: Lane) -> None:
        if not self._worker.knows(lane.generation):
            if self._late and lane is not self._library:
                return
            self._attempt(lane)
        if lane.runs and not self._ended:
            try:
                lane.samples.append(self._worker.sample(lane.place))
            except MeasuringError as error:
                lane.failed = Failed(error.kind, str(error))

    def _attempt(self, lane: Lane) -> None:
        try:
            self._worker.open(self._job)
        except MeasuringError as error:
            self._over = error
            return
        try:
            if lane.schedule is None:
                lane.us = self._worker.library()
            else:
                lane.schedule, lane.us = self._worker.attempt(lane.place, lane.schedule)
            lane.generation = self._worker.generation
        except MeasuringError as error:
            lane.failed = Failed(error.kind, str(error))

    def _forget(self, lanes: Iterable[Lane]) -> None:
        """The worker need not hold these any longer; nothing is said of one that dies now."""
        known = tuple(lane.place for lane in lanes if lane.us is not None and self._worker.knows(lane.generation))
        with contextlib.suppress(MeasuringError):
            if known:
                self._worker.forget(known)

    def _race(self) -> Race:
        results = [lane.result() for lane in self._lanes]
        if self._over is not None and self._over.kind == "memory":
            no_room = Failed("memory", str(self._over))
            results = [no_room if result is None else result for result in results]
        library = self._library.failed or self._library.measured()
        if library is None:
            assert self._over is not None, "otherwise it was sampled, late or not"
            library = Failed(self._over.kind, str(self._over))
        return Race(library, tuple(results))
