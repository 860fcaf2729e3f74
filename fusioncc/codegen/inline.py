"""Schedule ``inline``: every tile of a main member also accumulates ``X @ A`` for its rows and joins it at the end."""

from fusioncc.codegen.bundle import bundle
from fusioncc.codegen.context import Context
from fusioncc.codegen.ending import Ending
from fusioncc.codegen.kernel import Kernel, Part, part, total
from fusioncc.codegen.low_rank import LowRankTile, rank_vectors
from fusioncc.codegen.main_tile import MainTile, low_ranks_of, main_tiles, operand_tiles
from fusioncc.codegen.norm import RowNorm
from fusioncc.codegen.pool_rules import require_branches, require_roles
from fusioncc.errors import EmissionError
from fusioncc.schedule import Pool, Schedule, overwrites_x, padded_rank


def require(context: Context, schedule: Schedule) -> None:
    """Main pools only, and something to join.

    Raises:
        EmissionError: the pools do not make such a schedule.
    """
    require_roles(schedule, ("main",))
    require_branches(context, schedule)
    for pool in schedule.pools:
        for main in pool.members:
            ranks = tuple(padded_rank(context.member(branch.down).n) for branch in context.group.branches_of(main))
            if overwrites_x(pool.tile, ranks, main=True):
                raise EmissionError("a swapped inline tile this wide would overwrite X while a warp-group MMA reads it")


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """One kernel for each launch: a main member, or a bundle of them."""
    return [
        bundle([inline_main(context, pool, mains) for pool in pools for mains in context.group.together(pool.members)])
        for pools in schedule.by_launch()
    ]


def inline_main(context: Context, pool: Pool, mains: tuple[int, ...]) -> Kernel:
    """``X`` is read once; the low-rank product costs RP / BLOCK_N more arithmetic. A member without a branch is a plain
    GEMM. Where ``X`` is normed, every product has its rows scaled behind the loop."""
    tiles = main_tiles(context, pool, mains)
    first, lows = tiles[0], low_ranks_of(tiles)
    a_tiles = [low_rank.a_tile(first.loop.axis, first.loop.bounds) for low_rank in lows]
    operands = operand_tiles(tiles)
    sums: tuple[MainTile | LowRankTile, ...] = (*tiles, *lows)
    ending, norm = Ending(tiles), RowNorm(first)
    body = (
        first.vectors()
        + rank_vectors(lows)
        + part("")
        + first.loop.starts(*operands, *a_tiles)
        + total([each.zero() for each in sums])
        + norm.zero()
        + first.loop.run([*operands, *a_tiles], [norm.step(), *(each.accumulate() for each in sums)])
        + total([each.settled() for each in sums])
        + norm.scaled(*(name for tile in tiles for name in tile.carried), *(low_rank.y for low_rank in lows))
        + _joins(tiles)
        + part("")
        + ending.body
    )
    return first.kernel("main", body, (*operands, *ending.written), ending.helpers)


def _joins(tiles: tuple[MainTile, ...]) -> Part:
    lows = low_ranks_of(tiles)
    if not lows:
        return Part()
    context, first = tiles[0].context, tiles[0]
    body = part("", "# The low-rank product joins in the same accumulator, before the only rounding of the sum.")
    for low_rank in lows:
        body += low_rank.load_bias()
        saved = context.saved(low_rank.branch.down)
        if saved is not None and low_rank.branch == context.first_branch(low_rank.branch.down):
            body += part("if col_block == 0:") + low_rank.save(saved, first.write_rows).indented()
        body += low_rank.join(first.read_cols, bias=True, opens=False)
    return body
