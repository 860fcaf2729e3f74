"""What the search asks of whoever measures: some schedules of one group, raced against the vendor's kernels."""

from dataclasses import dataclass
from typing import Literal, Protocol

from fusioncc.group import Group
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Measured


@dataclass(frozen=True)
class Job:
    """A group as its kernels find it, without names and with its number of rows (or a hint for it); the rounding tier
    its kernels are emitted in; and what runs the rest of the graph, in whose form ``library`` is timed."""

    group: Group
    tier: str
    rest: Literal["inductor", "eager"]


@dataclass(frozen=True)
class Timed:
    """A schedule that gave the right results, as it ran (with as many workers as were resident), and its time."""

    schedule: Schedule
    time: Measured


@dataclass(frozen=True)
class Dropped:
    """A schedule that gave the right results, and was so slow in a first short look that it was not raced."""

    us: float


@dataclass(frozen=True)
class Failed:
    """A schedule that cost only itself. ``build``: it does not compile, fit or spills; ``wrong``: its results are off,
    or it wrote outside its buffers; ``hang``: it did not come back in time; ``crash``: it took the process or the
    context of the card with it; ``memory``: the card has no room for its operands."""

    kind: Literal["build", "wrong", "hang", "crash", "memory"]
    why: str


Result = Timed | Dropped | Failed


@dataclass(frozen=True)
class Race:
    """What came of each schedule, in the order given, and what the vendor's kernels took in the same run. A schedule
    for which no time was left is None, as is one that was not tried any more because these had failed."""

    library: Measured | Failed
    results: tuple[Result | None, ...]


class Meter(Protocol):
    """Measures schedules, on a card or, in tests, on none."""

    def begin(self) -> None:
        """Begin to start whatever races, which takes its time; returns at once."""

    def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
        """Begin to compile schedules that may be raced later; returns at once."""

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        """Check each schedule, then time those that are right beside the vendor's kernels, in turns. Takes about so
        many seconds at most, compilation that is still to come included; never raises for what a schedule does."""

    def close(self) -> None:
        """Stop every process that was started for it."""
