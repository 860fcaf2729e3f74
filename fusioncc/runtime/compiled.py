"""What a program of a compiled kernel takes. Plain values, no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Compiled:
    """What one program of a compiled kernel takes: warps, 32-bit registers of a thread, bytes of shared memory."""

    num_warps: int
    registers: int
    shared_bytes: int
