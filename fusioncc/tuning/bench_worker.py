"""The process that measures on one card: ``python -m fusioncc.tuning.bench_worker MODULE:FACTORY ARGUMENT...``.

It does one thing at a time, on request, so that its parent always knows what it died of. The factory makes the bench,
which has the card; tests give one that has none.
"""

import importlib
import sys
from typing import Protocol

from fusioncc.device import Device
from fusioncc.errors import EmissionError, KernelBuildError, MeasuringError
from fusioncc.schedule import Schedule
from fusioncc.tuning.measuring import Job
from fusioncc.tuning.messages import Broken, Done, Forget, FromBench, Open, Refused, Runs, Sample, Sampled, ToBench, Try
from fusioncc.tuning.pipes import Parent


class Bench(Protocol):
    """Runs schedules of one job at a time. What fails without harm raises an error of ours; after any other error the
    bench is not asked again."""

    def open(self, job: Job, device: Device) -> None:
        """Draw the operands of a job; whatever was there of another one goes."""

    def attempt(self, place: int, schedule: Schedule | None) -> tuple[Schedule | None, float]:
        """Build, check and time a schedule or, of None, the vendor's kernels: as it ran, and us."""

    def sample(self, place: int) -> float:
        """The time of one execution once more, us."""

    def forget(self, place: int) -> None:
        """Give up what has this place, if anything has."""


def main(factory: str, *arguments: str) -> None:
    parent: Parent[ToBench] = Parent(ToBench)
    module, _, name = factory.partition(":")
    bench: Bench = getattr(importlib.import_module(module), name)(*arguments)
    parent.answer(Done())
    for request in parent.requests():
        answer = answered(bench, request)
        parent.answer(answer)
        if isinstance(answer, Broken):
            sys.exit(1)


def answered(bench: Bench, request: ToBench) -> FromBench:
    """What the bench says to a request, or why it cannot. A ``RuntimeError`` may be one of CUDA's, and most of those
    leave no context that could be used again."""
    try:
        return _done(bench, request)
    except MeasuringError as error:
        return Refused(error.kind, str(error))
    except (EmissionError, KernelBuildError) as error:
        return Refused("build", str(error))
    except RuntimeError as error:
        return Broken((str(error).strip() or type(error).__name__).splitlines()[0])


def _done(bench: Bench, request: ToBench) -> FromBench:
    match request:
        case Open(job, device):
            bench.open(job, device)
        case Try(place, schedule):
            return Runs(*bench.attempt(place, schedule))
        case Sample(place):
            return Sampled(bench.sample(place))
        case Forget(places):
            for place in places:
                bench.forget(place)
    return Done()


if __name__ == "__main__":
    main(*sys.argv[1:])
