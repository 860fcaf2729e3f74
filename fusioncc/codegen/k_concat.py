"""Schedule ``k_concat``: one kernel writes ``[X | s X A]``, which a vendor GEMM multiplies by W and B in one buffer.

The kernel is a pass over X that keeps it: each K step stores the tile that it multiplies by A, and the low-rank
products follow, scaled and rounded to the dtype of X. The GEMM is no part of the module: only a call knows the buffer.
"""

from fusioncc.codegen.context import Context
from fusioncc.codegen.k_loop import KLoop
from fusioncc.codegen.kernel import Kernel, buffer_pointer, constant, part, total
from fusioncc.codegen.launch import Blocks
from fusioncc.codegen.low_rank import helpers, low_ranks, rank_vectors
from fusioncc.codegen.pool_rules import require_roles
from fusioncc.codegen.tile import Tile, row_vectors, wide_rows
from fusioncc.codegen.tile_order import down_order, one_row_block, tile_count
from fusioncc.errors import EmissionError
from fusioncc.packing import concat_begins, concat_refusal, concat_width
from fusioncc.schedule import Schedule, overwrites_x, padded_rank


def require(context: Context, schedule: Schedule) -> None:
    """One pool for all down products, each over all of K: it writes operands, which nobody adds up.

    Raises:
        EmissionError: the pools do not make such a schedule, or the group has none.
    """
    require_roles(schedule, ("down",))
    reason = concat_refusal(context.group)
    if reason:
        raise EmissionError(reason)
    if len(schedule.pools) != 1 or set(schedule.pools[0].members) != set(context.downs):
        raise EmissionError("schedule 'k_concat' has one pool, of all down members")
    if schedule.pools[0].tile.one_row:
        raise EmissionError("the pass of 'k_concat' has no tiles of one row")
    ranks = tuple(padded_rank(context.member(down).n) for down in context.downs)
    if overwrites_x(schedule.pools[0].tile, ranks, stored=True):
        raise EmissionError(
            "the pass of 'k_concat' also stores X: its tiles have no warp-group MMA (less than 64 rows)"
        )
    if schedule.pools[0].k_split != 1:
        raise EmissionError(f"the pass of 'k_concat' writes X @ A whole: k_split is 1, not {schedule.pools[0].k_split}")


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """The pass over X; tiles are row blocks."""
    (pool,) = schedule.pools
    group, xy = context.group, context.operand()
    lows = low_ranks(context, context.branches, pool.tile)
    loop = KLoop(context, pool)
    wide = wide_rows(group, int(xy.shape[1]))
    rows, read_rows, write_rows = row_vectors(pool.tile, one_block=one_row_block(group, pool), wide=wide)
    stride = constant("XY_STRIDE", int(xy.shape[1]), "xy.shape[1]")
    x = context.tile("x", group.lhs, (read_rows, loop.axis), pool.tile.swap_operands, loop.bounds)
    params = (buffer_pointer("xy_ptr", xy), stride, *loop.bounds)
    copy = Tile("xy", "xy_ptr", (write_rows, loop.axis), ("XY_STRIDE", "1"), params, pool.tile.swap_operands)
    a_tiles = [low_rank.a_tile(loop.axis, loop.bounds) for low_rank in lows]
    step = [*(each.accumulate() for each in lows), copy.store("x"), copy.advance(loop.axis, "BLOCK_K")]
    body = (
        down_order(group, pool)
        + rows
        + loop.vectors()
        + rank_vectors(lows)
        + part("")
        + loop.starts(x, *a_tiles, copy)
        + total([low_rank.zero() for low_rank in lows])
        + loop.run([x, *a_tiles], step)
        + part("")
    )
    begins = concat_begins(group)
    for low_rank in lows:
        behind = begins[low_rank.branch.up] - group.k
        source = f"x.shape[1] + {behind}" if behind else "x.shape[1]"
        begin = constant(f"XY_BEGIN{low_rank.tail}", group.k + behind, source)
        width = constant(f"XY_WIDTH{low_rank.tail}", concat_width(group, low_rank.branch))
        body += low_rank.store_beside(xy, write_rows, begin, width, stride)
    blocks = (Blocks(pool.tile.block_m, 1),)
    return [Kernel("down", body, pool.tile, blocks, tile_count(group, pool, part("1")), helpers(lows))]
