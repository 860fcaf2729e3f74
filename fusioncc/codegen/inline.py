"""Schedule ``inline``: every tile of a main member also accumulates ``X @ A`` for its rows and joins it at the end."""

from fusioncc.codegen.bundle import bundle
from fusioncc.codegen.context import Context
from fusioncc.codegen.kernel import Kernel, Part, part, total
from fusioncc.codegen.low_rank import rank_vectors
from fusioncc.codegen.main_tile import MainTile
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
        bundle([inline_main(context, pool, main) for pool in pools for main in pool.members])
        for pools in schedule.by_launch()
    ]


def inline_main(context: Context, pool: Pool, main: int) -> Kernel:
    """``X`` is read once; the low-rank product costs RP / BLOCK_N more arithmetic. A member without a branch is a plain
    GEMM."""
    tile = MainTile(context, pool, main)
    a_tiles = [low_rank.a_tile(tile.loop.axis, tile.loop.bounds) for low_rank in tile.low_ranks]
    body = (
        tile.vectors()
        + rank_vectors(tile.low_ranks)
        + part("")
        + tile.loop.starts(tile.x, tile.w, *a_tiles)
        + tile.zero()
        + total([low_rank.zero() for low_rank in tile.low_ranks])
        + tile.loop.run(
            [tile.x, tile.w, *a_tiles],
            [tile.accumulate(), *(low_rank.accumulate() for low_rank in tile.low_ranks)],
        )
        + tile.settled()
        + total([low_rank.settled() for low_rank in tile.low_ranks])
        + _joins(tile)
        + part("")
        + tile.epilogue()
    )
    return tile.kernel("main", body, (tile.x, tile.w, tile.out))


def _joins(tile: MainTile) -> Part:
    if not tile.low_ranks:
        return Part()
    body = part("", "# The low-rank product joins in the same accumulator, before the only rounding of the sum.")
    for low_rank in tile.low_ranks:
        body += low_rank.load_bias()
        saved = tile.context.saved(low_rank.branch.down)
        if saved is not None and low_rank.branch == tile.context.first_branch(low_rank.branch.down):
            body += part("if col_block == 0:") + low_rank.save(saved, tile.write_rows).indented()
        body += low_rank.join(tile.read_cols, bias=True, opens=False)
    return body
