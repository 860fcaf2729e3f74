"""Schedule ``split``: a down kernel writes ``X @ A``, and the main kernels open their accumulators with its join."""

from dataclasses import replace

from fusioncc.codegen.bundle import bundle
from fusioncc.codegen.context import Context
from fusioncc.codegen.ending import Ending
from fusioncc.codegen.k_loop import KLoop
from fusioncc.codegen.kernel import WAIT, Kernel, Param, Part, buffer_pointer, constant, part, total
from fusioncc.codegen.launch import Blocks, Buffer
from fusioncc.codegen.low_rank import LowRankTile, helpers, joined_vectors, low_ranks, rank_vectors
from fusioncc.codegen.main_tile import MainTile, low_ranks_of, main_tiles, operand_tiles
from fusioncc.codegen.pool_rules import require_branches, require_downs_before, require_roles
from fusioncc.codegen.tile import Axis, Tile, row_vectors, wide_rows
from fusioncc.codegen.tile_order import down_order, one_row_block, tile_count
from fusioncc.errors import EmissionError
from fusioncc.schedule import Pool, Schedule


def require(context: Context, schedule: Schedule) -> None:
    """Down pools, each in a launch of its own, before the main pools that join what they compute.

    Raises:
        EmissionError: the pools do not make such a schedule.
    """
    require_roles(schedule, ("down", "main"))
    require_branches(context, schedule)
    require_downs_before(context, schedule, "main")
    for pools in schedule.by_launch():
        if len(pools) > 1 and any(pool.role == "down" for pool in pools):
            raise EmissionError("a down pool has a launch of its own")


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """One kernel for each launch: the downs of a pool share a pass over X; main members may be bundled."""
    splits = schedule.k_splits("down")
    return [
        down_kernel(context, pools[0])
        if pools[0].role == "down"
        else bundle(
            [
                joined_main(context, pool, mains, splits)
                for pool in pools
                for mains in context.group.together(pool.members)
            ]
        )
        for pools in schedule.by_launch()
    ]


def down_kernel(context: Context, pool: Pool, copied: Buffer | None = None) -> Kernel:
    """Tiles are (row block, slice of K); each writes fp32 partial sums, or the saved product itself. Where X is
    ``copied``, each also writes what it read of X into the first columns of that buffer."""
    branches = tuple(context.first_branch(down) for down in dict.fromkeys(pool.members))
    lows = low_ranks(context, branches, pool.tile)
    loop = KLoop(context, pool)
    width = max(
        int(copied.shape[1]) if copied else context.group.k,
        pool.k_split * max(int(context.slices(down, 1).shape[2]) for down in pool.members),
    )
    wide = wide_rows(context.group, width)
    rows, read_rows, write_rows = row_vectors(pool.tile, one_block=one_row_block(context.group, pool), wide=wide)
    x = context.tile("x", context.group.lhs, (read_rows, loop.axis), pool.tile.swaps_x, loop.bounds)
    a_tiles = [low_rank.a_tile(loop.axis, loop.bounds) for low_rank in lows]
    copies = [_copy(copied, pool, (write_rows, loop.axis), loop.bounds)] if copied else []
    stores = [step for copy in copies for step in (copy.store("x"), copy.advance(loop.axis, "BLOCK_K"))]
    body = (
        down_order(context.group, pool)
        + rows
        + loop.vectors()
        + rank_vectors(lows)
        + part("")
        + loop.starts(x, *a_tiles, *copies)
        + total([low_rank.zero() for low_rank in lows])
        + loop.run([x, *a_tiles], [low_rank.accumulate() for low_rank in lows] + stores)
        + total([low_rank.settled() for low_rank in lows])
        + part("")
    )
    made = []
    for low_rank in lows:
        saved, slices = context.saved(low_rank.branch.down), context.slices(low_rank.branch.down, pool.k_split)
        if saved is not None:
            body += low_rank.load_bias() + low_rank.save(saved, write_rows)
        else:
            body += low_rank.store_slice(slices, write_rows, wide)
        made.append((saved or slices).name)
    count = "" if pool.k_split == 1 else str(pool.k_split)
    blocks = Blocks(pool.tile.block_m, pool.k_split, count, "down", ", ".join(made))
    k_split = part("1") if pool.k_split == 1 else part("K_SPLIT", params=(constant("K_SPLIT", pool.k_split),))
    number = context.downs.index(pool.members[0])
    tiles = tile_count(context.group, pool, k_split)
    return Kernel("down", body, pool.tile, (blocks,), tiles, helpers(lows), pool.workers, number=number)


def _copy(buffer: Buffer, pool: Pool, axes: tuple[Axis, Axis], bounds: tuple[Param, ...]) -> Tile:
    """The tile of a buffer into which the tile of X is copied."""
    stride = constant(f"{buffer.name.upper()}_STRIDE", int(buffer.shape[1]), f"{buffer.name}.shape[1]")
    params = (buffer_pointer(f"{buffer.name}_ptr", buffer), stride, *bounds)
    return Tile(buffer.name, f"{buffer.name}_ptr", axes, (stride.name, "1"), params, pool.tile.swap_operands)


def joined_main(context: Context, pool: Pool, mains: tuple[int, ...], splits: dict[int, int]) -> Kernel:
    """The main GEMM; its low-rank products join before its K loop or, while a down launch may still run, behind it."""
    tiles = main_tiles(context, pool, mains)
    if pool.joins_last:
        wait = part("") + WAIT if pool.dependent else Part()
        return replace(joined_last(tiles, splits, wait), waits=pool.dependent)
    first, lows = tiles[0], low_ranks_of(tiles)
    operands = operand_tiles(tiles)
    ending = Ending(tiles)
    body = (
        joined_vectors(lows)
        + first.vectors()
        + (opening(tiles, splits) if lows else total([tile.zero() for tile in tiles]))
        + first.loop.starts(*operands)
        + first.loop.run(operands, [tile.accumulate() for tile in tiles])
        + part("")
        + ending.body
    )
    return first.kernel("main", body, (*operands, *ending.written), ending.helpers)


def joined_last(tiles: tuple[MainTile, ...], splits: dict[int, int], wait: Part) -> Kernel:
    """Main tiles that read the down products, once they need not ``wait`` for them, behind their K loop."""
    first = tiles[0]
    operands = operand_tiles(tiles)
    ending = Ending(tiles)
    body = (
        joined_vectors(low_ranks_of(tiles))
        + first.vectors()
        + part("")
        + first.loop.starts(*operands)
        + total([tile.zero() for tile in tiles])
        + first.loop.run(operands, [tile.accumulate() for tile in tiles])
        + total([tile.settled() for tile in tiles])
        + wait
        + total([joined(tile, low_rank, splits, opens=False) for tile in tiles for low_rank in tile.low_ranks])
        + part("")
        + ending.body
    )
    return first.kernel("main", body, (*operands, *ending.written), ending.helpers)


def opening(tiles: tuple[MainTile, ...], splits: dict[int, int]) -> Part:
    """The low-rank products open the accumulators."""
    body = part("", "# The low-rank product opens the accumulator, which rounds once, after the K loop.")
    for tile in tiles:
        body += Part() if tile.low_ranks else tile.zero()
        for index, low_rank in enumerate(tile.low_ranks):
            body += joined(tile, low_rank, splits, opens=index == 0)
            if index == 0 and not low_rank.stepped:
                body += tile.correction()  # what the next branches lose is carried into the K loop
    return body + part("")


def joined(tile: MainTile, low_rank: LowRankTile, splits: dict[int, int], *, opens: bool) -> Part:
    """Read what the down kernel wrote, and join it."""
    down = low_rank.branch.down
    saved = tile.context.saved(down)
    if saved is not None:
        read = low_rank.load_saved(saved, tile.read_rows)
    else:
        read = low_rank.load_slices(tile.context.slices(down, splits[down]), tile.read_rows) + low_rank.load_bias()
    if not low_rank.stepped:
        return read + low_rank.join(tile.read_cols, bias=saved is None, opens=opens)
    opened = tile.zero() if opens else Part()
    return opened + low_rank.steps(read + low_rank.join(tile.read_cols, bias=saved is None, opens=False))
