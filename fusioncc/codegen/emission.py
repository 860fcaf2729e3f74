"""Emission: a group and its schedule become one readable Triton module."""

import math

from fusioncc.codegen import inline, split
from fusioncc.codegen.context import Context, mains_of
from fusioncc.codegen.launch import Buffer, EmittedModule
from fusioncc.codegen.module import Module
from fusioncc.codegen.precision import TIERS, compensates
from fusioncc.descriptors import refusal
from fusioncc.errors import EmissionError
from fusioncc.group import EMITTED_DTYPES, Group, Operand
from fusioncc.schedule import COMPENSATED_STEP, Pool, Schedule, mixes_mma, padded_rank

KINDS = {"inline": inline.kernels, "split": split.kernels}
"""Kinds of schedules that have an emitted form: a new kind is one more file with a ``kernels`` function."""
MAX_BLOCK = 256
"""Widest block of a tile, in elements."""
MAX_RANK = 256
"""Largest padded rank: a program holds a whole row of ``X @ A``."""


def emit(group: Group, schedule: Schedule, *, name: str, tier: str, why: str) -> EmittedModule:
    """The Triton module of the group's main members that the schedule runs.

    Args:
        name: name of the module, an identifier (``k0_inline_...``).
        tier: rounding tier, ``fp32`` or ``relaxed``.
        why: the reason for the schedule, one line for the header.

    Raises:
        EmissionError: the group or the schedule has no emitted form; the message says why.
    """
    context = check(group, schedule, tier)
    kernels = KINDS[schedule.kind](context, schedule)
    return Module(context, schedule, name, " ".join(why.split()), tuple(kernels), _buffers(context, schedule)).emitted()


def check(group: Group, schedule: Schedule, tier: str) -> Context:
    """What ``emit`` refuses, before anything is written.

    Raises:
        EmissionError: as ``emit``.
    """
    for pool in schedule.pools:
        if any(not 0 <= index < len(group.members) for index in pool.members):
            raise EmissionError("a pool lists a member that the group does not have")
    context = Context(group, tier, mains_of(schedule, group))
    _require_schedule(context, schedule)
    _require_group(context)
    _require_saved(context, schedule)
    return context


def _buffers(context: Context, schedule: Schedule) -> tuple[Buffer, ...]:
    """Outputs, saved down products, scratch."""
    outputs = [context.output(main) for main in context.mains]
    saved = [buffer for down in context.downs if (buffer := context.saved(down)) is not None]
    scratch = [
        context.slices(down, pool.k_split)
        for pool in schedule.pools
        if pool.role == "down"
        for down in pool.members
        if context.saved(down) is None
    ]
    return (*outputs, *saved, *scratch)


def _require_schedule(context: Context, schedule: Schedule) -> None:
    if schedule.kind not in KINDS:
        raise EmissionError(
            f"schedule {schedule.kind!r} has no emitted form; emitted kinds: {', '.join(sorted(KINDS))}"
        )
    if context.tier not in TIERS:
        raise EmissionError(f"tier {context.tier!r} has no emitted form; emitted tiers: {', '.join(TIERS)}")
    if not context.mains:
        raise EmissionError(f"schedule {schedule.kind!r} lists no main member of the group")
    roles = ("main",) if schedule.kind == "inline" else ("down", "main")
    listed: set[int] = set()
    ready: set[int] = set()
    for position, pool in enumerate(schedule.pools):
        _require_numbers(context, pool)
        if pool.role not in roles:
            raise EmissionError(f"a {pool.role} pool has no emitted form in schedule {schedule.kind!r}")
        _require_launch(schedule.pools[:position], pool)
        _require_descriptors(context, schedule, pool)
        if schedule.kind == "inline" and mixes_mma(pool.tile):
            raise EmissionError("a swapped inline tile this wide would mix warp-group and warp-level MMA in one loop")
        if pool.chunk is not None or (pool.role == "main" and pool.k_split != 1):
            raise EmissionError(f"schedule {schedule.kind!r} has no chunks, and no K split of main tiles")
        for size in (pool.tile.block_m, pool.tile.block_n, pool.tile.block_k):
            if size < 16 or size & (size - 1):
                raise EmissionError(f"tile size {size} is not a power of two of at least 16")
        members = tuple(context.member(index) for index in pool.members)
        if pool.tile.block_k > COMPENSATED_STEP and compensates(context.group, members, context.tier):
            raise EmissionError(f"a compensated fp32 sum takes K steps of at most {COMPENSATED_STEP}")
        if listed & {*pool.members}:
            raise EmissionError("a member is in one pool only")
        listed |= {*pool.members}
        if pool.role == "down":
            unused = [context.member(down).node for down in pool.members if down not in context.downs]
            if unused:
                raise EmissionError(f"a down pool lists {', '.join(unused)}, which no main pool of the schedule joins")
            ready.update(pool.members)
            continue
        for main in pool.members if schedule.kind == "split" else ():
            missing = {branch.down for branch in context.group.branches_of(main)} - ready
            if missing:
                nodes = ", ".join(context.member(down).node for down in sorted(missing))
                raise EmissionError(
                    f"no down pool before the main pool of {context.member(main).node} computes {nodes}"
                )


def _require_numbers(context: Context, pool: Pool) -> None:
    """Everything a plan edited by hand may hold; a wrong number would write out of bounds or write nothing."""
    tile, members = pool.tile, context.group.members
    if min(pool.group_m, pool.k_split, tile.num_stages) < 1 or (pool.workers is not None and pool.workers < 1):
        raise EmissionError("group_m, k_split, num_stages and workers are at least 1")
    if tile.num_warps not in (1, 2, 4, 8, 16) or tile.num_stages > 8 or pool.k_split > 64:
        raise EmissionError("num_warps is a power of two up to 16, num_stages at most 8, k_split at most 64")
    if max(tile.block_m, tile.block_n, tile.block_k) > MAX_BLOCK:
        raise EmissionError(f"a block is at most {MAX_BLOCK} elements wide")
    if not pool.members or any(not 0 <= i < len(members) or members[i].role != pool.role for i in pool.members):
        raise EmissionError(f"a {pool.role} pool lists {pool.role} members by their index in the group")


def _require_launch(before: tuple[Pool, ...], pool: Pool) -> None:
    """Pools come in order of their launches; those of one launch are alike in all that a kernel fixes once."""
    if pool.launch not in ((before[-1].launch, before[-1].launch + 1) if before else (0,)):
        raise EmissionError("pools are listed in order of their launches, which count from 0")
    if not before or before[-1].launch != pool.launch:
        return
    if pool.role == "down" or before[-1].role == "down":
        raise EmissionError("a down pool has a launch of its own")
    fixed = [(each.tile.num_warps, each.tile.num_stages, each.workers) for each in (before[-1], pool)]
    if fixed[0] != fixed[1]:
        raise EmissionError("pools of one launch have the same warps, stages and workers")


def _require_descriptors(context: Context, schedule: Schedule, pool: Pool) -> None:
    if pool.tile.tma != (pool.workers is not None):
        raise EmissionError("a TMA pool is persistent and names its workers; other pools have none")
    if not pool.tile.tma:
        return
    if pool.role != "main" or schedule.kind != "split" or pool.tile.swap_operands:
        raise EmissionError("TMA tiles are emitted for unswapped main pools of schedule 'split'")
    for main in pool.members:
        reason = refusal(context.group, main)
        if reason:
            raise EmissionError(reason)


def _require_group(context: Context) -> None:
    group = context.group
    if not context.branches:
        raise EmissionError("no main member of the schedule has a low-rank branch: they stay with the vendor library")
    for operand in context.names():
        _require_operand(operand)
    if any(context.output(main).dtype not in EMITTED_DTYPES for main in context.mains):
        raise EmissionError(f"an output dtype has no emitted form; emitted dtypes: {', '.join(EMITTED_DTYPES)}")
    for branch in context.branches:
        down, up = context.member(branch.down), context.member(branch.up)
        if padded_rank(down.n) > MAX_RANK:
            raise EmissionError(
                f"rank {down.n} of {down.node} does not fit in one tile (largest padded rank {MAX_RANK})"
            )
        if not all(map(math.isfinite, (branch.scale, down.bias_scale, up.bias_scale))):
            raise EmissionError(f"a scale of the branch through {down.node} is not finite")
        if branch.scale_tensors and (down.bias or up.bias):
            raise EmissionError(
                f"the branch through {down.node} has a tensor scale and a bias: their order is not recorded"
            )
    if any(member.batch != 1 for member in group.members):
        raise EmissionError("batched members have no emitted form")


def _require_operand(operand: Operand) -> None:
    if operand.dtype not in EMITTED_DTYPES:
        known = ", ".join(EMITTED_DTYPES)
        raise EmissionError(f"{operand.node} is {operand.dtype}, which has no emitted form; emitted dtypes: {known}")
    if any(size == 0 for size in operand.shape):
        raise EmissionError(f"{operand.node} has a dimension of size 0")


def _require_saved(context: Context, schedule: Schedule) -> None:
    if schedule.kind != "split":
        return
    for pool in schedule.pools:
        for down in pool.members if pool.role == "down" else ():
            if context.saved(down) is None:
                continue
            node = context.member(down).node
            if pool.k_split != 1:
                raise EmissionError(
                    f"{node} is saved: its product is written whole, so k_split must be 1, not {pool.k_split}"
                )
            for branch in context.branches:
                if (
                    branch.down == down
                    and context.member(down).bias
                    and context.member(down).bias_scale != branch.scale
                ):
                    raise EmissionError(f"{node} is saved with its bias, which has another scale than the product")
