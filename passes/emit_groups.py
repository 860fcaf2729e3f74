"""Emit groups: the Triton module of every group whose schedule has one; equal groups share a module's text and name."""

from dataclasses import replace
from typing import Any

from fusioncc.codegen import emit
from fusioncc.codegen.launch import EmittedModule
from fusioncc.plan import GroupPlan


def emit_groups(groups: tuple[GroupPlan, ...]) -> tuple[tuple[GroupPlan, ...], dict[str, EmittedModule]]:
    """The groups with the names of their kernels filled in, and the module of each emitted group by group name.

    Raises:
        EmissionError: a schedule that was judged legal has no emitted form for its group.
    """
    names: dict[Any, str] = {}
    emitted: dict[str, EmittedModule] = {}
    done = []
    for planned in groups:
        if planned.schedule.kind == "library":
            done.append(planned)
            continue
        key = (planned.group.signature(), planned.schedule, planned.tier, planned.why)
        name = names.setdefault(key, _name(len(names), planned))
        emitted[planned.name] = emit(planned.group, planned.schedule, name=name, tier=planned.tier, why=planned.why)
        done.append(replace(planned, kernel=name))
    return tuple(done), emitted


def _name(index: int, planned: GroupPlan) -> str:
    """``k0_inline_64x4096x28672_r8``: position, kind, M x K x N of the first joined main member, ranks."""
    branch = planned.branches[0]
    main = planned.members[branch.main]
    ranks = "_".join(dict.fromkeys(f"r{planned.members[b.down].n}" for b in planned.branches))
    return f"k{index}_{planned.schedule.kind}_{main.m}x{main.k}x{main.n}_{ranks}"
