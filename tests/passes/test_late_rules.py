"""Refusals of whole groups in the steps behind detection: accepted, and refused with node and reason."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest

from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.errors import EmissionError, FusionError, IllegalScheduleError, KernelBuildError
from fusioncc.passes import build_groups as building
from fusioncc.passes import emit_groups as emitting
from fusioncc.passes.build_groups import build_groups
from fusioncc.passes.emit_groups import emit_groups
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.pipeline import find
from fusioncc.plan import GroupPlan
from fusioncc.seam import FusionWarning
from tests.passes.test_rules import Build, K, M

Groups = tuple[GroupPlan, ...]
Outcome = tuple[Groups, tuple[Rejected, ...]]


def setting(on_error: str = "fallback", **options: str) -> Setting:
    chosen = Options.of({"schedule": "inline", **options}, on_error=on_error)
    return Setting(chosen, get_device("h200"), Accepted("runnable", ("interpreter",)))


def planned(wanted: Setting) -> Outcome:
    return plan_groups(find(Build().graph, wanted.options).groups, wanted)


def with_tile(groups: Groups, **changes: int) -> Groups:
    def changed(group: GroupPlan) -> GroupPlan:
        pools = tuple(replace(pool, tile=replace(pool.tile, **changes)) for pool in group.schedule.pools)
        return replace(group, schedule=replace(group.schedule, pools=pools))

    return tuple(map(changed, groups))


def forward_only(on_error: str, refuse: bool) -> Outcome:
    def tangents(build: Build) -> None:
        build.put("tangents_1", (M, K))

    found = find(Build(tangents if refuse else lambda build: None).graph, setting(on_error).options)
    return tuple(planned(setting())[0]) if found.groups else (), found.rejections


def forced_schedule(on_error: str, refuse: bool) -> Outcome:
    return planned(setting(on_error, numerics="eager" if refuse else "fp32"))


def emission(on_error: str, refuse: bool) -> Outcome:
    groups, _ = planned(setting())
    emitted = emit_groups(with_tile(groups, block_n=48) if refuse else groups, on_error)
    return emitted.groups, emitted.rejections


def build(on_error: str, refuse: bool) -> Outcome:
    emitted = emit_groups(planned(setting())[0], "raise")
    with pytest.MonkeyPatch.context() as patch:
        if refuse:
            patch.setattr(building, "load", fails_with(KernelBuildError("too much shared memory")))
        built = build_groups(emitted.groups, emitted.modules, setting(on_error))
    assert bool(built.ready) is not refuse
    return built.groups, built.rejections


def fails_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@dataclass(frozen=True)
class Case:
    """A refusal by its name: the step that may refuse, the node and words it says, what it raises when asked to."""

    rule: str
    step: Callable[[str, bool], Outcome]
    node: str
    words: str
    error: type[FusionError] | None = None
    warns: bool = False


CASES = (
    Case("forward_only", forward_only, "graph", "backward graphs are left as they are"),
    Case("forced_schedule", forced_schedule, "g0", "rounding_tier: fused kernels keep fp32", IllegalScheduleError),
    Case("emission", emission, "g0", "tile size 48", EmissionError, True),
    Case("build", build, "g0", "too much shared memory", KernelBuildError, True),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_group_is_accepted(case: Case) -> None:
    groups, rejections = case.step("raise", False)
    assert [group.schedule.kind for group in groups] == ["inline"]
    assert rejections == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_group_is_refused(case: Case) -> None:
    with pytest.warns(FusionWarning, match=f"{case.node}: .*{case.words}") if case.warns else nullcontext() as caught:
        groups, (rejection,) = case.step("fallback", True)
    assert not case.warns or len(caught) == 1
    assert all(group.schedule.kind == "library" and not group.kernel for group in groups)
    assert (rejection.rule, rejection.node) == (case.rule, case.node)
    assert case.words in rejection.reason


@pytest.mark.parametrize("case", [case for case in CASES if case.error], ids=lambda case: case.rule)
def test_a_refusal_is_raised_when_asked_for(case: Case) -> None:
    assert case.error is not None
    with pytest.raises(case.error, match=f"{case.node}: .*{case.words}"):
        case.step("raise", True)


@pytest.mark.parametrize(("module", "name", "rule"), [(emitting, "emit", "emission"), (building, "load", "build")])
def test_a_bug_in_one_group_costs_that_group_and_is_named(
    module: object, name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted = emit_groups(planned(setting())[0], "raise")
    monkeypatch.setattr(module, name, fails_with(KeyError("a bug")))
    with pytest.warns(FusionWarning, match="g0: .*KeyError: 'a bug'; the group is left as it was") as caught:
        if rule == "emission":
            rejections = emit_groups(planned(setting())[0], "fallback").rejections
        else:
            rejections = build_groups(emitted.groups, emitted.modules, setting()).rejections
    assert len(caught) == 1
    assert [(each.rule, each.node) for each in rejections] == [(rule, "g0")]


def test_a_bug_in_planning_names_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusioncc.passes.plan_groups.rank", fails_with(KeyError("a bug")))
    with pytest.raises(FusionError, match="planning g0 failed: KeyError: 'a bug'") as caught:
        planned(setting())
    assert isinstance(caught.value.__cause__, KeyError)
