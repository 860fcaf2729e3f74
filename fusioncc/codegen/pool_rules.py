"""Which pools have an emitted form, whatever the kind of schedule."""

from fusioncc.codegen.context import Context
from fusioncc.codegen.precision import compensates
from fusioncc.descriptors import refusal
from fusioncc.errors import EmissionError
from fusioncc.schedule import COMPENSATED_STEP, Pool, Schedule, overwrites_x, padded_rank

MAX_BLOCK = 256
"""Widest block of a tile, in elements."""
SPLIT_MAINS = ("concat", "horizontal")
"""Kinds whose main tiles may be split along K: a later launch adds the slices."""
ENDING = (*SPLIT_MAINS, "inline", "split", "two_pool")
"""Kinds whose main tiles may end with an epilogue."""
MAX_ONE_ROW = 2**15
"""Most elements of W, or of A for each column of a rank, that a tile of one row holds."""
MAX_CHAIN = 512
"""Most products that an element of such a tile adds one after another: fp32 sums stay closer than eager's."""
SUBTILES, LEAST_COLUMNS = (1, 2, 4), 16
"""Parts in which a TMA tile may be stored, and columns that each has at least."""
MAX_PROGRAMS = 2**16
"""Most row blocks of a group, and most workers."""
MAX_CHUNK, MAX_LATE = 64, 64
"""Most tiles taken from a queue at once; most turns that down workers sit out."""


def require_pools(context: Context, schedule: Schedule) -> None:
    """Everything that a plan edited by hand may hold; a wrong number would write out of bounds or write nothing.

    Raises:
        EmissionError: with the number or the member that has no emitted form.
    """
    vendor = schedule.vendor_multiprocessors
    if vendor is not None and (schedule.kind != "streams" or vendor < 1):
        raise EmissionError("vendor_multiprocessors is a cap of schedule 'streams', and at least 1")
    listed: set[tuple[bool, int]] = set()
    for position, pool in enumerate(schedule.pools):
        _require_numbers(context, pool)
        if pool.role != "down" and pool.k_split != 1 and (pool.role == "up" or schedule.kind not in SPLIT_MAINS):
            raise EmissionError(f"schedule {schedule.kind!r} has no K split of main tiles")
        _require_launch(schedule, position)
        _require_dependent(context, schedule, position)
        _require_join(schedule, pool)
        _require_tile(context, pool)
        _require_descriptors(context, schedule, pool)
        members = {(pool.role == "up", index) for index in pool.members}
        if listed & members or len(members) < len(pool.members):
            raise EmissionError("a member is in one pool only")
        listed |= members
        if pool.role == "down":
            _require_downs(context, pool)
    _require_endings(context, schedule)


def require_roles(schedule: Schedule, roles: tuple[str, ...]) -> None:
    """Every pool has one of these roles.

    Raises:
        EmissionError: naming the other role.
    """
    for pool in schedule.pools:
        if pool.role not in roles:
            raise EmissionError(f"no {pool.role} pool has an emitted form in schedule {schedule.kind!r}")


def require_branches(context: Context, schedule: Schedule) -> None:
    """A main member of the schedule has a low-rank branch.

    Raises:
        EmissionError: none has.
    """
    if not context.branches:
        raise EmissionError(f"no main member has a low-rank branch: schedule {schedule.kind!r} has nothing to join")


def require_downs_before(context: Context, schedule: Schedule, role: str) -> None:
    """What a ``role`` pool joins is computed by a down pool of an earlier launch.

    Raises:
        EmissionError: naming the member and the missing products.
    """
    for pool in schedule.pools:
        if pool.role != role:
            continue
        earlier = (each for each in schedule.pools if each.role == "down" and each.launch < pool.launch)
        ready = {down for each in earlier for down in each.members}
        for main in pool.members:
            missing = {branch.down for branch in context.group.branches_of(main)} - ready
            if missing:
                nodes = ", ".join(context.member(down).node for down in sorted(missing))
                node = context.member(main).node
                raise EmissionError(f"no down pool before the {role} pool of {node} computes {nodes}")


def _require_numbers(context: Context, pool: Pool) -> None:
    tile, members = pool.tile, context.group.members
    if min(pool.group_m, pool.k_split, tile.num_stages) < 1 or (pool.workers is not None and pool.workers < 1):
        raise EmissionError("group_m, k_split, num_stages and workers are at least 1")
    if max(pool.group_m, pool.workers or 1) > MAX_PROGRAMS:
        raise EmissionError(f"group_m and workers are at most {MAX_PROGRAMS}")
    if tile.num_warps not in (1, 2, 4, 8, 16) or tile.num_stages > 8 or pool.k_split > 64:
        raise EmissionError("num_warps is a power of two up to 16, num_stages at most 8, k_split at most 64")
    if pool.role != "down" and pool.late:
        raise EmissionError("down pools are late, main pools are not")
    if (pool.chunk is not None and not 1 <= pool.chunk <= MAX_CHUNK) or not 0 <= pool.late <= MAX_LATE:
        raise EmissionError(f"a chunk has 1 to {MAX_CHUNK} tiles, late is at most {MAX_LATE} turns")
    role = "main" if pool.role == "up" else pool.role
    if not pool.members or any(members[index].role != role for index in pool.members):
        raise EmissionError(f"pools of the role {pool.role} list {role} members by their index in the group")


def _require_tile(context: Context, pool: Pool) -> None:
    subtiles = pool.tile.epilogue_subtiles
    if subtiles not in (SUBTILES if pool.tile.tma else (1,)) or (
        subtiles > 1 and pool.tile.block_n < subtiles * LEAST_COLUMNS
    ):
        raise EmissionError(
            "a TMA tile is stored whole or in 2 or 4 epilogue subtiles of 16 columns, other tiles whole"
        )
    if pool.tile.one_row:
        _require_one_row(context, pool)
        return
    for size in (pool.tile.block_m, pool.tile.block_n, pool.tile.block_k):
        if size > MAX_BLOCK:
            raise EmissionError(f"a block is at most {MAX_BLOCK} elements wide")
        if size < 16 or size & (size - 1):
            raise EmissionError(f"tile size {size} is not a power of two of at least 16")
    members = tuple(context.member(index) for index in pool.members)
    long = pool.role != "up" and pool.tile.block_k > COMPENSATED_STEP
    if long and compensates(context.group, members, context.tier):
        raise EmissionError(f"a compensated fp32 sum takes K steps of at most {COMPENSATED_STEP}")


def _require_one_row(context: Context, pool: Pool) -> None:
    tile, group = pool.tile, context.group
    if group.m_symbol or group.m != 1 or not tile.swap_operands or tile.tma or pool.role == "up":
        raise EmissionError("tiles of one row are emitted for main and down pools of groups with one row, swapped")
    if any(size < 1 or size & (size - 1) for size in (tile.block_n, tile.block_k)):
        raise EmissionError("the sides of a tile are powers of two")
    ranks = [padded_rank(context.member(branch.down).n) for branch in context.branches]
    widest = max([*ranks, 1] if pool.role == "down" else [tile.block_n])
    if widest * tile.block_k > MAX_ONE_ROW:
        raise EmissionError(f"a tile of one row has at most {MAX_ONE_ROW} elements of a weight")
    if group.k > MAX_CHAIN * tile.block_k:
        raise EmissionError(f"a tile of one row adds at most {MAX_CHAIN} products in a chain")


def _require_dependent(context: Context, schedule: Schedule, position: int) -> None:
    """A launch starts early behind the down launch of ``split`` alone, which lets in whatever comes next in the stream.

    That may be another group's launch. Ahead of its wait it reads its X and W, which are older, unless the graph made W
    in between; and it makes descriptors in memory that the allocator hands out. So nothing that only the down launch
    reads may be freed behind it: an A that the graph made would be.
    """
    pool = schedule.pools[position]
    if not pool.dependent:
        return
    before = [each for each in schedule.pools if each.launch == pool.launch - 1]
    if schedule.kind != "split" or pool.role != "main" or {each.role for each in before} != {"down"}:
        raise EmissionError(f"launch {pool.launch} of {schedule.kind!r}, of the role {pool.role}, cannot start early")
    read = [*pool.members, *(down for each in before for down in each.members)]
    made = [context.member(index).node for index in read if context.member(index).weight.made]
    if made:
        raise EmissionError(f"a launch cannot start early where the graph computes an operand: that of {made[0]}")


def _require_join(schedule: Schedule, pool: Pool) -> None:
    """Main tiles of ``split`` join behind their K loop or before it; those of one row add up behind it."""
    main = schedule.kind == "split" and pool.role == "main"
    if pool.joins_last and not main:
        raise EmissionError(f"only main tiles of 'split' join last, not the {pool.role} tiles of {schedule.kind!r}")
    if main and pool.tile.one_row and not pool.joins_last:
        raise EmissionError("tiles of one row join last")


def _require_launch(schedule: Schedule, position: int) -> None:
    """Pools come in order of their launches; those of one launch are alike in all that a kernel fixes once."""
    before, pool = schedule.pools[:position], schedule.pools[position]
    if pool.launch not in ((before[-1].launch, before[-1].launch + 1) if before else (0,)):
        raise EmissionError("pools are listed in order of their launches, which count from 0")
    if not before or before[-1].launch != pool.launch:
        return
    fixed = [(each.tile.num_warps, each.tile.num_stages, each.dependent) for each in (before[-1], pool)]
    workers = {each.workers for each in (before[-1], pool)} if schedule.kind != "two_pool" else ()
    if fixed[0] != fixed[1] or len(workers) > 1:
        raise EmissionError("pools of one launch start together, with the same warps, stages and workers")


def _require_descriptors(context: Context, schedule: Schedule, pool: Pool) -> None:
    if schedule.kind == "two_pool":
        if pool.role == "down" and pool.tile.tma:
            raise EmissionError("down tiles have no TMA form")
    elif (pool.tile.tma != (pool.workers is not None) and not _capped(schedule, pool)) or pool.chunk or pool.late:
        raise EmissionError(
            "a TMA pool is persistent and names its workers; other pools have neither workers nor chunks"
        )
    if not pool.tile.tma:
        return
    if pool.role != "main" or schedule.kind == "inline" or pool.tile.swap_operands:
        raise EmissionError("TMA tiles are emitted for unswapped main pools, not for schedule 'inline'")
    for main in pool.members:
        reason = refusal(context.group, main)
        if reason:
            raise EmissionError(reason)


def _require_endings(context: Context, schedule: Schedule) -> None:
    """The members of an epilogue are computed by one pool, which writes nothing for a later launch to add to."""
    mains = [pool for pool in schedule.pools if pool.role == "main"]
    for epilogue in context.group.epilogues:
        pool = next((each for each in mains if set(epilogue.mains) <= {*each.members}), None)
        nodes = ", ".join(context.member(main).node for main in epilogue.mains)
        if pool is None:
            raise EmissionError(f"{nodes} end together: one main pool lists them")
        columns, head = pool.tile.block_n, epilogue.head
        if not pool.tile.holds_heads(head):
            raise EmissionError(f"a tile of {columns} columns cannot rotate the halves of heads of {head}")
        added = any(context.group.branches_of(main) for main in epilogue.mains)
        if schedule.kind not in ENDING or (schedule.kind in SPLIT_MAINS and (added or pool.k_split > 1)):
            raise EmissionError(f"the main tiles of {nodes} end with no epilogue in schedule {schedule.kind!r}")


def _capped(schedule: Schedule, pool: Pool) -> bool:
    """Whether workers are a cap of multiprocessors, in any tile."""
    return schedule.kind == "streams" and pool.role == "down"


def _require_downs(context: Context, pool: Pool) -> None:
    unused = [context.member(down).node for down in pool.members if down not in context.downs]
    if unused:
        raise EmissionError(f"a down pool lists {', '.join(unused)}, which no main pool of the schedule joins")
    if overwrites_x(pool.tile, tuple(padded_rank(context.member(down).n) for down in pool.members)):
        raise EmissionError(
            "a swapped down tile of such unequal ranks would overwrite X while a warp-group MMA reads it"
        )
    for down in pool.members:
        if context.saved(down) is None:
            continue
        member = context.member(down)
        if pool.k_split != 1:
            raise EmissionError(
                f"{member.node} is saved: its product is written whole, so k_split must be 1, not {pool.k_split}"
            )
        scales = {branch.scale for branch in context.branches if branch.down == down}
        if member.bias is not None and scales != {member.bias_scale}:
            raise EmissionError(f"{member.node} is saved with its bias, which has another scale than the product")
