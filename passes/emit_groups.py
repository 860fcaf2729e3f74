"""Emit groups: the Triton module of every group whose schedule has one; equal groups share a module's text and name."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fusioncc.codegen import emit
from fusioncc.codegen.launch import Arg, EmittedModule
from fusioncc.decision import Rejected
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.passes.plan_groups import WITHOUT_KERNEL, as_library
from fusioncc.plan import GroupPlan
from fusioncc.seam import translated, warn

UNTRACED_HINT = "schedule='two_pool' has workers, and so have main tiles through TMA"


@dataclass(frozen=True)
class Emitted:
    """Groups with their kernels named, the module of each emitted group (by group name), and what had no form."""

    groups: tuple[GroupPlan, ...]
    modules: dict[str, EmittedModule]
    rejections: tuple[Rejected, ...]


def emit_groups(groups: tuple[GroupPlan, ...], on_error: str, trace: bool = False) -> Emitted:
    """Emit every group; one whose schedule has no emitted form, or whose emission fails, goes back to ``library``. With
    ``trace``, groups in which nothing can be traced are named among the rejections; they run all the same.

    Raises:
        EmissionError: that happened, and ``on_error`` is ``raise``.
    """
    names: dict[Any, str] = {}
    emitted_once: dict[str, tuple[GroupPlan, EmittedModule]] = {}
    modules: dict[str, EmittedModule] = {}
    done, rejections = [], []
    for planned in groups:
        if planned.schedule.kind in WITHOUT_KERNEL:
            done.append(planned)
            continue
        key = (planned.group.signature(), _shared(planned), planned.schedule, planned.tier, planned.why)
        named = replace(planned, kernel=names.setdefault(key, _name(len(names), planned)))
        try:
            if named.kernel not in emitted_once:
                action = partial(module_of, named, trace)
                emitted_once[named.kernel] = named, translated("the emitter failed", action, EmissionError)
            emitted = _for_equal(*emitted_once[named.kernel], named)
        except EmissionError as error:
            if on_error == "raise":
                raise EmissionError(f"{planned.name}: {error}") from error
            warn(f"{planned.name}: {error}; the group is left as it was")
            rejections.append(Rejected("emission", planned.name, str(error)))
            done.append(as_library(planned, "the schedule has no emitted form"))
            continue
        modules[planned.name] = emitted
        if trace and not emitted.traced:
            rejections.append(Rejected("trace", planned.name, _untraced(planned), UNTRACED_HINT))
        done.append(named)
    return Emitted(tuple(done), modules, tuple(rejections))


def module_of(planned: GroupPlan, trace: bool) -> EmittedModule:
    """The module of a group whose kernel is named.

    Raises:
        EmissionError: as :func:`fusioncc.codegen.emit`.
    """
    return emit(planned.group, planned.schedule, name=planned.kernel, tier=planned.tier, why=planned.why, trace=trace)


def _for_equal(first: GroupPlan, emitted: EmittedModule, other: GroupPlan) -> EmittedModule:
    """The module of ``first`` with the operands of an equal group."""
    theirs = dict(zip(first.operands, other.operands, strict=True))

    def given(arg: Arg) -> Arg:
        return arg if arg.operand is None else replace(arg, operand=theirs[arg.operand])

    launches = tuple(replace(launch, args=tuple(map(given, launch.args))) for launch in emitted.launches)
    return replace(emitted, launches=launches, operands=tuple(theirs[operand] for operand in emitted.operands))


def _shared(group: Group) -> tuple[int, ...]:
    """For each operand the first that is the same tensor: a signature has no names, and a module reads it once."""
    return tuple(map(group.operands.index, group.operands))


def _untraced(planned: GroupPlan) -> str:
    return f"no kernel of this {planned.schedule.kind} schedule is persistent: it has no workers to trace"


def _name(index: int, planned: GroupPlan) -> str:
    """``k0_inline_64x4096x28672_r8``: position, kind, M x K x N of the first joined main member, ranks."""
    main = planned.members[planned.branches[0].main if planned.branches else planned.mains[0]]
    ranks = dict.fromkeys(f"r{planned.members[branch.down].n}" for branch in planned.branches)
    return "_".join([f"k{index}_{planned.schedule.kind}_{main.m}x{main.k}x{main.n}", *ranks])
