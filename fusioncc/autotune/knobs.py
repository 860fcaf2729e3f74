"""The knobs of an emitted kernel, each with its range, and the rules that prune a combination (each with a reason)."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.resources import accumulators, shared_bytes
from fusioncc.device import Device
from fusioncc.schedule import COMPENSATED_STEP, MAX_RANK, Pool, TileConfig, overwrites_x, squares_x

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (16, 32, 64, 128, 256)
BLOCK_K = (32, 64, 128)
WARPS = (4, 8)
STAGES = (2, 3, 4, 5, 7)
DOWN_STAGES = (3, 5)
LINE_BYTES, LARGE_TILE = 128, 64 * 256
"""Bytes of a line of the L2: a K step loads as much at least of each row of the operand with the wider elements. And
elements of a tile of many rows from which it may be less, since shared memory may hold no longer steps. Others were
never best so (49 groups measured on an H200, 1 to 16384 rows), and took 1.4 times the best where predicted to be."""
LARGE_STEP = 24576
"""Elements of X and W in a K step from which two stages may be all that fits; smaller steps were never best so."""
K_SPLIT = (1, 2, 4, 8, 16, 32)
MAX_ACCUMULATORS = {True: 144, False: 128}
"""fp32 accumulators a thread may hold, from Hopper on and before. There the widest tile (128x256, 8 warps:
128) leaves room for a low-rank part; before, 136 spilled when compiled for capability 80 and 128 did not."""
MAX_ROTATED = {True: 64, False: 96}
"""Those beside which a thread can rotate halves of heads, from Blackwell on and before. Compiled with heads of 128,
tiles of 128 a thread spilled 96 to 152 bytes for capability 80 and 90 and 776 for 100, tiles of 64 a thread none for 80
and 90, and for 100 none where they have 128 rows and up to 32 where they have 64 (Triton 3.7)."""
MIN_ACCUMULATORS = 4
"""Fewer leave most of a warp's MMA idle."""
SHORT_PASS = 1024
"""K up to which a down pass beside main tiles need not be cut."""
WIDE_PASS = 512
"""Bytes of one row of all A side by side from which a long K step of a down tile does not fit with several stages."""
ROW_RANKS = 128
"""Low-rank columns up to which a pass over one row has tiles of one row: more would pass what a thread may hold."""
ROW_DOWN_STEPS = (128, 256)
ROW_COLUMNS = (1, 2, 4)
ROW_STEPS = (2048, 4096)
ROW_ACCUMULATORS = (16, 64)
"""Columns and K steps of tiles of one row, and accumulators of a thread. Measured on an H200 (K = 4096, N = 6144 and
28672): these take 13.6 to 14.5 us and 54.7 to 56.5, where the vendor GEMM takes 16.1 and 57.5; shorter steps, 8
columns or 2 warps take up to 20 and 95."""
WAITING_ROWS = 64
"""Rows of a tile up to which it waits for memory rather than for the tensor cores."""
CROWDED_STAGES = 5
"""Stages of the widest of those tiles that only a launch that starts early has: where all programs start at once, four
were 1.5 to 4 % faster at 40 to 64 rows, with and without a branch (67.2 to 64.7 us, 62.8 to 61.6)."""
FEW_ROWS = 16
"""Row blocks up to this may be computed transposed: N becomes the M side of the MMA."""
WIDEST_OF_FEW = 128
"""Widest block of so few rows: wider ones leave multiprocessors without a tile, and nothing was measured there."""

TMA_TILES = {
    TileConfig(128, 64, 64, 4, 3, tma=True): 2,
    TileConfig(128, 128, 64, 4, 3, tma=True, epilogue_subtiles=2): 2,
    TileConfig(128, 256, 64, 8, 3, tma=True, epilogue_subtiles=2): 1,
    TileConfig(128, 128, 64, 8, 4, tma=True): 1,
    TileConfig(64, 128, 64, 4, 6, tma=True): 1,
}
"""Main tiles through TMA descriptors that came first somewhere at 128 to 8192 rows on an H200, and how many programs of
each a multiprocessor runs: of two, one computes while the other stores. 128x128 in two programs took 200 us where one
of 8 warps took 213 (512 rows of gate/up with branches), 128x64 of both halves of a gated MLP without branches 2765
where 128x128 took 2829 (8192 rows). Stored in halves, the widest leave room for down tiles beside them, and are as fast
as whole. 64x256 took 155 us where 128x256 took 102 (2048 rows, K = N = 4096); 4 stages of 128x256, and 256x128, were no
faster; 5 stages of 128x128 gained 3 % at 512 rows of gate/up, and lost 20 % at 1024 and 2048 of q/k/v."""

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

SUM_TILES = tuple(TileConfig(m, 16, 16, 4, 1) for m in (16, 32, 64))
"""Tiles of the launch of ``k_concat`` that adds partial sums beside X: blocks of rows."""


@cache
def main_tiles() -> tuple[TileConfig, ...]:
    """Every main tile config with pointer loads, in a fixed order; few rows in both orientations, the widest with all
    warps but where they wait for memory (64x256 of 4 warps took 60.7 us where 8 took 62.2), and most stages there."""
    return tuple(
        TileConfig(m, n, k, warps, stages, swap_operands=swap)
        for m, n, k, warps, stages in product(BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES)
        if (m > FEW_ROWS or n <= WIDEST_OF_FEW) and (n < BLOCK_N[-1] or warps == WARPS[-1] or m == WAITING_ROWS)
        if (stages < STAGES[-1] or m <= WAITING_ROWS) and (stages > STAGES[0] or (m + n) * k >= LARGE_STEP)
        if MIN_ACCUMULATORS <= m * n / (32 * warps) <= MAX_ACCUMULATORS[True]
        for swap in ((True, False) if m <= FEW_ROWS else (False,))
    )


@cache
def row_tiles(depth: int) -> tuple[TileConfig, ...]:
    """Every main tile config for a group of one row over K = ``depth``: without tensor cores, loads straight to
    registers, in long steps."""
    return tuple(
        TileConfig(1, n, k, warps, 1, swap_operands=True)
        for n, k, warps in product(ROW_COLUMNS, _steps(ROW_STEPS, depth), WARPS)
        if ROW_ACCUMULATORS[0] <= n * k / (32 * warps) <= ROW_ACCUMULATORS[1]
    )


def down_tiles(columns: int) -> Iterator[TileConfig]:
    """Every tile config of a pass over X that makes ``columns`` low-rank columns: small ones, which fit beside main
    tiles; of the widest also with more warps, as a compensated sum needs them."""
    every = WARPS if columns == MAX_RANK else WARPS[:1]
    for m, k, stages, warps in product(BLOCK_M[:-1], BLOCK_K, DOWN_STAGES, every):
        yield TileConfig(m, columns, k, warps, stages, swap_operands=m <= FEW_ROWS)


def row_down_tiles(columns: int, depth: int) -> Iterator[TileConfig]:
    """The same for a group of one row over K = ``depth``: without tensor cores."""
    for k in _steps(ROW_DOWN_STEPS, depth):
        yield TileConfig(1, columns, k, 4, 1, swap_operands=True)


def _steps(steps: tuple[int, ...], depth: int) -> list[int]:
    """K steps, none longer than all of K rounded up to a power of two."""
    longest = 1 << (depth - 1).bit_length()
    return sorted({min(step, longest) for step in steps})


def joins_last(tile: TileConfig, early: bool) -> bool:
    """Whether main tiles of ``split`` read the down products behind their K loop, not before it.

    Tiles of one row add up behind it anyway. A launch that starts ``early`` has its K loop to hide the down pass: worth
    it for tiles that wait for memory, and for those through TMA, which are as fast so as the others or up to a quarter
    faster (measured on an H200 at 128 to 8192 rows). Larger tiles through pointers lost 1 to 2 %.
    """
    return tile.one_row or (early and (tile.tma or tile.block_m <= WAITING_ROWS))


def down_step(tile: TileConfig, row: int) -> int:
    """K step of down tiles beside such a main tile, where a row of all A has so many bytes: long, as they are narrow,
    unless short steps were wanted."""
    if tile.block_k <= COMPENSATED_STEP:
        return tile.block_k
    return 128 if row < WIDE_PASS else 64


def oversized(tile: TileConfig, m: int, n: int, k: int) -> str:
    """Whether a block is out of proportion to the product ``[m, k] @ [k, n]``; empty if not."""
    for block, size, name in ((tile.block_m, m, "M"), (tile.block_n, n, "N"), (tile.block_k, k, "K")):
        if block > 16 and block >= 2 * size:
            return f"block is at least twice {name}"
    return ""


def short(tile: TileConfig, element: int, least: int) -> str:
    """Whether a K step of elements of so many bytes loads less than ``least`` of a row; empty if not, and for tiles
    whose steps are large."""
    large = tile.block_m > WAITING_ROWS and tile.block_m * tile.block_n >= LARGE_TILE
    if tile.block_k * element < least and not large:
        return f"K steps of less than {least} bytes"
    return ""


def _crowded(pool: Pool) -> bool:
    tile = pool.tile
    widest = tile.block_m <= WAITING_ROWS and tile.block_n == BLOCK_N[-1] and not tile.tma
    return widest and tile.num_stages >= CROWDED_STAGES and pool.role == "main" and not pool.dependent


def prune(launch: Launch, device: Device) -> str:
    """Why a launch cannot run well on ``device``, in words that do not depend on the config; empty if it can."""
    for part in launch.parts:
        assert part.pool is not None
        ranks = () if part.body == "join" else tuple(rank.padded for rank in part.ranks)
        if overwrites_x(part.pool.tile, ranks, main=part.body == "inline"):
            return "a loop that overwrites X while a warp-group MMA reads it (Triton 3.6)"
        if part.normed and not part.weighted and squares_x(part.pool.tile):
            return "squares of X beside a warp-group MMA that reads it"
        if part.body == "join" and part.pool.tile.one_row and accumulators(part) > ROW_ACCUMULATORS[1]:
            return (
                f"more than {ROW_ACCUMULATORS[1]} accumulators a thread of one row with a join (slower where measured)"
            )
        if part.body == "inline" and part.ranks and part.pool.tile.num_stages == STAGES[-1]:
            return f"{STAGES[-1]} stages beside A (slower than fewer where it was measured)"
        if not part.pool.tile.holds_heads(part.head):
            return "tiles without both halves of a head, which are rotated"
        rotated = MAX_ROTATED[device.capability >= 100]
        if part.head > 1 and accumulators(part) > rotated:
            return f"more than {rotated} accumulators a thread beside rotated halves"
        if _crowded(part.pool):
            return f"{CROWDED_STAGES} stages of the widest tile in programs that start at once (slower where measured)"
        compensated = part.unit == "fp32" and part.k and not part.pool.tile.one_row
        if compensated and part.pool.tile.block_k > COMPENSATED_STEP:
            return f"K steps of more than {COMPENSATED_STEP} in a compensated fp32 sum"
    most, held = MAX_ACCUMULATORS[device.capability >= 90], accumulators(launch)
    if held > most:
        return f"more than {most} accumulators a thread"
    if held < MIN_ACCUMULATORS and launch.body != "down" and launch.k:
        return f"fewer than {MIN_ACCUMULATORS} accumulators a thread"
    if shared_bytes(launch, device) > device.shared_bytes:
        return f"more than {device.shared_bytes} bytes of shared memory"
    return ""
