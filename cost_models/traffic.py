"""Bytes that each launch moves through the memory and through the L2.

A launch reads each operand from memory once, plus what the L2 cannot hold while its tiles walk over it. What an earlier
launch of the group left in the L2 is read from there: a tensor counts as warm while the bytes moved since its last use,
and its own, fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

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


def sweeps(rows: int, block_m: int, group_m: int, weight_bytes: int, device: Device) -> int:
    """How often the weight is read from memory under grouped ordering.

    A group of ``group_m`` row blocks sweeps all columns while its rows of X stay in the L2; the next group finds the
    weight there only if it fits.
    """
    return 1 if weight_bytes <= c.L2_RESIDENT * device.l2_bytes else ceil(ceil(rows / block_m) / group_m)


def traffic(launch: Launch, warm: frozenset[str], device: Device, block_m: int, group_m: int) -> Traffic:
    """Traffic of a launch whose row blocks have ``block_m`` rows and go in groups of ``group_m``."""
    read = warmed = 0
    for tensor in launch.reads:
        if tensor.name in warm:
            warmed += tensor.bytes
        elif tensor.kind in ("weight", "held") and launch.m and launch.body != "down":
            read += tensor.bytes * sweeps(launch.m, block_m, group_m, tensor.bytes // launch.batch, device)
        else:
            read += tensor.bytes
    return Traffic(read, warmed, sum(tensor.bytes for tensor in launch.writes))
