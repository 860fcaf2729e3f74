"""Device profiles: a device is data.

A :class:`Device` holds the figures that the cost models need. Datasheet profiles ship in ``PROFILES``; names are
matched without case, ``get_device`` raises :class:`~fusioncc.errors.OptionError` with the valid names otherwise.
"""

from dataclasses import dataclass

from fusioncc.errors import OptionError


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


PROFILES: dict[str, Device] = {
    "h200": Device(
        name="h200",
        capability=90,
        multiprocessors=132,
        dram_gbps=4260.0,
        l2_gbps=9000.0,
        l2_bytes=50 << 20,
        shared_bytes=232448,
        shared_bytes_sm=233472,
        registers_sm=65536,
        bf16_tflops=750.0,
        tf32_tflops=370.0,
        fp32_tflops=60.0,
        launch_us=1.5,
        source="copy bandwidth and GEMM rate as measured on the card; the rest NVIDIA H200 datasheet and CUDA programming guide",
    ),
}


def get_device(name: str) -> Device:
    """The profile with this name.

    Raises:
        OptionError: no such profile; the message lists the valid names.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        raise OptionError(f"unknown device {name!r}; valid devices: {', '.join(sorted(PROFILES))}") from None
