"""Schedules are compiled ahead, several at once, by processes that may die of what they compile."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from fusioncc.device import Device
from fusioncc.errors import MeasuringError
from fusioncc.schedule import Schedule
from fusioncc.tuning.child import Child
from fusioncc.tuning.measuring import Failed, Job
from fusioncc.tuning.messages import Build, FromCompiler, Runs

MAX_WORKERS = 16
"""Each holds torch and Triton: some 500 MB."""
START_S = 120.0
"""For the imports of all of them at once, from a cold disk."""
Wanted = tuple[Job, Schedule]
Outcome = Schedule | Failed
"""The schedule with as many workers as are resident, as far as its binary tells; or why it does not build."""


class CompilePool:
    """At most ``workers`` processes; each is started when there is something for it to do.

    Args:
        module: what such a process runs.
        limit_s: time for one schedule, behind which it counts as one that does not build.
    """

    def __init__(
        self,
        module: str,
        device: Device,
        environment: Mapping[str, str],
        workers: int | None = None,
        limit_s: float = 120.0,
    ) -> None:
        self._module, self._device, self._limit_s = module, device, limit_s
        self._environment = {**environment, "CUDA_VISIBLE_DEVICES": ""}
        self._most = workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._changed = threading.Condition()
        self._outcomes: dict[Wanted, Future[Outcome]] = {}
        self._waiting: list[Wanted] = []
        self._idle = 0
        self._closed = False
        self._children: list[Child[FromCompiler] | None] = []

    def compiled(self, job: Job, schedules: Sequence[Schedule], *, first: bool) -> list[Future[Outcome]]:
        """What comes of each schedule, of which those that are not known yet are compiled: ``first`` or last of all
        that wait."""
        wanted = [(job, schedule) for schedule in schedules]
        with self._changed:
            new = [each for each in dict.fromkeys(wanted) if each not in self._outcomes]
            self._outcomes |= {each: Future() for each in new}
            self._waiting += new
            if first:
                now = set(wanted)
                self._waiting.sort(key=lambda each: each not in now)
            while not self._closed and len(self._children) < min(self._most, len(self._waiting) + self._busy()):
                self._children.append(None)
                self._idle += 1
                threading.Thread(target=self._work, args=(len(self._children) - 1,), daemon=True).start()
            self._changed.notify_all()
            return [self._outcomes[each] for each in wanted]

    def close(self) -> None:
        """Stop; what waits stays without an outcome."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            for child in self._children:
                if child is not None:
                    child.kill()

    def _busy(self) -> int:
        return len(self._children) - self._idle

    def _work(self, place: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                wanted = self._waiting.pop(0)
                self._idle -= 1
            outcome = self._outcome(place, *wanted)
            with self._changed:
                self._idle += 1
                self._outcomes[wanted].set_result(outcome)

    def _outcome(self, place: int, job: Job, schedule: Schedule) -> Outcome:
        """Ask the process in this place, a new one where there is none or the last one died."""
        try:
            answer = self._child(place).ask(Build(job, schedule, self._device), self._limit_s)
        except MeasuringError as error:
            said = str(error) if error.kind == "build" else f"its compiler did not come back: {error}"
            return Failed("build", said)
        assert isinstance(answer, Runs) and answer.schedule is not None
        return answer.schedule

    def _child(self, place: int) -> Child[FromCompiler]:
        last = self._children[place]
        if last is not None and last.alive:
            return last
        child: Child[FromCompiler] = Child(self._module, answers=FromCompiler, environment=self._environment)
        with self._changed:
            self._children[place] = child
            if self._closed:
                child.kill()
        child.started(START_S)
        return child
