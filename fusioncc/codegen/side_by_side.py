"""Schedules ``concat`` and ``horizontal``: all products that read X in one grid, their low-rank parts added after it.

The first launch runs main and down tiles side by side. Main members with a branch leave their product in fp32, and the
second launch adds ``scale * y @ B`` and rounds. So do members whose K is split: few tiles become more, and the second
launch adds their slices in order. In ``concat`` all tiles have one shape, as if the weights stood next to
each other; in ``horizontal`` each member has its own.
"""

from fusioncc.codegen.bundle import bundle
from fusioncc.codegen.context import Context
from fusioncc.codegen.ending import Ending
from fusioncc.codegen.inline import inline_main
from fusioncc.codegen.kernel import Kernel, part
from fusioncc.codegen.low_rank import joined_vectors
from fusioncc.codegen.main_tile import MainTile
from fusioncc.codegen.pool_rules import require_downs_before
from fusioncc.codegen.split import down_kernel, joined
from fusioncc.codegen.tile import INT32_ELEMENTS
from fusioncc.errors import EmissionError
from fusioncc.schedule import Pool, Schedule


def require(context: Context, schedule: Schedule) -> None:
    """Main and down pools in the first launch; up pools for the main members with something to add in the second.

    Raises:
        EmissionError: the pools do not make such a schedule.
    """
    first, *later = schedule.by_launch()
    second = later[0] if later else []
    if len(later) > 1 or any(pool.role == "up" for pool in first) or any(pool.role != "up" for pool in second):
        raise EmissionError(f"schedule {schedule.kind!r} has main and down pools in one launch, up pools in the next")
    joined = {main for pool in second for main in pool.members}
    splits = schedule.k_splits("main")
    added = {main for main in context.mains if context.group.branches_of(main) or splits[main] > 1}
    if joined != added:
        nodes = ", ".join(context.member(main).node for main in sorted(joined ^ added))
        raise EmissionError(f"an up pool lists the main members with a branch or a K split, and no others: {nodes}")
    require_downs_before(context, schedule, "up")
    if any(pool.tile.tma for pool in first) and added:
        raise EmissionError("TMA tiles have no emitted form beside down tiles or with a K split")
    _require_small_products(context, splits)
    shapes = {(pool.tile.block_m, pool.tile.block_k) for pool in first}
    if schedule.kind == "concat" and len(shapes) > 1:
        raise EmissionError("the tiles of schedule 'concat' have one shape")


def _require_small_products(context: Context, splits: dict[int, int]) -> None:
    """Offsets of slices are 32 bits."""
    group = context.group
    for main, k_split in splits.items():
        if k_split > 1 and (group.m_symbol or k_split * group.m * context.member(main).n >= INT32_ELEMENTS):
            raise EmissionError(f"the slices of {context.member(main).node} may pass 2**31 elements")


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """One kernel for what reads X and, where something is left to add, one that adds it."""
    splits = (schedule.k_splits("main"), schedule.k_splits("down"))
    launched = ([_members(context, pool, *splits) for pool in pools] for pools in schedule.by_launch())
    return [bundle([kernel for kernels in pools for kernel in kernels]) for pools in launched]


def _members(context: Context, pool: Pool, mains: dict[int, int], downs: dict[int, int]) -> list[Kernel]:
    if pool.role == "down":
        return [down_kernel(context, pool)]
    if pool.role == "up":
        return [up_main(context, pool, main, mains[main], downs) for main in pool.members]
    return [
        product_main(context, pool, each[0])
        if context.group.branches_of(each[0]) or pool.k_split > 1
        else inline_main(context, pool, each)
        for each in context.group.together(pool.members)
    ]


def product_main(context: Context, pool: Pool, main: int) -> Kernel:
    """``X @ W`` alone, or over one slice of K, left in fp32."""
    tile = MainTile(context, pool, main, (main,))
    body = (
        tile.vectors()
        + part("")
        + tile.loop.starts(tile.x, tile.w)
        + tile.zero()
        + tile.loop.run([tile.x, tile.w], [tile.accumulate()])
        + tile.settled()
        + part("")
        + tile.store_product()
    )
    return tile.kernel("main", body, (tile.x, tile.w), tile.helpers)


def up_main(context: Context, pool: Pool, main: int, k_split: int, downs: dict[int, int]) -> Kernel:
    """The slices of the product and the low-rank parts, added before the only rounding of the sum."""
    tile = MainTile(context, pool, main, (main,))
    body = joined_vectors(tile.low_ranks) + tile.vectors() + part("") + tile.load_product(k_split)
    body += tile.correction() if tile.low_ranks else part()
    for low_rank in tile.low_ranks:
        body += joined(tile, low_rank, downs, opens=False)
    ending = Ending((tile,))
    return tile.kernel("up", body + part("") + ending.body, ending.written, ending.helpers)
