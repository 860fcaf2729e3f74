"""Device profiles: a device is data.

A :class:`Device` holds the figures that the cost models need. Datasheet profiles ship in ``PROFILES``; names are
matched without case, ``get_device`` raises :class:`~fusioncc.errors.OptionError` with the valid names otherwise, and
``profile_for`` finds the profile of the card that a driver describes.
"""

import re
from dataclasses import dataclass, replace

from fusioncc.errors import OptionError

DEPENDENT_CAPABILITY = 90
"""First compute capability with programmatic dependent launch."""


@dataclass(frozen=True)
class Device:
    """Figures of one card. Bandwidths in GB/s (1e9 bytes), rates in TFLOP/s dense, sizes in bytes, times in us."""

    name: str
    capability: int
    """Compute capability times ten (90 for Hopper)."""
    multiprocessors: int
    dram_gbps: float
    l2_gbps: float
    l2_bytes: int
    shared_bytes: int
    """Largest dynamic shared memory of one program."""
    shared_bytes_sm: int
    registers_sm: int
    bf16_tflops: float
    tf32_tflops: float
    fp32_tflops: float
    launch_us: float
    """Cost of one more kernel in a stream that is kept full (graph replay)."""
    source: str


COPY_FRACTION = 0.89
"""Copy bandwidth over the datasheet's: 4260 of 4800 GB/s, measured on an H200."""
MMA_FRACTION = 0.76
"""Rate of a large GEMM over the datasheet's: 750 of 989 TFLOP/s, measured on an H200 (power-limited)."""
FP32_FRACTION = 0.9
"""The same without tensor cores. Assumed."""
L2_BYTES_CLOCK = 10500 / (132 * 1.98)
"""L2 bytes that a multiprocessor gets in one clock. No datasheet gives it. Fitted, not measured: 10500 GB/s on an
H200 (132 multiprocessors at 1.98 GHz), below which its GEMM times at 256 to 8192 rows would be out of reach; other
cards assumed alike."""
LAUNCH_US = 1.5
"""Gap between two kernels in graph replay, as seen on an H200; taken for every card."""
REGISTERS_SM = 65536
"""CUDA programming guide, every compute capability from 5.0 on."""

SHARED_KIB = {80: (163, 164), 89: (99, 100), 90: (227, 228), 100: (227, 228), 120: (99, 100)}
"""Most shared memory of (one program, one multiprocessor) in KiB: CUDA programming guide, technical specifications."""

# name: capability, multiprocessors, clock GHz (boost), memory GB/s, L2 MiB, dense TFLOP/s (bf16, tf32, fp32), source
DATASHEETS: dict[str, tuple[int, int, float, float, int, tuple[float, float, float], str]] = {
    "a100-40": (80, 108, 1.41, 1555, 40, (312, 156, 19.5), "NVIDIA A100 datasheet and GA100 whitepaper"),
    "a100-80": (80, 108, 1.41, 2039, 40, (312, 156, 19.5), "NVIDIA A100 datasheet (SXM 80 GB) and GA100 whitepaper"),
    "h100": (90, 132, 1.98, 3350, 50, (989, 494, 67), "NVIDIA H100 datasheet (SXM5) and GH100 whitepaper"),
    "h100-pcie": (90, 114, 1.755, 2000, 50, (756, 378, 51), "NVIDIA H100 datasheet (PCIe) and GH100 whitepaper"),
    "h200": (90, 132, 1.98, 4800, 50, (989, 494, 67), "NVIDIA H200 datasheet and GH100 whitepaper"),
    "l40s": (89, 142, 2.52, 864, 96, (362, 183, 91.6), "NVIDIA L40S datasheet and AD102 whitepaper"),
    "rtx4090": (89, 128, 2.52, 1008, 72, (165.2, 82.6, 82.6), "NVIDIA Ada whitepaper (fp32 accumulation)"),
    "rtx5090": (120, 170, 2.41, 1792, 96, (209.5, 104.8, 104.8), "NVIDIA RTX Blackwell whitepaper (fp32 accumulation)"),
    "rtxpro6000": (120, 188, 2.6, 1792, 128, (503.8, 251.9, 126), "NVIDIA RTX PRO Blackwell whitepaper"),
    "b200": (
        100,
        148,
        1.85,
        8000,
        126,
        (2250, 1125, 75),
        "NVIDIA HGX B200 datasheet, an eighth; L2 and multiprocessors as reported by users",
    ),
}


def _from_datasheet(name: str) -> Device:
    """A profile from peak figures: what runs reaches a fraction of them, taken from the one card that was measured."""
    capability, multiprocessors, clock, memory, l2, (bf16, tf32, fp32), source = DATASHEETS[name]
    program, whole = SHARED_KIB[capability]
    return Device(
        name=name,
        capability=capability,
        multiprocessors=multiprocessors,
        dram_gbps=round(memory * COPY_FRACTION, 1),
        l2_gbps=round(multiprocessors * clock * L2_BYTES_CLOCK, 1),
        l2_bytes=l2 << 20,
        shared_bytes=program << 10,
        shared_bytes_sm=whole << 10,
        registers_sm=REGISTERS_SM,
        bf16_tflops=round(bf16 * MMA_FRACTION, 1),
        tf32_tflops=round(tf32 * MMA_FRACTION, 1),
        fp32_tflops=round(fp32 * FP32_FRACTION, 1),
        launch_us=LAUNCH_US,
        source=f"{source}; memory x{COPY_FRACTION}, MMA x{MMA_FRACTION}, fp32 x{FP32_FRACTION} as reached on an H200",
    )


MEASURED = {
    "h200": replace(
        _from_datasheet("h200"),
        dram_gbps=4260.0,
        bf16_tflops=750.0,
        source="copy and GEMM rates measured on the card, L2 rate fitted; the rest from NVIDIA's datasheet and guide",
    )
}
"""Profiles in which measured figures replace the datasheet's."""

PROFILES: dict[str, Device] = {name: _from_datasheet(name) for name in DATASHEETS} | MEASURED

MARKETING: tuple[tuple[str, str], ...] = (
    ("a100 40gb", "a100-40"),
    ("a100 80gb", "a100-80"),
    ("h100 pcie", "h100-pcie"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("l40s", "l40s"),
    ("rtx 4090", "rtx4090"),
    ("rtx 5090", "rtx5090"),
    ("rtx pro 6000", "rtxpro6000"),
    ("b200", "b200"),
)
"""Words of a driver's device name (all must be there, whole) and the profile they mean; the first match counts."""

FAMILIES = ((120, "rtx5090"), (100, "b200"), (90, "h100"), (86, "rtx4090"), (0, "a100-40"))
"""Lowest capability, and the profile that an unknown card of it is scaled from."""


def get_device(name: str) -> Device:
    """The profile with this name.

    Raises:
        OptionError: no such profile; the message lists the valid names.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        raise OptionError(f"unknown device {name!r}; valid devices: {', '.join(sorted(PROFILES))}") from None


def profile_for(name: str, capability: int, multiprocessors: int, shared_bytes: int, l2_bytes: int) -> Device:
    """The profile of a card as its driver describes it (``NVIDIA H100 80GB HBM3``; capability times ten).

    A card that has a profile gets it unchanged, so that a plan made elsewhere for that name is the plan made here. A
    part of one (fewer multiprocessors) or an unknown card gets the nearest profile, its rates scaled by
    multiprocessors, with the driver's own sizes.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    known = next((profile for needed, profile in MARKETING if words >= set(needed.split())), None)
    if known is not None and PROFILES[known].capability == capability:
        base = PROFILES[known]
        if base.multiprocessors == multiprocessors:
            return base
    else:
        base = PROFILES[next(profile for least, profile in FAMILIES if capability >= least)]
    return _scaled(base, name, capability, multiprocessors, shared_bytes, l2_bytes)


def _scaled(base: Device, name: str, capability: int, multiprocessors: int, shared_bytes: int, l2_bytes: int) -> Device:
    factor = multiprocessors / base.multiprocessors
    return replace(
        base,
        name="-".join(re.findall(r"[a-z0-9]+", name.lower())),
        capability=capability,
        multiprocessors=multiprocessors,
        dram_gbps=round(base.dram_gbps * factor, 1),
        l2_gbps=round(base.l2_gbps * factor, 1),
        l2_bytes=l2_bytes,
        shared_bytes=shared_bytes,
        shared_bytes_sm=shared_bytes + 1024,
        bf16_tflops=round(base.bf16_tflops * factor, 1),
        tf32_tflops=round(base.tf32_tflops * factor, 1),
        fp32_tflops=round(base.fp32_tflops * factor, 1),
        source=f"scaled from {base.name} by {multiprocessors}/{base.multiprocessors} multiprocessors; driver's sizes",
    )
