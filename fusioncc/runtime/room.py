"""Room on a card that may be full of a model already: how many operand sets fit, and an error where none does."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fusioncc.errors import MeasuringError
from fusioncc.runtime.replay import sets_needed

SHARE = 0.5
"""Part of the free memory that operand sets may take: the rest is for results, a reference in fp64 and the vendor's
workspaces."""

Operands = list[torch.Tensor]


@contextmanager
def in_room() -> Iterator[None]:
    """Inside, memory that the card does not have is an error of ours.

    Raises:
        MeasuringError: of kind ``memory``.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MeasuringError("memory", str(error).strip().splitlines()[0]) from error


def drawn_sets(draw: Callable[[int], Operands], call: Callable[..., Any], bytes_of_one: int) -> list[Operands]:
    """Sets of operands, with each of which ``call`` has run: as many as it takes to have none in the L2, or as many as
    the card has room for, one at least. With fewer, part of what is read comes from the L2, for all that are timed.

    Raises:
        MeasuringError: of kind ``memory``: not even one fits.
    """
    free, _ = torch.cuda.mem_get_info()
    count = min(sets_needed(bytes_of_one), max(1, int(SHARE * free) // max(bytes_of_one, 1)))
    while count > 1:
        try:
            return _drawn(draw, call, count)
        except torch.OutOfMemoryError:
            count //= 2
        torch.cuda.empty_cache()
    with in_room():
        return _drawn(draw, call, 1)


def release() -> None:
    """Give back memory that nothing holds any more."""
    gc.collect()
    torch.cuda.empty_cache()


def _drawn(draw: Callable[[int], Operands], call: Callable[..., Any], count: int) -> list[Operands]:
    sets = [draw(seed) for seed in range(count)]
    with torch.no_grad():
        for operands in sets:
            call(*operands)
    torch.cuda.synchronize()
    return sets
