"""Shared memory, registers and occupancy of an emitted kernel: upper bounds, before anything is compiled."""

from math import ceil

from fusioncc.cost_models.launches import Launch
from fusioncc.device import Device

THREADS_SM = 1536
"""Resident threads of one multiprocessor that every supported card allows (Ada and consumer Blackwell: 1536)."""
PROGRAMS_SM = 16
"""Resident programs likewise (Ada 24, Ampere 16 to 32)."""
RESERVED_BYTES = 1024
"""Shared memory that the driver keeps for each program (CUDA programming guide, compute capability 8.0 on)."""
OVERHEAD_REGISTERS = 56
"""Registers of a thread beside its accumulators: addresses, masks, operand fragments. Typical of emitted kernels."""
MAX_REGISTERS = 255


def accumulators(launch: Launch) -> float:
    """fp32 accumulator elements that one thread holds."""
    assert launch.pool is not None
    tile = launch.pool.tile
    columns = 0 if launch.body == "down" else tile.block_n
    if launch.body in ("inline", "down"):
        columns += sum(rank.padded for rank in launch.ranks)
    return tile.block_m * columns / (32 * tile.num_warps)


def step_bytes(launch: Launch, rows: int | None = None) -> int:
    """Bytes of operand tiles that one K step loads; ``rows`` counts fewer rows of X than the tile has (masked)."""
    assert launch.pool is not None
    tile = launch.pool.tile
    a_row = sum(rank.padded * rank.element for rank in launch.ranks) if launch.body != "join" else 0
    w_row = 0 if launch.body == "down" else tile.block_n * launch.w_element
    return tile.block_k * ((rows or tile.block_m) * launch.x_element + w_row + a_row)


def shared_bytes(launch: Launch) -> int:
    """Upper bound of the shared memory of one program.

    All operand tiles in every stage, plus the 16-bit pieces of fp32 adapters; or the output tile when it is staged through
    shared memory at the end, whichever is more (the loop's buffers are free by then).
    """
    assert launch.pool is not None
    tile = launch.pool.tile
    pieces = sum(rank.padded * rank.pieces * 2 for rank in launch.ranks if rank.pieces > 1) * tile.block_k
    loop = tile.num_stages * step_bytes(launch) + (pieces if launch.body != "join" else 0)
    columns = max((rank.padded for rank in launch.ranks), default=16) if launch.body == "down" else tile.block_n
    return max(loop, tile.block_m * columns * 4 if launch.body == "down" else tile.block_m * columns * launch.x_element)


def occupancy(launch: Launch, device: Device) -> int:
    """Programs resident on one multiprocessor; 0 when one does not fit."""
    assert launch.pool is not None
    threads = 32 * launch.pool.tile.num_warps
    registers = min(MAX_REGISTERS, ceil((accumulators(launch) + OVERHEAD_REGISTERS) / 8) * 8)
    if shared_bytes(launch) > device.shared_bytes:
        return 0
    return min(
        device.shared_bytes_sm // (shared_bytes(launch) + RESERVED_BYTES),
        device.registers_sm // (threads * registers),
        THREADS_SM // threads,
        PROGRAMS_SM,
    )
