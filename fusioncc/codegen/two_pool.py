"""Schedule ``two_pool``: one persistent kernel in which down workers make the low-rank products while main workers are
already in their K loops.

A program becomes worker 0, 1, 2, ... in the order in which programs start. The first ``DOWN_WORKERS`` take down tiles
from a counter until there are none, publish each, and go on with main tiles; everyone else starts on main tiles at once
and waits for its rows just before the join.

Why it always ends: down tiles are only taken by workers that run, and a worker that has taken one does not wait before
it is published. The first worker to start is a down worker, and down workers go on until no tile is left. So whoever
waits, waits for a down tile that is published, that a running worker has taken, or that a running worker will take
without waiting. Nobody waits for a worker that has not started: it does not matter how many programs are resident, or
in which order they start.

Slices of K are added in a fixed order, and stripes and queue only decide who computes a main tile: the result has the
same bits every time.
"""

from fusioncc.codegen.bundle import Together
from fusioncc.codegen.context import Context
from fusioncc.codegen.kernel import Kernel, Param, Part, buffer_pointer, constant, part
from fusioncc.codegen.main_tile import low_ranks_of, main_tiles
from fusioncc.codegen.pool_rules import require_branches, require_roles
from fusioncc.codegen.split import down_kernel, joined_last
from fusioncc.codegen.tile_order import one_row_block
from fusioncc.codegen.trace import recorded
from fusioncc.errors import EmissionError
from fusioncc.schedule import Pool, Schedule

STARTED, DOWN_TILE, MAIN_TILE, READY = range(4)
"""What the counters count: workers that started, down tiles taken, main tiles taken from the queue; then, for each
block of rows, its down tiles that are published."""


def require(context: Context, schedule: Schedule) -> None:
    """One down pool and main pools in one launch, in blocks of the same rows.

    Raises:
        EmissionError: the pools do not make such a schedule.
    """
    require_roles(schedule, ("down", "main"))
    require_branches(context, schedule)
    downs = [pool for pool in schedule.pools if pool.role == "down"]
    mains = [pool for pool in schedule.pools if pool.role == "main"]
    if len(downs) != 1 or any(pool.launch for pool in schedule.pools):
        raise EmissionError("schedule 'two_pool' has one down pool, in one launch with its main pools")
    if {*downs[0].members} != {*context.downs}:
        raise EmissionError("the down pool lists every down member that a main pool joins")
    if len({(pool.workers, pool.chunk, pool.group_m) for pool in mains}) > 1:
        raise EmissionError("main pools of one launch share workers, chunks and ordering")
    if not downs[0].workers or not mains[0].workers or downs[0].workers > mains[0].workers:
        raise EmissionError("schedule 'two_pool' names its workers; down workers are some of all workers")
    if {pool.tile.block_m for pool in schedule.pools} != {downs[0].tile.block_m}:
        raise EmissionError("down and main tiles have blocks of the same rows, which are published together")
    if mains[0].chunk is not None and downs[0].late:
        raise EmissionError("down workers are late in stripes; from a queue they take what is left")


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """The one kernel."""
    (down,) = (pool for pool in schedule.pools if pool.role == "down")
    mains = [pool for pool in schedule.pools if pool.role == "main"]
    members = [
        published_main(context, pool, each, down) for pool in mains for each in context.group.together(pool.members)
    ]
    downs = down_kernel(context, down)
    together, count = Together((*members, downs)), len(members)
    tiles, down_tiles = together.last_end(count), together.tiles(count)
    prologue = (
        together.declared()
        + together.ends(count)
        + part(f"tiles = {tiles.lines[0]}", params=tiles.params)
        + part(f"down_tiles = {down_tiles.lines[0]}", params=down_tiles.params)
    )
    run_down, run_main = together.call(count, "down_tile"), together.dispatch(count, "tiles")
    if context.trace:
        run_down = recorded(run_down, "tiles + down_tile", "worker")
        run_main = recorded(run_main, "tile", "worker", within="tile < tiles" if down.late else "")
    body = (
        part(f"worker = {_taken(STARTED)}", params=(_counters(context),))
        + _down_phase(down, run_down)
        + (_queue if mains[0].chunk else _stripes)(mains[0], down, run_main)
    )
    grid = tuple(blocks for member in members for blocks in member.grid)
    return [
        Kernel(
            "two_pool",
            body,
            mains[0].tile,
            grid,
            tiles,
            together.helpers,
            mains[0].workers,
            prologue,
            bundled=together.shapes,
            walks=True,
            traced=(*grid, *downs.grid) if context.trace else (),
        )
    ]


def published_main(context: Context, pool: Pool, mains: tuple[int, ...], down: Pool) -> Kernel:
    """A main tile: the K loop, then the wait for what the down workers publish, the join and the store."""
    tiles = main_tiles(context, pool, mains)
    wait = _wait(context, pool, down) if low_ranks_of(tiles) else Part()
    return joined_last(tiles, dict.fromkeys(down.members, down.k_split), wait)


def _wait(context: Context, pool: Pool, down: Pool) -> Part:
    row_block = "" if one_row_block(context.group, pool) else " + row_block"
    published, params = _slices(down)
    return part(
        "",
        "# A running worker has taken the down tiles of these rows; it does not wait for anyone.",
        f'while tl.atomic_add(counters_ptr + {READY}{row_block}, 0, sem="acquire") < {published}:',
        "    pass",
        params=(_counters(context), *params),
    )


def _down_phase(down: Pool, run: Part) -> Part:
    """Down tiles, one after another, each published when all threads have written it."""
    workers = constant("DOWN_WORKERS", down.workers or 0)
    published, params = _slices(down)
    row_block = "down_tile" if down.k_split == 1 else f"down_tile // {published}"
    loop = (
        part("while down_tile < down_tiles:")
        + run.indented()
        + part(
            "    tl.debug_barrier()",
            f'    tl.atomic_add(counters_ptr + {READY} + {row_block}, 1, sem="release")',
            f"    down_tile = {_taken(DOWN_TILE)}",
        )
    )
    body = part(f"down_tile = {_taken(DOWN_TILE)}") + loop
    return part("if worker < DOWN_WORKERS:", params=(workers, *params)) + body.indented()


def _stripes(main: Pool, down: Pool, run: Part) -> Part:
    """Every worker has its main tiles beforehand; down workers sit out the first ``late`` turns."""
    if not down.late:
        return part("for tile in range(worker, tiles, tl.num_programs(0)):") + run.indented()
    loop = part(
        "workers = tl.num_programs(0)",
        "others = tl.maximum(workers - DOWN_WORKERS, 0)",
        "late = LATE * others",
        "# Down workers sit out the first LATE turns: they have no tile then.",
        "for turn in range(LATE + tl.cdiv(tl.maximum(tiles - late, 0), workers)):",
        "    tile = late + (turn - LATE) * workers + worker",
        "    if turn < LATE:",
        "        tile = tl.where(worker < DOWN_WORKERS, tiles, turn * others + worker - DOWN_WORKERS)",
        params=(constant("LATE", down.late),),
    )
    return loop + run.indented()


def _queue(main: Pool, down: Pool, run: Part) -> Part:
    """Workers take ``CHUNK`` main tiles in a row from a counter."""
    return (
        part(f"first = {_taken(MAIN_TILE, 'CHUNK')}", params=(constant("CHUNK", main.chunk or 1),))
        + part("while first < tiles:", "    for tile in range(first, tl.minimum(first + CHUNK, tiles)):")
        + run.indented().indented()
        + part(f"    first = {_taken(MAIN_TILE, 'CHUNK')}")
    )


def _taken(counter: int, step: str = "1") -> str:
    at = f"counters_ptr + {counter}" if counter else "counters_ptr"
    return f'tl.atomic_add({at}, {step}, sem="relaxed")'


def _slices(down: Pool) -> tuple[str, tuple[Param, ...]]:
    """How many down tiles publish one block of rows, as source."""
    return ("1", ()) if down.k_split == 1 else ("K_SPLIT", (constant("K_SPLIT", down.k_split),))


def _counters(context: Context) -> Param:
    return buffer_pointer("counters_ptr", context.counters())
