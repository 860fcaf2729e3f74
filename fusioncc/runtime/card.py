"""Which card is meant: its index depends on the environment of a process, its UUID does not."""

from typing import Any

import torch

from fusioncc.errors import MeasuringError

cuda: Any = torch.cuda


def identity(index: int | None) -> tuple[int, str]:
    """Index, in this process, and UUID of a card; of None, the current one."""
    found = cuda.current_device() if index is None else index
    return found, str(cuda.get_device_properties(found).uuid)


def take(index: int, uuid: str) -> None:
    """Make the card with this UUID, which should be the one at ``index``, the current one, and create its context.

    Raises:
        MeasuringError: this process does not see it.
    """
    count = cuda.device_count()
    for at in (*([index] if index < count else []), *range(count)):
        if identity(at)[1] == uuid:
            cuda.set_device(at)
            cuda.synchronize()
            return
    raise MeasuringError("crash", f"none of the {count} cards seen here is {uuid}")
