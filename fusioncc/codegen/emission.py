"""Emission: a group and its schedule become one readable Triton module."""

from dataclasses import replace

from fusioncc.codegen import inline, k_concat, side_by_side, split, streams, two_pool
from fusioncc.codegen.context import Context, mains_of
from fusioncc.codegen.epilogue_rules import require_epilogues
from fusioncc.codegen.group_rules import require_group
from fusioncc.codegen.kernel import Kernel
from fusioncc.codegen.launch import Buffer, EmittedModule
from fusioncc.codegen.module import Module
from fusioncc.codegen.norm_rules import require_norm
from fusioncc.codegen.pool_rules import require_pools
from fusioncc.codegen.precision import TIERS
from fusioncc.codegen.trace import traced
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.schedule import Schedule

KINDS = {
    "streams": streams,
    "concat": side_by_side,
    "horizontal": side_by_side,
    "inline": inline,
    "k_concat": k_concat,
    "split": split,
    "two_pool": two_pool,
}
"""Kinds of schedules that have an emitted form: a new kind is one more file, with ``kernels``, which writes them, and
``require``, which refuses pools that do not make such a schedule."""


def emit(group: Group, schedule: Schedule, *, name: str, tier: str, why: str, trace: bool = False) -> EmittedModule:
    """The Triton module of the group's main members that the schedule runs.

    Args:
        name: name of the module, an identifier (``k0_inline_...``).
        tier: rounding tier, ``fp32`` or ``relaxed``.
        why: the reason for the schedule, one line for the header.
        trace: persistent kernels record when each worker ran which tile; a module that has none is as without.

    Raises:
        EmissionError: the group or the schedule has no emitted form; the message says why.
    """
    context = replace(check(group, schedule, tier), trace=trace)
    kernels = _chained(KINDS[schedule.kind].kernels(context, schedule), schedule)
    if trace:
        kernels = tuple(map(traced, kernels))
    fork = streams.Fork(context, kernels, schedule.vendor_multiprocessors) if schedule.kind == "streams" else None
    return Module(context, schedule, name, " ".join(why.split()), kernels, _buffers(context, schedule), fork).emitted()


def check(group: Group, schedule: Schedule, tier: str) -> Context:
    """What ``emit`` refuses, before anything is written.

    Raises:
        EmissionError: as ``emit``.
    """
    if schedule.kind not in KINDS:
        raise EmissionError(
            f"schedule {schedule.kind!r} has no emitted form; emitted kinds: {', '.join(sorted(KINDS))}"
        )
    if tier not in TIERS:
        raise EmissionError(f"tier {tier!r} has no emitted form; emitted tiers: {', '.join(TIERS)}")
    for pool in schedule.pools:
        if any(not 0 <= index < len(group.members) for index in pool.members):
            raise EmissionError("a pool lists a member that the group does not have")
    context = Context(group, tier, mains_of(schedule, group), concat=schedule.kind == "k_concat")
    if not context.mains:
        raise EmissionError(f"schedule {schedule.kind!r} lists no main member of the group")
    require_epilogues(context)
    require_norm(context, schedule)
    require_pools(context, schedule)
    KINDS[schedule.kind].require(context, schedule)
    require_group(context)
    return context


def _chained(kernels: list[Kernel], schedule: Schedule) -> tuple[Kernel, ...]:
    """The kernels, of which a dependent one is let in by the one before it."""
    dependent = [any(pool.dependent for pool in pools) for pools in schedule.by_launch()]
    following = [*dependent, False][1:]
    return tuple(
        replace(kernel, dependent=waits, triggers=waited)
        for kernel, waits, waited in zip(kernels, dependent, following, strict=True)
    )


def _buffers(context: Context, schedule: Schedule) -> tuple[Buffer, ...]:
    """Outputs, or the operand of a vendor GEMM; saved down products, scratch."""
    saved = [buffer for down in context.downs if (buffer := context.saved(down)) is not None]
    scratch = [
        context.slices(down, pool.k_split)
        for pool in schedule.pools
        if pool.role == "down"
        for down in pool.members
        if context.saved(down) is None
    ]
    splits = schedule.k_splits("main")
    added = () if context.concat else schedule.pools
    ups = [main for pool in added if pool.role == "up" for main in pool.members]
    products = [context.product(main, splits.get(main, 1)) for main in ups]
    counters = [context.counters()] if schedule.kind == "two_pool" else []
    return (*context.outputs, *saved, *scratch, *products, *counters)
