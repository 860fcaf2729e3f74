"""A bench without a card, and a compiler without Triton: the kind of a schedule says what becomes of it.

A number is its time in us. ``wrong``, ``build``, ``memory``, ``cuda``, ``hang``, ``exit`` and ``abort`` happen when it
is tried; behind ``10 then`` they happen when it is sampled, and behind ``compiler`` where it is compiled. Nothing here
loads torch, which takes seconds.
"""

import os
import sys
import time
from pathlib import Path

from fusioncc.autotune.layer_times import Layer
from fusioncc.device import Device, get_device
from fusioncc.errors import KernelBuildError, MeasuringError
from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import LIBRARY
from fusioncc.tuning.measuring import Job
from fusioncc.tuning.messages import Build, Done, Refused, Runs
from fusioncc.tuning.pipes import Parent

BENCH, COMPILER = "tests.tuning.scripted:ScriptedBench", "tests.tuning.scripted"
DEVICE = get_device("h200")
LIBRARY_US = 20.0


def job(tier: str = "fp32") -> Job:
    """Its tier says what becomes of drawing its operands."""
    return Job(Layer(256, (512,), 8).group(64).signature(), tier, "eager")


def happens(event: str) -> None:
    match event:
        case "wrong":
            raise MeasuringError("wrong", "out: RMS error 2.00")
        case "build":
            raise KernelBuildError("kernel inline_0 spills 1000 registers", spilled=True)
        case "memory":
            raise MeasuringError("memory", "CUDA out of memory. Tried to allocate 2 GiB.")
        case "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might ...")
        case "hang":
            time.sleep(1000)
        case "exit":
            print("the driver is gone", flush=True)  # to the errors, since answers are not printed
            os._exit(7)
        case "abort":
            os.abort()


class ScriptedBench:
    """Notes what it is asked, with its process, in the file ``notes``."""

    def __init__(self, notes: str, library: str = str(LIBRARY_US)) -> None:
        self._notes, self._library = Path(notes), library
        self._kinds: dict[int, str] = {}

    def open(self, job: Job, device: Device) -> None:
        self._note(f"open {job.tier}")
        happens(job.tier)
        self._kinds.clear()

    def attempt(self, place: int, schedule: Schedule | None) -> tuple[Schedule | None, float]:
        kind = self._library if schedule is None else schedule.kind
        self._note(f"try {'library' if place == LIBRARY else kind}")
        happens(kind)
        self._kinds[place] = kind
        return schedule, float(kind.split()[0])

    def sample(self, place: int) -> float:
        us, _, event = self._kinds[place].partition(" then ")
        self._note(f"sample {self._kinds[place]}")
        happens(event)
        return float(us)

    def forget(self, place: int) -> None:
        self._note(f"forget {self._kinds.pop(place)}")

    def _note(self, line: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{os.getpid()} {line}\n")


def compile_scripted() -> None:
    parent: Parent[Build] = Parent(Build)
    parent.answer(Done())
    for request in parent.requests():
        where, _, event = request.schedule.kind.partition(" ")
        if where == "compiler":
            if event == "build":
                parent.answer(Refused("build", "kernel inline_0 does not compile"))
                continue
            happens(event)
        parent.answer(Runs(request.schedule))


if __name__ == "__main__":
    compile_scripted()
    sys.exit()
