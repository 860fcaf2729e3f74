"""What the parent asks of its workers, and what they answer."""

from typing import Literal

import msgspec

from fusioncc.device import Device
from fusioncc.schedule import Schedule
from fusioncc.tuning.measuring import Job


class Build(msgspec.Struct, tag=True, frozen=True):
    """Compile a schedule for a device."""

    job: Job
    schedule: Schedule
    device: Device


class Open(msgspec.Struct, tag=True, frozen=True):
    """Draw the operands of a job; what was there of another one goes."""

    job: Job
    device: Device


class Try(msgspec.Struct, tag=True, frozen=True):
    """Build a schedule of the open job, check its results, and time it briefly; None: the vendor's kernels. From then
    on it has a place."""

    place: int
    schedule: Schedule | None


class Sample(msgspec.Struct, tag=True, frozen=True):
    """Time what has this place once more."""

    place: int


class Forget(msgspec.Struct, tag=True, frozen=True):
    """What has one of these places is not sampled any more."""

    places: tuple[int, ...]


class Done(msgspec.Struct, tag=True, frozen=True):
    """Started, opened or forgotten."""


class Runs(msgspec.Struct, tag=True, frozen=True):
    """A schedule builds or gave the right results: as it is compiled, and the time of one execution where it was
    timed."""

    schedule: Schedule | None
    us: float = 0.0


class Sampled(msgspec.Struct, tag=True, frozen=True):
    us: float


class Refused(msgspec.Struct, tag=True, frozen=True):
    """What was asked for failed, and the worker is as before."""

    kind: Literal["build", "wrong", "hang", "crash", "memory"]
    why: str


class Broken(msgspec.Struct, tag=True, frozen=True):
    """What was asked for failed, and the worker ends: its context of the card may be broken."""

    why: str


ToBench = Open | Try | Sample | Forget
FromBench = Done | Runs | Sampled | Refused | Broken
FromCompiler = Done | Runs | Refused
