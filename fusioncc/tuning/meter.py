"""The meter for a CUDA card. Nothing runs in the process of the user: kernels are compiled in processes that see no
card, and run in one that may hang, crash and be replaced."""

import contextlib
import threading
import time

from fusioncc.device import Device
from fusioncc.errors import MeasuringError
from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import CardWorker, Limits
from fusioncc.tuning.child import environment
from fusioncc.tuning.compile_pool import CompilePool
from fusioncc.tuning.measuring import Job, Race
from fusioncc.tuning.race import Racing

BENCH = "fusioncc.tuning.bench:CardBench"
COMPILER = "fusioncc.tuning.compile_worker"


class CardMeter:
    """Measures on one card. Its processes are started when there is something for them to do, and have the environment
    that this one has when the meter is made: the same caches, the same cards.

    Args:
        device: the profile of the card.
        index: the card, as this process numbers them; None: the current one.
        limits: how long its worker may take for each thing.
        compilers: how many schedules are compiled at once; None: as many as there are cores, up to 16.
        bench: factory of the bench in the worker, ``module:name``, and its arguments, in the place of the card.
        compiler: module that compiles, in the place of Triton.
    """

    def __init__(
        self,
        device: Device,
        index: int | None = None,
        *,
        limits: Limits | None = None,
        compilers: int | None = None,
        bench: tuple[str, ...] = (),
        compiler: str = COMPILER,
    ) -> None:
        now = environment()
        self._worker = CardWorker(device, bench or (BENCH, *_card(index)), now, limits or Limits())
        self._pool = CompilePool(compiler, device, now, compilers)
        self._one_race = threading.Lock()

    def begin(self) -> None:
        """As :meth:`fusioncc.tuning.measuring.Meter.begin`."""
        if self._one_race.acquire(blocking=False):
            try:
                with contextlib.suppress(MeasuringError):  # the race will say so
                    self._worker.start()
            finally:
                self._one_race.release()

    def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
        """As :meth:`fusioncc.tuning.measuring.Meter.prepare`."""
        self._pool.compiled(job, schedules, first=False)

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        """As :meth:`fusioncc.tuning.measuring.Meter.race`. Only ``library`` is waited for when the time is up: in the
        first race of a job Inductor compiles it. Kinds that move weights (``packed``, ``k_concat``, ``merged``) have no
        module that is all of the group, and count as not built.
        """
        deadline = time.monotonic() + seconds
        with self._one_race:
            compiled = self._pool.compiled(job, schedules, first=True)
            return Racing(self._worker, job, schedules, deadline).run(compiled)

    def close(self) -> None:
        """Stop every process that was started for it, which also happens when this one ends. It is not used again."""
        self._worker.close()
        self._pool.close()


def _card(index: int | None) -> tuple[str, str]:
    from fusioncc.runtime.card import identity

    found, uuid = identity(index)
    return str(found), uuid
