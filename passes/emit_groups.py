"""Emit groups: the Triton module of every group whose schedule has one; equal groups share a module's text and name."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fusioncc.codegen import emit
from fusioncc.codegen.launch import EmittedModule
from fusioncc.decision import Rejected
from fusioncc.errors import EmissionError
from fusioncc.passes.plan_groups import WITHOUT_KERNEL, as_library
from fusioncc.plan import GroupPlan
from fusioncc.seam import translated, warn


@dataclass(frozen=True)
class Emitted:
    """Groups with their kernels named, the module of each emitted group (by group name), and what had no form."""

    groups: tuple[GroupPlan, ...]
    modules: dict[str, EmittedModule]
    rejections: tuple[Rejected, ...]


def emit_groups(groups: tuple[GroupPlan, ...], on_error: str) -> Emitted:
    """Emit every group; one whose schedule has no emitted form, or whose emission fails, goes back to ``library``.

    Raises:
        EmissionError: that happened, and ``on_error`` is ``raise``.
    """
    names: dict[Any, str] = {}
    modules: dict[str, EmittedModule] = {}
    done, rejections = [], []
    for planned in groups:
        if planned.schedule.kind in WITHOUT_KERNEL:
            done.append(planned)
            continue
        key = (planned.group.signature(), planned.schedule, planned.tier, planned.why)
        name = names.setdefault(key, _name(len(names), planned))
        try:
            action = partial(emit, planned.group, planned.schedule, name=name, tier=planned.tier, why=planned.why)
            emitted = translated("the emitter failed", action, EmissionError)
        except EmissionError as error:
            if on_error == "raise":
                raise EmissionError(f"{planned.name}: {error}") from error
            warn(f"{planned.name}: {error}; the group is left as it was")
            rejections.append(Rejected("emission", planned.name, str(error)))
            done.append(as_library(planned, "the schedule has no emitted form"))
            continue
        modules[planned.name] = emitted
        done.append(replace(planned, kernel=name))
    return Emitted(tuple(done), modules, tuple(rejections))


def _name(index: int, planned: GroupPlan) -> str:
    """``k0_inline_64x4096x28672_r8``: position, kind, M x K x N of the first joined main member, ranks."""
    main = planned.members[planned.branches[0].main if planned.branches else planned.mains[0]]
    ranks = dict.fromkeys(f"r{planned.members[branch.down].n}" for branch in planned.branches)
    return "_".join([f"k{index}_{planned.schedule.kind}_{main.m}x{main.k}x{main.n}", *ranks])
