"""Schedule ``k_concat``: two kernels write ``[X | s X A]``, which a vendor GEMM multiplies by W and B in one buffer.

The first is the down pass of ``split``, which also stores the tile of X that each K step multiplies by A; the second
adds its partial sums and writes them behind X, scaled and rounded to the dtype of X. The GEMM is no part of the module:
only a call knows the buffer.
"""

from fusioncc.codegen.context import Context
from fusioncc.codegen.kernel import Kernel, constant, part
from fusioncc.codegen.launch import Blocks
from fusioncc.codegen.low_rank import low_ranks, rank_vectors
from fusioncc.codegen.pool_rules import require_roles
from fusioncc.codegen.split import down_kernel
from fusioncc.codegen.tile import row_vectors, wide_rows
from fusioncc.codegen.tile_order import down_order, one_row_block, tile_count
from fusioncc.errors import EmissionError
from fusioncc.packing import concat_begins, concat_refusal, concat_width
from fusioncc.schedule import Pool, Schedule, overwrites_x, padded_rank


def require(context: Context, schedule: Schedule) -> None:
    """One pool for all down products, and one behind it that adds what it wrote, for all main members with a branch.

    Raises:
        EmissionError: the pools do not make such a schedule, or the group has none.
    """
    require_roles(schedule, ("down", "up"))
    reason = concat_refusal(context.group)
    if reason:
        raise EmissionError(reason)
    pools = {pool.role: pool for pools in schedule.by_launch() for pool in pools}
    ordered = [[pool.role for pool in pools] for pools in schedule.by_launch()] == [["down"], ["up"]]
    if not ordered or set(pools["down"].members) != set(context.downs):
        raise EmissionError("schedule 'k_concat' has one pool of all down members, and an up pool behind it")
    if set(pools["up"].members) != set(context.group.joined):
        raise EmissionError("the up pool of 'k_concat' lists the main members with a branch, and no others")
    tile = pools["down"].tile
    if tile.one_row:
        raise EmissionError("the pass of 'k_concat' has no tiles of one row")
    if overwrites_x(tile, tuple(padded_rank(context.member(down).n) for down in context.downs), stored=True):
        raise EmissionError(
            "the pass of 'k_concat' also stores X: its tiles have no warp-group MMA (less than 64 rows)"
        )


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """The pass over X, and the sum of its slices."""
    down, up = (pools[0] for pools in schedule.by_launch())
    return [down_kernel(context, down, context.operand()), _sums(context, up, down.k_split)]


def _sums(context: Context, pool: Pool, k_split: int) -> Kernel:
    """Tiles are row blocks; each writes the low-rank columns of its rows."""
    group, xy = context.group, context.operand()
    lows = low_ranks(context, context.branches, pool.tile)
    wide = wide_rows(group, max(int(xy.shape[1]), *(padded_rank(low.down.n) for low in lows)))
    rows, read_rows, write_rows = row_vectors(pool.tile, one_block=one_row_block(group, pool), wide=wide)
    stride = constant("XY_STRIDE", int(xy.shape[1]), "xy.shape[1]")
    begins = concat_begins(group)
    body = down_order(group, pool) + rows + rank_vectors(lows)
    for low_rank in lows:
        behind = begins[low_rank.branch.up] - group.k
        source = f"x.shape[1] + {behind}" if behind else "x.shape[1]"
        begin = constant(f"XY_BEGIN{low_rank.tail}", group.k + behind, source)
        width = constant(f"XY_WIDTH{low_rank.tail}", concat_width(group, low_rank.branch))
        body += part("") + low_rank.load_slices(context.slices(low_rank.branch.down, k_split), read_rows)
        body += low_rank.store_beside(xy, write_rows, begin, width, stride)
    blocks = (Blocks(pool.tile.block_m, 1, "", "up", xy.name),)
    return Kernel("up", body, pool.tile, blocks, tile_count(group, pool, part("1")))
