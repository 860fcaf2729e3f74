"""Roofline of a group: the rate that the memory or the arithmetic unit allows at an intensity, and where its candidates
stand under it."""

from dataclasses import dataclass

from fusioncc.cost_models.launch import unit_of
from fusioncc.cost_models.tiles import unit_tflops
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Candidate


@dataclass(frozen=True)
class Roof:
    """Rates of a device for one arithmetic unit: TFLOP/s, and GB/s (1e9 bytes) of its memory."""

    unit: str
    peak_tflops: float
    dram_gbps: float

    @property
    def ridge(self) -> float:
        """Intensity, FLOP a byte, from which the arithmetic unit binds."""
        return self.peak_tflops * 1e3 / self.dram_gbps

    def tflops(self, intensity: float) -> float:
        """Highest rate, TFLOP/s, at an intensity in FLOP a byte."""
        return min(self.peak_tflops, intensity * self.dram_gbps / 1e3)


@dataclass(frozen=True)
class Point:
    """A candidate: FLOP for each byte through the memory, and the predicted rate in TFLOP/s."""

    kind: str
    intensity: float
    tflops: float


def roof(group: Group, device: Device) -> Roof | None:
    """The roof for the products of ``group``; None where no rate is known for their dtype."""
    unit = unit_of(group.lhs.dtype, group.fp32_precision)
    return None if unit is None else Roof(unit, unit_tflops(unit, device), device.dram_gbps)


def points(candidates: tuple[Candidate, ...]) -> tuple[Point, ...]:
    """Every legal candidate that has an estimate, in their order."""
    timed = [(each.kind, each.estimate) for each in candidates if each.legal and each.estimate is not None]
    return tuple(Point(kind, found.flops / found.bytes, found.flops / found.us / 1e6) for kind, found in timed)
