"""Shared memory, registers and occupancy of an emitted kernel: upper bounds, before anything is compiled."""

from math import ceil

from fusioncc.cost_models.launch import IN_PIECES, Launch, RankBlock
from fusioncc.device import Device
from fusioncc.schedule import pieces_beside

THREADS_SM = 1536
"""Resident threads of one multiprocessor that every supported card allows (Ada and consumer Blackwell: 1536)."""
PROGRAMS_SM = 16
"""Resident programs likewise (Ada 24, Ampere 16 to 32)."""
RESERVED_BYTES = 1024
"""Shared memory that the driver keeps for each program (CUDA programming guide, compute capability 8.0 on)."""
PREFERRED_BYTES = 48 * 1024
"""Shared memory of a program up to which Triton launches it without asking for as much of a multiprocessor's cache as
there is."""
CARVE_OUTS = tuple(1024 * size for size in (8, 16, 32, 64, 100, 132, 164, 196, 228))
"""Shared memory that a multiprocessor can be set to have (CUDA programming guide, compute capability 9.0 and 10.0). Of
other kernels the driver sets the least of them that holds as many programs as can be resident, and another kernel finds
no more while they run. Found out on an H200 (driver 580): six cases of down passes in 32 to 64 KiB."""
OVERHEAD_REGISTERS = {True: 56, False: 104}
"""Registers of a thread beside its accumulators, with and without the warp-group MMA (which reads its operands from
shared memory). Typical of pointer kernels compiled by Triton 3.7 for capability 90 and 80."""
BARRIER_BYTES = 32
"""Barriers of a pipeline through TMA, as Triton 3.7 lays them out; twice as much for each further weight (a bound)."""
MMA_BARRIER_BYTES = 16
"""Barrier of each asynchronous MMA of a loop at capability 100, likewise."""
BUNDLE_BYTES = 1024
"""What a bundle through TMA needs beside its largest part: parts lie in one memory, but not byte for byte. Likewise."""
ROW_SUM_BYTES = 64
"""Shared memory of the sum along K behind a tile of one row, for each column and warp: a bound (Triton 3.7)."""
ROW_REGISTERS = (40, 1.5)
"""Registers of a thread of such a tile: some, and as many times its accumulators (its operands lie in registers too).
Compiled for capability 90 by Triton 3.7: 32 to 56 at 16 accumulators, 37 to 93 at 32, 121 at 48, 168 at 96."""
MAX_REGISTERS = 255
REGISTER_UNIT = 8
"""Registers of a thread are allotted in steps: 256 a warp (CUDA occupancy calculator, every supported capability)."""
UNIT_REGISTERS = 6
"""Registers for each accumulator of a compensated product. At 4, tiles of 32x64 with a padded rank of 64 spilled."""


def warp_group_mma(launch: Launch, device: Device) -> bool:
    """Whether the main dot of a tile runs on Hopper's warp-group MMA: its row side has 64 rows or more."""
    assert launch.pool is not None
    tile = launch.pool.tile
    return device.capability == 90 and (columns(launch) if tile.swap_operands else tile.block_m) >= 64


def columns(launch: Launch) -> int:
    """Columns of the widest dot of a tile: ``block_n``, or the widest padded rank of a ``down``."""
    assert launch.pool is not None
    return max(rank.padded for rank in launch.ranks) if launch.body == "down" else launch.pool.tile.block_n


def accumulators(launch: Launch) -> float:
    """fp32 accumulator elements that one thread holds, in the largest part of a bundle."""
    return max(_accumulators(part) for part in launch.parts)


def _accumulators(launch: Launch) -> float:
    """fp32 accumulator elements that one thread holds. A compensated sum (ieee) also holds what it lost and its next
    step, and the operands of a product without tensor cores lie in registers. Behind a norm there are squares too."""
    assert launch.pool is not None
    tile = launch.pool.tile
    width = launch.width
    if launch.body in ("inline", "down"):
        width += sum(rank.padded * (4 if _beside(launch, rank) else 1) for rank in launch.ranks)
    squares = tile.block_m * tile.block_k / (32 * tile.num_warps) if launch.normed else 0
    if tile.one_row:
        return squares + tile.block_k * width / (32 * tile.num_warps)
    return squares + tile.block_m * width * (UNIT_REGISTERS if launch.unit == "fp32" else 1) / (32 * tile.num_warps)


def step_bytes(launch: Launch, rows: int | None = None) -> int:
    """Bytes of operand tiles that one K step loads; ``rows`` counts fewer rows of X than the tile has (masked)."""
    assert launch.pool is not None
    tile = launch.pool.tile
    a_row = sum(rank.padded * rank.element for rank in launch.ranks) if launch.body != "join" else 0
    w_row = launch.width * launch.w_element
    return tile.block_k * ((rows or tile.block_m) * launch.x_element + w_row + a_row)


def shared_bytes(launch: Launch, device: Device) -> int:
    """Upper bound of the shared memory of one program: of the largest part of a bundle, since they use one memory."""
    most = max(_shared_bytes(part, device) for part in launch.parts)
    return most + (BUNDLE_BYTES if launch.bundled and launch.parts[0].pool and launch.parts[0].pool.tile.tma else 0)


def _shared_bytes(launch: Launch, device: Device) -> int:
    """Of one part. The loop holds its operand tiles once for each stage (one stage less before Hopper), the 16-bit
    pieces of fp32 adapters, and what a ``join`` read before it; what it reads behind it takes the same memory. So does
    staging the output tile, which in a persistent kernel lies beside it. Exact for kernels that Triton 3.7 compiled for
    capability 90, with 16-bit operands and 64 rows or more.
    """
    assert launch.pool is not None
    tile = launch.pool.tile
    if tile.one_row:
        return ROW_SUM_BYTES * columns(launch) * tile.num_warps
    buffers = tile.num_stages - (device.capability < 90)
    loop, beside = max(1, buffers) * step_bytes(launch), _joined_bytes(launch, behind=True) + _pieces(launch)
    loop = max(loop if launch.pool.joins_last else loop + beside, _joined_bytes(launch))
    if launch.body == "inline" and launch.unit == "tf32" and device.capability < 90:
        loop += tile.block_m * tile.block_k * launch.x_element  # X rounded for both products, once: Triton 3.8
    if launch.normed:
        loop += tile.block_m * tile.block_k * launch.x_element  # X with its columns scaled, for the MMA
        loop += 4 * tile.block_m * tile.num_warps  # squares of a row, of each warp
    output = tile.block_m * columns(launch) * (4 if launch.body == "down" else launch.out_element)
    if tile.tma:
        return loop + output // tile.epilogue_subtiles + BARRIER_BYTES * (2 * launch.together - 1)
    dots = (launch.body != "down") * launch.together
    dots += sum(1 if _beside(launch, rank) else rank.pieces for rank in launch.ranks)
    return max(loop + (MMA_BARRIER_BYTES * dots if device.capability >= 100 else 0), output)


def expected_bytes(launch: Launch, device: Device) -> int:
    """Shared memory of one program as it is compiled: the older MMA of fewer than 64 rows keeps one stage less than the
    bound counts."""
    bound = shared_bytes(launch, device)
    assert launch.pool is not None
    if device.capability < 90 or launch.pool.tile.one_row or warp_group_mma(launch, device):
        return bound
    return bound - step_bytes(launch)


def carved_out(launch: Launch, device: Device) -> int:
    """Shared memory that a multiprocessor has while it runs programs of ``launch``."""
    used = expected_bytes(launch, device)
    if used > PREFERRED_BYTES:
        return device.shared_bytes_sm
    programs = min(device.shared_bytes_sm // (used + RESERVED_BYTES), PROGRAMS_SM)
    wanted = programs * (used + RESERVED_BYTES)
    return next((size for size in CARVE_OUTS if size >= wanted), device.shared_bytes_sm)


def _pieces(launch: Launch) -> int:
    """Bytes of the 16-bit pieces of fp32 adapters in one step of a loop that reads A: those that lie beside one another
    are read before the next A is cut."""
    assert launch.pool is not None
    if launch.body == "join":
        return 0
    beside = max((4 * rank.padded for rank in launch.ranks if _beside(launch, rank)), default=0)
    apart = sum(3 * rank.padded for rank in launch.ranks if rank.pieces > 1 and not _beside(launch, rank))
    return launch.pool.tile.block_k * 2 * (beside + apart)


def _beside(launch: Launch, rank: RankBlock) -> bool:
    """Whether the pieces of an fp32 A are columns of one operand, of which zeros are the fourth."""
    assert launch.pool is not None
    return rank.pieces > 1 and launch.body != "join" and pieces_beside(launch.pool.tile, rank.padded)


def _joined_bytes(launch: Launch, *, behind: bool = False) -> int:
    """Bytes of the operands of the join: B, and ``y`` where it stands right or comes from memory behind no K loop.
    ``behind``: those that still lie beside a loop behind the join, of three pieces the last."""
    assert launch.pool is not None
    if launch.body != "join":
        return 0
    tile = launch.pool.tile
    width = tile.block_n + (tile.block_m if tile.swap_operands or not launch.k else 0)
    elements = (rank.joined // 3 if behind and rank.joined == IN_PIECES else rank.joined for rank in launch.ranks)
    return sum(width * rank.padded * each for rank, each in zip(launch.ranks, elements, strict=True))


def occupancy(launch: Launch, device: Device) -> int:
    """Programs resident on one multiprocessor; 0 when one does not fit."""
    return min(_occupancy(part, device) for part in launch.parts)


def _occupancy(part: Launch, device: Device) -> int:
    assert part.pool is not None
    overhead, each = OVERHEAD_REGISTERS[warp_group_mma(part, device)], 1.0
    if part.pool.tile.one_row:
        overhead, each = ROW_REGISTERS
    registers = min(MAX_REGISTERS, ceil(each * _accumulators(part) + overhead))
    return resident(_shared_bytes(part, device), registers, part.pool.tile.num_warps, device)


def resident(shared: int, registers: int, num_warps: int, device: Device) -> int:
    """Programs resident on one multiprocessor, each with ``num_warps`` warps, so many registers a thread and ``shared``
    bytes of shared memory; 0 when one does not fit."""
    if shared > device.shared_bytes:
        return 0
    threads = 32 * num_warps
    return min(
        device.shared_bytes_sm // (shared + RESERVED_BYTES),
        device.registers_sm // (threads * ceil(registers / REGISTER_UNIT) * REGISTER_UNIT),
        THREADS_SM // threads,
        PROGRAMS_SM,
    )
