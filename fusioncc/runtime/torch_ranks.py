"""The ranks of ``torch.distributed``, over a group of their own, so that no collective of the user's can meet ours."""

from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch.distributed as dist

from fusioncc.errors import TuningError

T = TypeVar("T")


class TorchRanks:
    """All ranks. One that does not answer in time has parted from the others, and from then on each is told so at
    once."""

    def __init__(self, world: Any) -> None:
        self.rank = dist.get_rank(world)
        self._world = world
        self._group: Any = None
        self._parted = ""

    def gathered(self, mine: T, wait_s: float) -> list[T]:
        """What each rank gives, by rank; ``mine`` is pickled. For the last to come is waited so long.

        Raises:
            TuningError: a rank did not answer (``ranks``).
        """
        if not self._parted:
            try:
                return self._gathered(mine, timedelta(seconds=wait_s))
            except RuntimeError as error:  # also what torch.distributed raises of its own
                self._parted = next(iter(str(error).splitlines()), type(error).__name__)
        raise TuningError("ranks", f"a rank did not answer: {self._parted}")

    def _gathered(self, mine: T, wait: timedelta) -> list[T]:
        if self._group is None:
            self._group = dist.new_group(timeout=wait, backend="gloo")
        dist.monitored_barrier(self._group, timeout=wait)  # the group's own time is that of the first
        theirs: list[Any] = [None] * dist.get_world_size(self._world)
        dist.all_gather_object(theirs, mine, group=self._group)
        return theirs


@lru_cache(maxsize=1)
def _of(world: Any) -> TorchRanks:
    return TorchRanks(world)


def torch_ranks() -> TorchRanks | None:
    """The ranks of this job; None where ``torch.distributed`` is not initialised, or has one."""
    return _of(dist.group.WORLD) if has_ranks() else None


def has_ranks() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first_rank() -> bool:
    """Whether this process speaks for its job: the first rank, or the only process."""
    return not has_ranks() or dist.get_rank() == 0
