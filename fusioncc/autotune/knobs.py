"""The knobs of an emitted kernel, each with its range, and the rules that prune a combination (each with a reason)."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.resources import accumulators, shared_bytes
from fusioncc.device import Device
from fusioncc.schedule import COMPENSATED_STEP, TileConfig, mixes_mma

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (16, 32, 64, 128, 256)
BLOCK_K = (32, 64, 128)
WARPS = (4, 8)
STAGES = (2, 3, 4, 5)
K_SPLIT = (1, 2, 4, 8, 16, 32)
MAX_ACCUMULATORS = {True: 144, False: 128}
"""fp32 accumulators a thread may hold, from Hopper on and before. There the widest tile (128x256, 8 warps:
128) leaves room for a low-rank part; before, 136 spilled when compiled for capability 80 and 128 did not."""
MIN_ACCUMULATORS = 4
"""Fewer leave most of a warp's MMA idle."""
FEW_ROWS = 16
"""Row blocks up to this may be computed transposed: N becomes the M side of the MMA."""
WIDEST_OF_FEW = 128
"""Widest block of so few rows: wider ones leave multiprocessors without a tile, and nothing was measured there."""

TMA_TILES = (
    TileConfig(128, 256, 64, 8, 3, tma=True),
    TileConfig(128, 128, 64, 4, 4, tma=True),
    TileConfig(128, 128, 64, 8, 4, tma=True),
    TileConfig(64, 256, 64, 4, 4, tma=True),
)
"""Main tiles through TMA descriptors that came near the vendor GEMM on an H200, with a low-rank join."""

SIDE_TILES = (
    TileConfig(16, 64, 128, 4, 4, swap_operands=True),
    TileConfig(16, 32, 128, 4, 4, swap_operands=True),
    TileConfig(64, 64, 128, 4, 4),
    TileConfig(64, 128, 64, 4, 4),
    TileConfig(128, 128, 64, 8, 3),
    TileConfig(128, 256, 64, 8, 3),
    TileConfig(32, 64, 32, 4, 3),
    TileConfig(16, 32, 32, 4, 3, swap_operands=True),
)
"""Main tiles beside down tiles; few, since a product that goes through memory seldom wins."""


@cache
def main_tiles() -> tuple[TileConfig, ...]:
    """Every main tile config with pointer loads, in a fixed order; few rows in both orientations."""
    return tuple(
        TileConfig(m, n, k, warps, stages, swap_operands=swap)
        for m, n, k, warps, stages in product(BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES)
        if m > FEW_ROWS or n <= WIDEST_OF_FEW
        for swap in ((True, False) if m <= FEW_ROWS else (False,))
    )


def down_tiles(columns: int) -> Iterator[TileConfig]:
    """Every tile config of a pass over X that makes ``columns`` low-rank columns."""
    for m, k, stages in product(BLOCK_M[:-1], BLOCK_K, STAGES):
        yield TileConfig(m, columns, k, 4, stages, swap_operands=m <= FEW_ROWS)


def down_step(tile: TileConfig) -> int:
    """K step of down tiles beside such a main tile: longer, as they are narrow, unless short steps were wanted."""
    return tile.block_k if tile.block_k <= COMPENSATED_STEP else 128


def oversized(tile: TileConfig, m: int, n: int, k: int) -> str:
    """Whether a block is out of proportion to the product ``[m, k] @ [k, n]``; empty if not."""
    for block, size, name in ((tile.block_m, m, "M"), (tile.block_n, n, "N"), (tile.block_k, k, "K")):
        if block > 16 and block >= 2 * size:
            return f"block is at least twice {name}"
    return ""


def prune(launch: Launch, device: Device) -> str:
    """Why a launch cannot run well on ``device``, in words that do not depend on the config; empty if it can."""
    for part in launch.parts:
        assert part.pool is not None
        if mixes_mma(part.pool.tile) and part.body == "inline" and part.ranks:
            return "warp-group and warp-level MMA in one loop (wrong results with Triton 3.6)"
        if part.pool.tile.block_k > COMPENSATED_STEP and part.unit == "fp32" and part.k:
            return f"K steps of more than {COMPENSATED_STEP} in a compensated fp32 sum"
    most, held = MAX_ACCUMULATORS[device.capability >= 90], accumulators(launch)
    if held > most:
        return f"more than {most} accumulators a thread"
    if held < MIN_ACCUMULATORS and launch.body != "down":
        return f"fewer than {MIN_ACCUMULATORS} accumulators a thread"
    if shared_bytes(launch, device) > device.shared_bytes:
        return f"more than {device.shared_bytes} bytes of shared memory"
    return ""
