"""Bytes that each launch moves through the memory and through the L2.

A launch reads each operand from memory once, plus what the L2 cannot hold while its tiles walk over it. What an earlier
launch of the group left in the L2 is read from there: a tensor counts as warm while the bytes moved since its last use,
and its own, fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.launch import Launch
from fusioncc.device import Device


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch: read from memory, found warm in the L2, written."""

    read: int
    warm: int
    written: int

    @property
    def dram(self) -> int:
        """Bytes through the memory."""
        return self.read + self.written

    @property
    def moved(self) -> int:
        """Bytes that the launch asks for when nothing is found warm."""
        return self.read + self.warm + self.written

    def dram_us(self, device: Device) -> float:
        """Time on the memory bus: reads faster, writes slower, so that a copy runs at the device's bandwidth."""
        per_us = device.dram_gbps * 1e3
        return (self.read / c.READ_GAIN + self.written * (2 - 1 / c.READ_GAIN)) / per_us


def warm_names(launches: Sequence[Launch], device: Device) -> tuple[frozenset[str], ...]:
    """For each launch, the names of the tensors it finds in the L2."""
    room = c.L2_RESIDENT * device.l2_bytes
    clock = 0
    last: dict[str, int] = {}
    answer = []
    for launch in launches:
        answer.append(
            frozenset(t.name for t in launch.reads if t.name in last and clock - last[t.name] + t.bytes <= room)
        )
        clock += sum(t.bytes for t in (*launch.reads, *launch.writes))
        last |= {t.name: clock for t in (*launch.reads, *launch.writes)}
    return tuple(answer)


def blocks(size: int, block: int) -> int:
    """Blocks that cover ``size``; of a symbol as well."""
    return -(-size // block)


def sweeps(rows: int, block_m: int, group_m: int) -> int:
    """How often a weight that the L2 cannot hold is read from memory under grouped ordering: a group of ``group_m`` row
    blocks sweeps all columns while its rows of X stay in the L2, and leaves nothing of the weight to the next."""
    return blocks(blocks(rows, block_m), group_m)


def streamed_names(launch: Launch, device: Device) -> frozenset[str]:
    """Names of the weights that the L2 cannot hold while the tiles of a launch walk over them."""
    if not launch.m or launch.body == "down":
        return frozenset()
    room = c.L2_RESIDENT * device.l2_bytes
    weights = (tensor for tensor in launch.reads if tensor.kind in ("weight", "held"))
    return frozenset(weight.name for weight in weights if weight.bytes // launch.batch > room)


def counted(launch: Launch, warm: frozenset[str], streamed: frozenset[str], times: int) -> Traffic:
    """Traffic of a launch that finds ``warm`` tensors in the L2 and reads the ``streamed`` ones so many times. Compares
    no sizes, so that they may be symbols."""
    return Traffic(
        read=sum(t.bytes * (times if t.name in streamed else 1) for t in launch.reads if t.name not in warm),
        warm=sum(t.bytes for t in launch.reads if t.name in warm),
        written=sum(t.bytes for t in launch.writes),
    )


def traffic(launch: Launch, warm: frozenset[str], device: Device, block_m: int, group_m: int) -> Traffic:
    """Traffic of a launch whose row blocks have ``block_m`` rows and go in groups of ``group_m``."""
    return counted(launch, warm, streamed_names(launch, device), sweeps(launch.m, block_m, group_m))
