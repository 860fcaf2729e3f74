"""From raw times to figures: what ``fusioncc calibrate`` timed on a card becomes a device profile. Needs no card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusioncc.errors import CalibrationError, OptionError
from fusioncc.figures import FIGURES, Device, checked


@dataclass(frozen=True)
class Card:
    """A card as its driver describes it (capability times ten, sizes in bytes), and when it was measured."""

    name: str
    driver: str
    date: str
    capability: int
    multiprocessors: int
    l2_bytes: int
    shared_bytes: int
    shared_bytes_sm: int
    registers_sm: int


@dataclass(frozen=True)
class Work:
    """Something done at full load: its bytes or floating-point operations, and the time it took, us."""

    amount: float
    us: float


@dataclass(frozen=True)
class Series:
    """The time of a few and of many equal things in a row, us: ``((count, us), (count, us))``."""

    few: tuple[int, float]
    many: tuple[int, float]


@dataclass(frozen=True)
class Timings:
    """What was timed: a copy of device memory (bytes read and written), reads from the L2, large vendor GEMMs, emitted
    bf16 GEMMs by shape of their tile; empty kernels in a row, the same in pairs beside each other (fork and join), and
    hand-overs of a flag between two programs."""

    copy: Work
    l2: Work
    bf16: Work
    tf32: Work
    fp32: Work
    tiles: Mapping[str, Work]
    launches: Series
    forks: Series
    flags: Series


def gigabytes_per_second(work: Work) -> float:
    """Rate of ``work`` in bytes, GB/s."""
    return round(work.amount / work.us / 1e3, 1)


def teraflops(work: Work) -> float:
    """Rate of ``work`` in floating-point operations, TFLOP/s."""
    return round(work.amount / work.us / 1e6, 1)


def each_us(series: Series) -> float:
    """Time of one more of what is in a row, us; what all rows have in common (the launch of a graph) falls out."""
    (few, short), (many, long) = series.few, series.many
    return (long - short) / (many - few)


def profile(card: Card, timings: Timings, name: str) -> Device:
    """The profile of a card from what was timed on it.

    Raises:
        CalibrationError: a figure came out as no card can have it; the message names it. Something else ran beside.
    """
    launch_us = each_us(timings.launches)
    figures: dict[str, Any] = {
        "dram_gbps": gigabytes_per_second(timings.copy),
        "l2_gbps": gigabytes_per_second(timings.l2),
        "bf16_tflops": teraflops(timings.bf16),
        "tf32_tflops": teraflops(timings.tf32),
        "fp32_tflops": teraflops(timings.fp32),
        "launch_us": round(launch_us, 2),
        "events_us": round(each_us(timings.forks) - launch_us, 2),
        "flag_us": round(each_us(timings.flags), 2),
    }
    tiles = tuple((tile, teraflops(work)) for tile, work in timings.tiles.items())
    driver: dict[str, Any] = {figure: getattr(card, figure) for figure in FIGURES if hasattr(card, figure)}
    measured = f"measured on {card.name}, driver {card.driver}, {card.date}"
    sources = {
        **dict.fromkeys(driver, f"driver {card.driver} of {card.name}"),
        **dict.fromkeys((*figures, "tile_tflops"), measured),
    }
    device = Device(name=name, **driver, **figures, tile_tflops=tiles, sources=sources)
    try:
        return checked(device, card.name)
    except OptionError as error:
        raise CalibrationError(f"{error}; does something else run on it? Measure again") from error
