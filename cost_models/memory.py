"""Footprint of a group: kernels, bytes moved, and peak live bytes by liveness over the list of launches."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.cost_models.launches import launches
from fusioncc.group import Group
from fusioncc.schedule import Footprint, Schedule


class Step(Protocol):
    """What runs at once: a :class:`Launch`, or anything else that reads and writes tensors."""

    @property
    def reads(self) -> tuple[Tensor, ...]: ...

    @property
    def writes(self) -> tuple[Tensor, ...]: ...


def peak_bytes(sequence: Sequence[Step], keep_inputs: bool = False) -> int:
    """Largest sum of live tensors during any launch. Weights are not counted: they live before, during and after, and
    without fusioncc too. What a schedule holds beside them is counted in every launch.

    An input dies at its last use (``keep_inputs``: the caller still holds it); an intermediate lives from the launch
    that writes it to the last that reads it; an output from its launch on.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    tensors = {}
    for index, launch in enumerate(sequence):
        for tensor in (*launch.reads, *launch.writes):
            if tensor.kind != "weight":
                tensors[tensor.name] = tensor
                first.setdefault(tensor.name, 0 if tensor.kind in ("input", "held") else index)
                last[tensor.name] = index
    final = len(sequence) - 1
    held = {t.name for t in tensors.values() if t.kind in ("held", "output") or (keep_inputs and t.kind == "input")}
    change = [0] * (final + 2)
    for tensor in tensors.values():
        change[first[tensor.name]] += tensor.bytes
        change[(final if tensor.name in held else last[tensor.name]) + 1] -= tensor.bytes
    return max(accumulate(change))


def moved_bytes(sequence: Sequence[Launch]) -> int:
    """Every launch's operands and results once each, as if nothing stayed in the L2 between launches."""
    return sum(tensor.bytes for launch in sequence for tensor in (*launch.reads, *launch.writes))


def footprint(group: Group, schedule: Schedule) -> Footprint:
    """What ``group`` costs under ``schedule`` (``library``: before any rewrite)."""
    sequence = launches(group, schedule)
    return Footprint(kernels=len(sequence), bytes=moved_bytes(sequence), peak_bytes=peak_bytes(sequence))
