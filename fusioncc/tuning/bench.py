"""The bench with a card: builds schedules, checks their results against fp64, and replays them in graphs.

All that is timed reads the same operands, drawn once for a job; the first set of them is also what results are checked
on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fusioncc.codegen.reference import reference
from fusioncc.device import Device
from fusioncc.errors import EmissionError, MeasuringError
from fusioncc.group import Group
from fusioncc.operand import Operand
from fusioncc.schedule import Schedule
from fusioncc.tuning.emitted import Built, built, named
from fusioncc.tuning.measuring import Job

SAMPLE_MS = 4.0
"""A sample takes about so long, or one replay."""


class CardBench:
    """On the card with this ``uuid``, which is the one at ``index`` if the environment is that of the parent."""

    def __init__(self, index: str, uuid: str) -> None:
        from fusioncc.runtime.card import take

        take(int(index), uuid)
        self._graphs: dict[int, tuple[Any, int]] = {}
        self._sets: list[Any] = []

    def open(self, job: Job, device: Device) -> None:
        from fusioncc.runtime.load import load
        from fusioncc.runtime.replay import SharedPool
        from fusioncc.runtime.room import drawn_sets, release

        self._graphs.clear()
        self._sets.clear()
        self._pool: Any = None
        release()
        self._job, self._device, self._group = job, device, named(job.group)
        self._library = reference(self._group, name="tuned_library", tier=job.tier)
        module = load(self._library.name, self._library.source)
        self._eager = module.eager
        self._sets = drawn_sets(module.draw, module.eager, sum(operand.bytes for operand in self._library.operands))
        self._pool = SharedPool()

    def attempt(self, place: int, schedule: Schedule | None) -> tuple[Schedule | None, float]:
        from fusioncc.runtime.room import in_room

        self.forget(place)
        with in_room():
            return (None, self._library_us(place)) if schedule is None else self._schedule_us(place, schedule)

    def sample(self, place: int) -> float:
        graph, times = self._graphs[place]
        return float(1000 * graph.ms(times) / len(graph.calls))

    def forget(self, place: int) -> None:
        self._graphs.pop(place, None)

    def _library_us(self, place: int) -> float:
        from fusioncc.runtime.library import library

        with library(self._eager, self._job.rest, self._group.fp32_precision) as run:
            return self._timed(place, run)

    def _schedule_us(self, place: int, schedule: Schedule) -> tuple[Schedule, float]:
        from fusioncc.runtime.build import build

        made = built(self._job, schedule, self._device, build)
        self._require_right(made)
        return made.schedule, self._timed(place, made.module.launch)

    def _require_right(self, made: Built) -> None:
        from fusioncc.runtime.rightness import problem_of

        if made.emitted.operands != self._library.operands:
            raise EmissionError("its kernels are a part of the group only")
        by_rows = [has_rows(operand, self._group) for operand in made.emitted.operands]
        problem = problem_of(made.module, self._sets[0], by_rows)
        if problem:
            raise MeasuringError("wrong", problem)

    def _timed(self, place: int, run: Callable[..., Any]) -> float:
        from fusioncc.runtime.replay import captured, repeats

        graph = captured([partial(run, *operands) for operands in self._sets], self._pool.handle)
        self._graphs[place] = graph, repeats(graph, SAMPLE_MS)
        return self.sample(place)


def has_rows(operand: Operand, group: Group) -> bool:
    """Whether an operand goes by the rows of X: X itself, and of what epilogues read that with a row for each or, as
    rotations have for the rows of a sequence, for a part that repeats. One row is as good for any block."""
    ends = {each for epilogue in group.epilogues for each in epilogue.operands}
    return operand == group.lhs or (operand in ends and len(operand.shape) == 2 and operand.shape[0] > 1)
