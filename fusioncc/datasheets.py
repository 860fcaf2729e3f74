"""Profiles that ship: one table of datasheets, what runs reach of their peaks, and what was measured instead."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fusioncc.figures import Device

CALIBRATED = "measured by fusioncc calibrate on NVIDIA H200, driver 580.159.04, 2026-11-30"
H200: dict[str, Any] = {
    "dram_gbps": 4026.7,
    "l2_gbps": 11911.8,
    "bf16_tflops": 680.2,
    "tf32_tflops": 360.2,
    "fp32_tflops": 49.9,
    "launch_us": 0.66,
    "events_us": 0.2,
    "flag_us": 0.53,
    "tile_tflops": (
        ("16x128x64", 155.1),
        ("32x128x64", 257.5),
        ("64x64x64", 346.4),
        ("64x128x64", 442.3),
        ("128x128x64", 520.1),
        ("128x256x64", 607.8),
    ),
}
"""What was measured on the one card that was. Others are taken to reach the same fractions of their datasheets."""
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


_PEAK = DATASHEETS["h200"]
COPY_FRACTION = round(H200["dram_gbps"] / _PEAK.memory, 3)
"""Of a copy, what is reached over the datasheet's bandwidth."""
MMA_FRACTION, TF32_FRACTION, FP32_FRACTION = (
    round(H200[rate] / peak, 3)
    for rate, peak in zip(("bf16_tflops", "tf32_tflops", "fp32_tflops"), _PEAK.tflops, strict=True)
)
"""Of large vendor GEMMs, likewise."""
L2_BYTES_CLOCK = H200["l2_gbps"] / (_PEAK.multiprocessors * _PEAK.clock)
"""L2 bytes that a multiprocessor gets in one clock. No datasheet gives it."""


def _from_datasheet(name: str) -> Device:
    """A profile from peak figures: what runs reaches a fraction of them, taken from the one card that was measured."""
    sheet = DATASHEETS[name]
    bf16, tf32, fp32 = sheet.tflops
    program, whole = SHARED_KIB[sheet.capability]

    def source(figure: str) -> str:
        return sheet.other.get(figure, sheet.chip)

    def peak(figure: str, value: str, fraction: float) -> str:
        reached = f"times {fraction} as reached on an H200, assumed alike"
        return f"{sheet.other.get(figure, sheet.product)}: {value}, {reached}"

    sources = {
        "capability": GUIDE,
        "multiprocessors": source("multiprocessors"),
        "dram_gbps": peak("dram_gbps", f"{sheet.memory:g} GB/s", COPY_FRACTION),
        "l2_gbps": f"assumed: {L2_BYTES_CLOCK:.1f} bytes a clock and multiprocessor, as measured on an H200, times "
        f"{sheet.clock:g} GHz ({source('l2_gbps')})",
        "l2_bytes": source("l2_bytes"),
        "shared_bytes": GUIDE,
        "shared_bytes_sm": GUIDE,
        "registers_sm": GUIDE,
        "bf16_tflops": peak("bf16_tflops", f"{bf16:g} TFLOP/s", MMA_FRACTION),
        "tf32_tflops": peak("tf32_tflops", f"{tf32:g} TFLOP/s", TF32_FRACTION),
        "fp32_tflops": peak("fp32_tflops", f"{fp32:g} TFLOP/s", FP32_FRACTION),
        **dict.fromkeys(("launch_us", "events_us", "flag_us"), "assumed to be that of an H200"),
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
        tf32_tflops=round(tf32 * TF32_FRACTION, 1),
        fp32_tflops=round(fp32 * FP32_FRACTION, 1),
        launch_us=H200["launch_us"],
        events_us=H200["events_us"],
        flag_us=H200["flag_us"],
        sources=sources,
    )


def _measured() -> Device:
    device = _from_datasheet("h200")
    return replace(device, **H200, sources={**device.sources, **dict.fromkeys(H200, CALIBRATED)})


PROFILES: dict[str, Device] = {name: _from_datasheet(name) for name in DATASHEETS} | {"h200": _measured()}
