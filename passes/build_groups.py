"""Build groups: load the emitted modules and compile their kernels for the card before anything is inserted.

A kernel that does not build (it spills, or needs more than the card has) costs its launch one step down the model's
ranking; after ``MAX_ATTEMPTS`` the group goes back to ``library``. Equal groups are built once.
"""

from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

from fusioncc.autotune import next_best
from fusioncc.autotune.fit_workers import fit_workers, resident_a_multiprocessor, workers_of
from fusioncc.codegen.launch import EmittedModule
from fusioncc.cost_models import footprint
from fusioncc.decision import Rejected, accepted_with
from fusioncc.errors import FusionError, KernelBuildError
from fusioncc.passes.cap_streams import Caps, with_caps
from fusioncc.passes.emit_groups import module_of
from fusioncc.passes.plan_groups import Setting, as_library, as_run
from fusioncc.plan import GroupPlan
from fusioncc.runtime.build import build
from fusioncc.runtime.compiled import Compiled
from fusioncc.runtime.load import load
from fusioncc.schedule import Schedule
from fusioncc.seam import one_line, translated, warn

MAX_ATTEMPTS = 6
"""Compilations of one module; each takes one to three seconds."""


@dataclass(frozen=True)
class Ready:
    """A group whose kernels are loaded and known to build."""

    planned: GroupPlan
    emitted: EmittedModule
    module: ModuleType


@dataclass(frozen=True)
class Built:
    """Every group as it will run, those with kernels, and what did not build."""

    groups: tuple[GroupPlan, ...]
    ready: tuple[Ready, ...]
    rejections: tuple[Rejected, ...]
    endless: frozenset[str] = frozenset()
    """Names of groups that did not build with what their tiles were to begin or end with."""


def build_groups(groups: tuple[GroupPlan, ...], modules: dict[str, EmittedModule], setting: Setting) -> Built:
    """Build ``modules`` (by group name); a failure leaves its group as it was, with one warning that names it.

    Raises:
        FusionError: a module does not load or build, and ``on_error`` is ``raise``.
    """
    settled: dict[str, Settled | FusionError] = {}
    done: list[GroupPlan] = []
    ready: list[Ready] = []
    rejections: list[Rejected] = []
    for planned in groups:
        if planned.name not in modules:
            done.append(planned)
            continue
        if planned.kernel not in settled:
            settled[planned.kernel] = _settle(planned, setting)
        outcome = settled[planned.kernel]
        if isinstance(outcome, FusionError):
            if setting.options.on_error == "raise":
                raise type(outcome)(f"{planned.name}: {outcome}") from outcome
            taken = "its chain" if planned.epilogues else "its norm" if planned.norm else ""
            left = f"{taken} stays apart" if taken and setting.given is None else "the group is left as it was"
            warn(f"{planned.name}: {one_line(outcome)}; {left}")
            rejections.append(Rejected("build", planned.name, str(outcome)))
            done.append(as_library(planned, "the kernel did not build"))
            continue
        final = planned
        if outcome != Settled(planned.schedule):
            after = footprint(planned.group, outcome.schedule)
            why = "; ".join([planned.why, *outcome.notes])
            final = replace(planned, schedule=outcome.schedule, why=why, after=after)
        emitted = modules[planned.name] if final is planned else module_of(final, setting.options.trace)
        ready.append(Ready(final, emitted, load(emitted.name, emitted.source)))
        done.append(final)
    pairs = zip(groups, done, strict=True)
    lost = (each.name for each, left in pairs if (each.epilogues or each.norm) and not (left.epilogues or left.norm))
    return Built(tuple(done), tuple(ready), tuple(rejections), frozenset(lost))


@dataclass(frozen=True)
class Settled:
    """A schedule whose kernels build, and what is to be said of it beside the reason for the first choice."""

    schedule: Schedule
    notes: tuple[str, ...] = ()


def _settle(planned: GroupPlan, setting: Setting) -> Settled | FusionError:
    """The first schedule that builds, or why none did."""
    compiled = accepted_with(setting.runnable, "cuda")
    schedule = planned.schedule
    failure: FusionError | None = None
    for _ in range(MAX_ATTEMPTS):
        try:
            return _fitted(planned, schedule, compiled, setting)
        except KernelBuildError as error:
            failure = failure or error
            group = as_run(planned.group, setting.options)
            given = setting.given is not None
            plain = with_caps(schedule, Caps())
            step = partial(next_best, group, setting.device, plain, error.launch, planned.tier, smaller=error.spilled)
            following = None if given else step()
            if following is None:
                return failure
            schedule = with_caps(following, Caps.of(schedule))
        except FusionError as error:
            return error
    assert failure is not None
    return failure


def _fitted(planned: GroupPlan, schedule: Schedule, compiled: bool, setting: Setting) -> Settled:
    """The schedule with as many workers as are resident; one from a plan keeps those it names, and that is said."""

    def tried(wanted: Schedule) -> tuple[Compiled, ...]:
        action = partial(_try, replace(planned, schedule=wanted), compiled, setting.options.trace)
        return translated("building its kernel failed", action, FusionError)

    notes = () if schedule == planned.schedule else ("the first choice of tiles did not build",)
    used = tried(schedule)
    fitting = resident_a_multiprocessor(schedule, used, setting.device)
    if fitting is None:
        return Settled(schedule, notes)
    if setting.given is not None:
        programs = fitting * setting.device.multiprocessors
        late = f"{programs} of its {workers_of(schedule)} workers are resident at once"
        return Settled(schedule, (late,) if workers_of(schedule) > programs else ())
    fitted = fit_workers(planned.group, schedule, used, setting.device)
    if fitted == schedule:
        return Settled(schedule, notes)
    tried(fitted)
    return Settled(fitted, (*notes, f"{workers_of(fitted)} workers are resident at once, as compiled"))


def _try(planned: GroupPlan, compiled: bool, trace: bool) -> tuple[Compiled, ...]:
    """Load the module of a group's schedule, and compile it for the card where there is one."""
    emitted = module_of(planned, trace)
    module = load(emitted.name, emitted.source)
    return build(emitted, module, planned.m) if compiled else ()
