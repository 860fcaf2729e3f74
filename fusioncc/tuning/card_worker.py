"""The worker of one card, as its parent sees it: there is always one, with the right job open, or an error."""

from collections.abc import Mapping
from dataclasses import dataclass

from fusioncc.device import Device
from fusioncc.errors import MeasuringError
from fusioncc.schedule import Schedule
from fusioncc.tuning.child import Child
from fusioncc.tuning.measuring import Job
from fusioncc.tuning.messages import Broken, Forget, FromBench, Open, Runs, Sample, Sampled, ToBench, Try

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = {ALLOCATOR[0]: "expandable_segments:True"}
"""Where a model holds most of the card, what is left is not to be lost between segments."""
LIBRARY = -1
"""The place of the vendor's kernels."""
ONE_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


@dataclass(frozen=True)
class Limits:
    """How long the worker of a card may take before it counts as hung, s."""

    start: float = 120.0
    """Until it has imported torch and has a context on the card."""
    open: float = 60.0
    """To draw the operands of a job."""
    library: float = 120.0
    """To compile, by Inductor, and time what would run otherwise."""
    attempt: float = 10.0
    """To load a schedule, which has been compiled, to check it and to time it."""
    sample: float = 5.0
    """To time it once more."""


class CardWorker:
    """Started when it is needed, and again when it has died. ``generation`` counts these: what one has tried, the next
    one does not know."""

    def __init__(self, device: Device, bench: tuple[str, ...], environment: Mapping[str, str], limits: Limits) -> None:
        self._device, self._bench, self._limits = device, bench, limits
        given = any(name in environment for name in ALLOCATOR)
        self._environment = {**environment, **({} if given else EXPANDABLE), **ONE_PROCESS}
        self._child: Child[FromBench] | None = None
        self._greeted = False
        self._job: Job | None = None
        self._library: float | None = None
        self.generation = 0

    def start(self) -> None:
        """Start it if it does not run, without waiting for it.

        Raises:
            MeasuringError: no process can be started.
        """
        if self._child is not None and self._child.alive:
            return
        self.close()
        self._child = Child(
            "fusioncc.tuning.bench_worker", *self._bench, answers=FromBench, environment=self._environment
        )
        self._greeted = False
        self.generation += 1

    def open(self, job: Job) -> None:
        """Have this job open.

        Raises:
            MeasuringError: there is no worker, or no room for the operands.
        """
        self.start()
        if not self._greeted:
            assert self._child is not None
            self._child.started(self._limits.start)
            self._greeted = True
        if self._job != job:
            self._job, self._library = None, None
            self._ask(Open(job, self._device), self._limits.open)
            self._job = job

    def knows(self, generation: int) -> bool:
        """Whether it is this one that runs."""
        return generation == self.generation and self._child is not None and self._child.alive

    def attempt(self, place: int, schedule: Schedule) -> tuple[Schedule, float]:
        """Build, check and time a schedule of the open job: as it ran, and us. From then on it has this place.

        Raises:
            MeasuringError: it has no time; of ``hang`` and ``crash`` the worker is gone.
        """
        answer = self._ask(Try(place, schedule), self._limits.attempt)
        assert isinstance(answer, Runs) and answer.schedule is not None
        return answer.schedule, answer.us

    def library(self) -> float:
        """The time of the vendor's kernels, us, which stay in place ``LIBRARY`` while the job is open.

        Raises:
            MeasuringError: as :meth:`attempt`.
        """
        if self._library is None:
            answer = self._ask(Try(LIBRARY, None), self._limits.library)
            assert isinstance(answer, Runs)
            self._library = answer.us
        return self._library

    def sample(self, place: int) -> float:
        """The time once more of what this worker has tried, us.

        Raises:
            MeasuringError: as :meth:`attempt`.
        """
        answer = self._ask(Sample(place), self._limits.sample)
        assert isinstance(answer, Sampled)
        return answer.us

    def forget(self, places: tuple[int, ...]) -> None:
        """These are not sampled any more.

        Raises:
            MeasuringError: the worker is gone.
        """
        self._ask(Forget(places), self._limits.sample)

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._child is not None:
            self._child.kill()
        self._child, self._job, self._library = None, None, None

    def _ask(self, request: ToBench, seconds: float) -> FromBench:
        if self._child is None:
            raise MeasuringError("crash", "the worker is gone")
        try:
            answer = self._child.ask(request, seconds)
        finally:
            if not self._child.alive:
                self.close()
        if isinstance(answer, Broken):
            self.close()
            raise MeasuringError("crash", answer.why)
        return answer
