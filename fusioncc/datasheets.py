"""Profiles that ship: one table of datasheets, what runs reach of their peaks, and what was measured instead."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fusioncc.figures import Device

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
EVENTS_US = 3.0
"""Assumed, for every card."""
FLAG_US = 1.0
"""Assumed, for every card: a write and a read through the L2."""
REGISTERS_SM = 65536
"""Every compute capability from 5.0 on."""
GUIDE = "CUDA programming guide, compute capabilities"
SHARED_KIB = {80: (163, 164), 89: (99, 100), 90: (227, 228), 100: (227, 228), 120: (99, 100)}
"""Most shared memory of (one program, one multiprocessor) in KiB, from the guide."""


@dataclass(frozen=True)
class Sheet:
    """Peak figures of one card: boost clock in GHz, memory in GB/s, L2 in MiB, dense TFLOP/s (bf16 with fp32
    accumulation, tf32, fp32). ``product`` is the source of memory and rates, ``chip`` that of the rest, ``other`` that
    of single figures by name."""

    capability: int
    multiprocessors: int
    clock: float
    memory: float
    l2: int
    tflops: tuple[float, float, float]
    product: str
    chip: str
    other: Mapping[str, str] = field(default_factory=dict)


GA100, GH100 = "NVIDIA A100 (GA100) whitepaper", "NVIDIA H100 (GH100) whitepaper"
ADA, RTX_BLACKWELL = "NVIDIA Ada (AD102) whitepaper", "NVIDIA RTX Blackwell (GB202) whitepaper"

DATASHEETS = {
    "a100-40": Sheet(80, 108, 1.41, 1555, 40, (312, 156, 19.5), "NVIDIA A100 datasheet, 40 GB", GA100),
    "a100-80": Sheet(80, 108, 1.41, 2039, 40, (312, 156, 19.5), "NVIDIA A100 datasheet, 80 GB SXM", GA100),
    "h100": Sheet(90, 132, 1.98, 3350, 50, (989, 494.5, 67), "NVIDIA H100 datasheet, SXM", GH100),
    "h100-pcie": Sheet(90, 114, 1.755, 2000, 50, (756.5, 378, 51), "NVIDIA H100 datasheet, PCIe", GH100),
    "h200": Sheet(90, 132, 1.98, 4800, 50, (989, 494.5, 67), "NVIDIA H200 datasheet, SXM", GH100),
    "l40s": Sheet(
        *(89, 142, 2.52, 864, 96, (362, 183, 91.6), "NVIDIA L40S datasheet", ADA),
        {"l2_bytes": "no datasheet has it; as an L40, of the same chip, reports it to its driver"},
    ),
    "rtx4090": Sheet(89, 128, 2.52, 1008, 72, (165.2, 82.6, 82.6), ADA, ADA),
    "rtx5090": Sheet(120, 170, 2.41, 1792, 96, (209.5, 104.8, 104.8), RTX_BLACKWELL, RTX_BLACKWELL),
    "rtxpro6000": Sheet(
        *(120, 188, 2.617, 1792, 128, (503.8, 251.9, 126), "NVIDIA RTX PRO Blackwell whitepaper, Workstation Edition"),
        RTX_BLACKWELL,
    ),
    "b200": Sheet(
        *(100, 148, 1.85, 7672, 126, (2250, 1125, 75), "NVIDIA HGX B200 datasheet, an eighth"),
        "NVIDIA Blackwell tuning guide",
        {
            "multiprocessors": "as its driver reports it",
            "dram_gbps": "7680 bits at 3996 MHz, as its driver reports them (the datasheet rounds up to 8 TB/s)",
            "l2_gbps": "clock assumed, no datasheet has it",
        },
    ),
}


def _from_datasheet(name: str) -> Device:
    """A profile from peak figures: what runs reaches a fraction of them, taken from the one card that was measured."""
    sheet = DATASHEETS[name]
    bf16, tf32, fp32 = sheet.tflops
    program, whole = SHARED_KIB[sheet.capability]

    def source(figure: str) -> str:
        return sheet.other.get(figure, sheet.chip)

    def peak(figure: str, value: str, fraction: float, why: str = "as bf16 reached on an H200, assumed alike") -> str:
        return f"{sheet.other.get(figure, sheet.product)}: {value}, times {fraction} {why}"

    sources = {
        "capability": GUIDE,
        "multiprocessors": source("multiprocessors"),
        "dram_gbps": peak("dram_gbps", f"{sheet.memory:g} GB/s", COPY_FRACTION, "as reached on an H200, assumed alike"),
        "l2_gbps": f"assumed: {L2_BYTES_CLOCK:.1f} bytes a clock and multiprocessor, as fitted on an H200, times "
        f"{sheet.clock:g} GHz ({source('l2_gbps')})",
        "l2_bytes": source("l2_bytes"),
        "shared_bytes": GUIDE,
        "shared_bytes_sm": GUIDE,
        "registers_sm": GUIDE,
        "bf16_tflops": peak("bf16_tflops", f"{bf16:g} TFLOP/s", MMA_FRACTION),
        "tf32_tflops": peak("tf32_tflops", f"{tf32:g} TFLOP/s", MMA_FRACTION),
        "fp32_tflops": peak("fp32_tflops", f"{fp32:g} TFLOP/s", FP32_FRACTION, "assumed"),
        "launch_us": "assumed to be that of an H200",
        "events_us": "assumed",
        "flag_us": "assumed",
    }
    return Device(
        name=name,
        capability=sheet.capability,
        multiprocessors=sheet.multiprocessors,
        dram_gbps=round(sheet.memory * COPY_FRACTION, 1),
        l2_gbps=round(sheet.multiprocessors * sheet.clock * L2_BYTES_CLOCK, 1),
        l2_bytes=sheet.l2 << 20,
        shared_bytes=program << 10,
        shared_bytes_sm=whole << 10,
        registers_sm=REGISTERS_SM,
        bf16_tflops=round(bf16 * MMA_FRACTION, 1),
        tf32_tflops=round(tf32 * MMA_FRACTION, 1),
        fp32_tflops=round(fp32 * FP32_FRACTION, 1),
        launch_us=LAUNCH_US,
        events_us=EVENTS_US,
        flag_us=FLAG_US,
        sources=sources,
    )


def _measured(base: Device, sources: Mapping[str, str], **figures: float) -> Device:
    """``base`` with measured figures in place of the datasheet's."""
    return replace(base, **figures, sources={**base.sources, **sources})  # type: ignore[arg-type]


MEASURED = {
    "h200": _measured(
        _from_datasheet("h200"),
        {
            "dram_gbps": "measured on an H200: a device copy, read and write, in graph replay (torch 2.11)",
            "bf16_tflops": "measured on an H200: a vendor GEMM of 8192 cubed on random data (torch 2.11)",
            "l2_gbps": "fitted to GEMM times measured on an H200 at 256 to 8192 rows",
            "launch_us": "as seen on an H200 in graph replay",
        },
        dram_gbps=4260.0,
        bf16_tflops=750.0,
    )
}
"""Profiles in which measured figures replace the datasheet's."""

PROFILES: dict[str, Device] = {name: _from_datasheet(name) for name in DATASHEETS} | MEASURED
