"""A meter without a card: each schedule has a hidden true time, the model's distorted, and some schedules fail.

Compiling and racing take time of a clock that is faked too. Every race has clocks of its own: all its times are longer
or shorter by one factor.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fusioncc.cost_models.estimate import estimate
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.measuring import Dropped, Failed, Job, Race, Result, Timed
from tests.tuning.entries import DEVICE

COMPILE_S, COMPILERS = 2.0, 4
RACE_S = {"library": 0.3, "time": 0.3, "wrong": 0.1, "crash": 3.0, "hang": 2.0, "memory": 0.1, "build": 0.0}
"""What a result costs, s."""
Fault = Callable[[Schedule], str]
"""In which way a schedule fails; empty: it does not."""


@dataclass
class Clock:
    """Seconds that pass only when something takes time."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def no_fault(schedule: Schedule) -> str:
    return ""


def factor(seed: int, what: object, sigma: float) -> float:
    return random.Random(f"{seed} {what!r}").lognormvariate(0.0, sigma)


@dataclass
class FakeMeter:
    clock: Clock
    seed: int = 0
    fault: Fault = no_fault
    noise: float = 0.003
    """Of one measurement, as a part of it."""
    sigmas: Mapping[str, float] = field(default_factory=lambda: {"kind": 0.1, "blocks": 0.05, "schedule": 0.01})
    library: float = 1.0
    """How much slower the vendor's kernels are than predicted."""
    device: Device = DEVICE
    races: list[tuple[Schedule, ...]] = field(default_factory=list)
    ready: dict[Schedule, float] = field(default_factory=dict)
    """When a schedule is compiled, or will be."""
    compilers: list[float] = field(default_factory=lambda: [0.0] * COMPILERS)
    begun: int = 0
    closed: int = 0

    def true_us(self, group: Group, schedule: Schedule, tier: str = "fp32") -> float:
        """What the schedule takes, us."""
        predicted = estimate(group, schedule, self.device, tier)
        assert predicted is not None
        if schedule.kind == "library":
            return predicted.us * self.library
        blocks = [
            (pool.role, pool.tile.block_m, pool.tile.block_n, pool.tile.tma)
            for pool in schedule.pools
            if pool.role != "down"
        ]
        known = {"kind": schedule.kind, "blocks": (schedule.kind, blocks), "schedule": schedule}
        off = [factor(self.seed, known[name], sigma) for name, sigma in self.sigmas.items()]
        return predicted.us * off[0] * off[1] * off[2]

    def begin(self) -> None:
        self.begun += 1

    def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
        for schedule in schedules:
            if schedule not in self.ready:
                at = self.compilers.index(min(self.compilers))
                self.compilers[at] = max(self.compilers[at], self.clock.now) + COMPILE_S
                self.ready[schedule] = self.compilers[at]

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        self.races.append(schedules)
        end = self.clock.now + seconds
        chance = random.Random(f"{self.seed} {len(self.races)}")
        drift = chance.uniform(0.9, 1.2)
        self.prepare(job, schedules)

        def measured(us: float) -> Measured:
            return Measured(us * drift * chance.gauss(1.0, self.noise), us * drift * self.noise)

        self.clock.now += RACE_S["library"]
        library = measured(self.true_us(job.group, Schedule("library"), job.tier))
        results: list[Result | None] = []
        for schedule in schedules:
            fault = self.fault(schedule)
            takes = max(0.0, self.ready[schedule] - self.clock.now) + RACE_S[fault or "time"]
            if self.clock.now + takes > end:
                results.append(None)
                continue
            self.clock.now += takes
            us = self.true_us(job.group, schedule, job.tier)
            if fault in ("wrong", "crash", "hang", "memory", "build"):
                results.append(Failed(fault, f"injected for {schedule.kind}"))  # type: ignore[arg-type]
            elif us > 3 * library.us:
                results.append(Dropped(us))
            else:
                results.append(Timed(self.as_run(schedule), measured(us)))
        return Race(library, tuple(results))

    def as_run(self, schedule: Schedule) -> Schedule:
        """Half as many workers of ``two_pool`` are resident as the model expects, where that can be."""
        if schedule.kind != "two_pool" or self.seed % 2 == 0:
            return schedule
        return replace(schedule, pools=tuple(replace(pool, late=0) for pool in schedule.pools))

    def close(self) -> None:
        self.closed += 1
