"""The module of a schedule, as it is built and timed: of the group of a job, with as many workers as are resident."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import ModuleType

from fusioncc.autotune.fit_workers import fit_workers
from fusioncc.codegen import EmittedModule, emit
from fusioncc.device import Device
from fusioncc.errors import EmissionError
from fusioncc.group import Epilogue, Group, Operand
from fusioncc.packing import PACKED
from fusioncc.runtime.compiled import Compiled
from fusioncc.schedule import Schedule
from fusioncc.tuning.measuring import Job

Build = Callable[[EmittedModule, ModuleType, int], tuple[Compiled, ...]]


@dataclass(frozen=True)
class Built:
    """A schedule as it runs, and its module, loaded and compiled."""

    schedule: Schedule
    emitted: EmittedModule
    module: ModuleType


def built(job: Job, schedule: Schedule, device: Device, build: Build) -> Built:
    """The schedule with as many workers as ``device`` holds of what ``build`` compiled.

    Raises:
        EmissionError: it has no emitted form.
        KernelBuildError: it does not build.
    """
    first, used = _built(job, schedule, build)
    fitted = fit_workers(job.group, schedule, used, device)
    return first if fitted == schedule else _built(job, fitted, build)[0]


def _built(job: Job, schedule: Schedule, build: Build) -> tuple[Built, tuple[Compiled, ...]]:
    from fusioncc.runtime.load import load

    if schedule.kind in PACKED:
        raise EmissionError(f"what {schedule.kind!r} emits is a part of the group only")
    emitted = emit(named(job.group), schedule, name=f"tuned_{schedule.kind}", tier=job.tier, why="It is being timed.")
    module = load(emitted.name, emitted.source)
    return Built(schedule, emitted, module), build(emitted, module, job.group.m)


def named(group: Group) -> Group:
    """The group with a name for every operand that has none: tensors without a name are not one tensor."""
    numbers = count()

    def name(operand: Operand) -> Operand:
        return operand if operand.node else replace(operand, node=f"t{next(numbers)}")

    def name_if(operand: Operand | None) -> Operand | None:
        return None if operand is None else name(operand)

    def end(epilogue: Epilogue) -> Epilogue:
        return replace(epilogue, chain=replace(epilogue.chain, inputs=tuple(map(name, epilogue.chain.inputs))))

    norm = group.norm
    return replace(
        group,
        lhs=name(group.lhs),
        norm=norm and replace(norm, normed=name(norm.normed), weight=name_if(norm.weight)),
        members=tuple(
            replace(member, weight=name(member.weight), bias=name_if(member.bias)) for member in group.members
        ),
        branches=tuple(
            replace(branch, scale_tensors=tuple(map(name, branch.scale_tensors))) for branch in group.branches
        ),
        epilogues=tuple(map(end, group.epilogues)),
    )
