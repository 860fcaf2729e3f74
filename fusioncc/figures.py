"""What a device profile holds: figures, each with its unit, its plausible range and its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fusioncc.errors import OptionError


@dataclass(frozen=True)
class Figure:
    """Unit of a figure, and the range outside of which a value is a slip: TB/s for GB/s, KiB for bytes."""

    unit: str
    least: float
    most: float


BANDWIDTH = Figure("GB/s", 10, 1_000_000)
RATE = Figure("TFLOP/s", 0.1, 100_000)
SHARED = Figure("bytes", 16 << 10, 4 << 20)
TIME = Figure("us", 0.01, 1000)


@dataclass(frozen=True)
class Device:
    """Figures of one card, as what runs on it reaches them. GB are 1e9 bytes, rates are dense.

    Two devices are equal when their names and figures are: ``sources`` says where each figure comes from, by name.
    """

    name: str
    capability: Annotated[int, Figure("tenths", 50, 200)]
    """Compute capability times ten (90 for Hopper)."""
    multiprocessors: Annotated[int, Figure("count", 1, 10_000)]
    dram_gbps: Annotated[float, BANDWIDTH]
    """Of a copy, read and write counted."""
    l2_gbps: Annotated[float, BANDWIDTH]
    l2_bytes: Annotated[int, Figure("bytes", 64 << 10, 4 << 30)]
    shared_bytes: Annotated[int, SHARED]
    """Largest dynamic shared memory of one program."""
    shared_bytes_sm: Annotated[int, SHARED]
    registers_sm: Annotated[int, Figure("count", 1 << 12, 1 << 20)]
    """32-bit registers of a multiprocessor."""
    bf16_tflops: Annotated[float, RATE]
    """Of a large vendor GEMM, as are the next two."""
    tf32_tflops: Annotated[float, RATE]
    fp32_tflops: Annotated[float, RATE]
    launch_us: Annotated[float, TIME]
    """Cost of one more kernel in a stream that is kept full (graph replay)."""
    events_us: Annotated[float, TIME]
    """Cost of a fork to another stream and the join behind it: an event recorded and waited for on each side."""
    flag_us: Annotated[float, TIME]
    """From a release of one program until another one, which spins, has acquired it."""
    tile_tflops: Annotated[tuple[tuple[str, float], ...], RATE] = ()
    """Rate of an emitted bf16 GEMM by shape of its tile (``128x256x64``). For reading: no model uses it."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)


def _figures() -> dict[str, tuple[Any, Figure]]:
    hints = get_type_hints(Device, include_extras=True)
    annotated = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: (kind, figure) for name, (kind, figure) in annotated.items()}


FIGURES = _figures()
"""Type and meaning of each figure by name, in the order of :class:`Device`."""


def checked(device: Device, where: str) -> Device:
    """``device``, whose figures are all within their ranges and agree with each other.

    Raises:
        OptionError: a figure is not; the message begins with ``where`` and names it.
    """
    for name, (_, figure) in FIGURES.items():
        value = getattr(device, name)
        parts = [(f"{name}[{tile}]", rate) for tile, rate in value] if isinstance(value, tuple) else [(name, value)]
        for part, number in parts:
            if not figure.least <= number <= figure.most:
                likely = f"{figure.least:g} to {figure.most:g} {figure.unit}"
                raise OptionError(f"{where}: {part} is {number:g} {figure.unit}, and no card has that ({likely})")
    for low, high in (("shared_bytes", "shared_bytes_sm"), ("dram_gbps", "l2_gbps"), ("tf32_tflops", "bf16_tflops")):
        if getattr(device, low) > getattr(device, high):
            raise OptionError(
                f"{where}: {high} is {getattr(device, high):g}, less than {low}, which is {getattr(device, low):g}"
            )
    return device
