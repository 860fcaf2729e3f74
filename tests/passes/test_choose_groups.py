"""Groups that exclude each other: what each graph has of them, which are chosen, and what is said of the others."""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.autotune import choose
from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.errors import PlanError
from fusioncc.passes.choose_groups import gain_us
from fusioncc.passes.exclusions import cycle_among, dependencies
from fusioncc.passes.find_alternatives import MOST
from fusioncc.pipeline import find
from fusioncc.plan import GroupPlan, Plan
from fusioncc.schedule import Schedule
from tests.lora_models import Lora
from tests.passes.doors import found_in
from tests.passes.models import BF16, Model, t
from tests.shown import shown

K = 1024


def model(function: Callable[..., Any], **shapes: tuple[int, ...]) -> Model:
    return Model(function, **{name: t(*shape, dtype=BF16) for name, shape in shapes.items()})


def planned(function: Callable[..., Any], k: int = K, /, **shapes: tuple[int, ...]) -> Plan:
    example = (t(64, k, dtype=BF16),)
    return fusioncc.plan(model(function, **shapes), example, device="h200", epilogues="never")


def products(group: GroupPlan) -> dict[str, list[str]]:
    """By weight of a main product the weights of its branches, down and up."""
    members = group.members
    return {
        members[main].weight.node.removeprefix("p_"): [
            members[half].weight.node.removeprefix("p_") for b in group.branches_of(main) for half in (b.down, b.up)
        ]
        for main in group.mains
    }


def two_mains(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two main products that may each have a branch of one down product."""
    y = x @ s.a
    return x @ s.w + y @ s.b, x @ s.w2 + y @ s.b2


LOW = {"a": (K, 16), "b": (16, 1024), "b2": (16, 8192)}


@pytest.mark.parametrize("turned", shown([False, True], 1))
def test_a_down_product_goes_to_the_main_that_saves_most_by_it(turned: bool) -> None:
    narrow, wide = ("w2", "w") if turned else ("w", "w2")
    low = {"a": (K, 16), "b2" if turned else "b": (16, 1024), "b" if turned else "b2": (16, 8192)}
    plan = planned(two_mains, **{narrow: (K, 1024), wide: (K, 8192)}, **low)
    (group,) = plan.groups
    assert products(group) == {narrow: [], wide: ["a", "b" if turned else "b2"]}
    assert {each.rule for each in plan.rejections} == {"joined_once"}
    assert all(f"{group.name} is preferred, predicted to save " in each.reason for each in plan.rejections)


def test_readers_of_a_down_product_may_be_a_group_of_their_own() -> None:
    """One reader is half of a branch; it is better off beside the others, where few rows of K = 4096 are read."""

    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ s.a
        return x @ s.w + y @ s.b, y @ s.c, y @ s.d

    plan = planned(function, 4096, w=(4096, 512), a=(4096, 64), b=(64, 512), c=(64, 14336), d=(64, 14336))
    assert [products(group) for group in plan.groups] == [{"a": [], "w": []}, {"b": [], "c": [], "d": []}]
    rejected = {each.reason.split()[0]: each for each in plan.rejections}
    assert "g1 (mm_1 + mm·mm_2)" in rejected["g1"].reason
    assert "g0 and g2 are preferred" in rejected["g1"].reason


def test_members_that_depend_on_each_other_are_chosen_by_what_they_save() -> None:
    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = x @ s.w2
        return q, x @ (s.w * q.sum()), x @ s.w3

    plan = planned(function, w=(K, 64), w2=(K, 4096), w3=(K, 64))
    (group,) = plan.groups
    assert group.name == "g1"
    (rejection,) = (each for each in plan.rejections if each.rule != "chain_op")  # the sum over everything
    assert (rejection.rule, rejection.node) == ("independent", "mm")
    assert "g0 (mm, mm_2) and g1 cannot all be fused" in rejection.reason


def layer(s: Any, x: torch.Tensor, name: str, factor: Any) -> torch.Tensor:
    return x @ getattr(s, f"w{name}") + (x @ getattr(s, f"a{name}")) @ (getattr(s, f"b{name}") * factor)


def feeding(names: tuple[str, ...]) -> Callable[..., Any]:
    """A ring of groups, two layers each: the second one reads what the first of the group before has made."""

    def function(s: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
        first = [layer(s, x, f"{name}0", 1) for name, x in zip(names, inputs, strict=True)]
        before = [first[-1], *first[:-1]]
        second = [layer(s, x, f"{n}1", b.mean()) for n, x, b in zip(names, inputs, before, strict=True)]
        return first + second

    return function


def ring(**widths: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n in widths.items():
        for at in (0, 1):
            shapes |= {f"w{name}{at}": (K, n), f"a{name}{at}": (K, 16), f"b{name}{at}": (16, n)}
    return shapes


def ring_plan(**widths: int) -> Plan:
    return fusioncc.plan(model(feeding(tuple(widths)), **ring(**widths)), inputs(len(widths)), device="h200")


def inputs(count: int) -> tuple[torch.Tensor, ...]:
    return tuple(t(64, K, dtype=BF16) + at for at in range(count))


@pytest.mark.parametrize(
    ("p", "q", "kept"),
    [(8192, 1024, "g1"), *(pytest.param(1024, q, "g0", marks=pytest.mark.exhaustive) for q in (8192, 1024))],
)
def test_of_two_groups_that_feed_each_other_the_better_is_kept(p: int, q: int, kept: str) -> None:
    """One launch in the place of eight saves the same time; the wide one also has a worse tail."""
    plan = ring_plan(p=p, q=q)
    (group,) = plan.groups
    (rejection,) = plan.rejections
    assert (group.name, rejection.rule) == (kept, "independent")
    assert f"{kept} is preferred, predicted to save " in rejection.reason


@pytest.mark.exhaustive
def test_the_better_total_wins_over_the_first_which_is_also_the_best_alone() -> None:
    """Q and P feed each other, and so do Q and R."""

    def two_layers(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return layer(s, x, "p0", 1), layer(s, x, "p1", 1)

    def function(s: Any, z: torch.Tensor, x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        q, p, r = layer(s, z, "q0", 1), layer(s, x, "p0", 1), layer(s, v, "r0", 1)
        later = layer(s, z, "q1", p.mean() + r.mean())
        return [q, p, r, later, layer(s, x, "p1", q.mean()), layer(s, v, "r1", q.mean())]

    module = model(function, **ring(q=4096, p=512, r=512))
    alone = {n: gain_us(planned(two_layers, **ring(p=n)).groups[0]) for n in (512, 4096)}
    assert alone[512] < alone[4096] < 2 * alone[512]
    plan = fusioncc.plan(module, inputs(3), device="h200")
    assert [list(products(group)) for group in plan.groups] == [["wp0", "wp1"], ["wr0", "wr1"]]
    (rejection,) = plan.rejections
    assert (rejection.rule, rejection.node) == ("independent", "mm")
    more = 2 * alone[512] - alone[4096]
    assert f"g1 and g2 are preferred, predicted to save {more:.1f} us more" in rejection.reason


@pytest.mark.exhaustive
def test_three_groups_in_a_ring_lose_only_the_least() -> None:
    """No two of them feed each other; all three do."""
    widths = {"p": 2048, "q": 8192, "r": 1024}
    found = find(capture(model(feeding(tuple(widths)), **ring(**widths)), inputs(3)).graph, Options())
    graph = next(iter(found.covered["g0"])).graph
    feeds = dependencies(graph, [found.covered[group.name] for group in found.groups])
    assert all(cycle_among(feeds, pair) is None for pair in combinations(range(3), 2))
    assert cycle_among(feeds, range(3)) == {0, 1, 2}
    plan = ring_plan(**widths)
    assert [group.name for group in plan.groups] == ["g0", "g2"]
    (rejection,) = plan.rejections
    assert (rejection.rule, rejection.node) == ("independent", "mm_3")
    assert "g1 (mm_3 + mm_4·mm_5, mm_12 + mm_13·mm_14) and g0 and g2 cannot all be fused" in rejection.reason


@pytest.mark.exhaustive
def test_groups_that_stay_as_they_are_exclude_nothing() -> None:
    small = model(feeding(("p", "q")), **ring(p=1024, q=1024))
    plan = fusioncc.plan(small, inputs(2), device="h200", schedule="library")
    assert ([group.name for group in plan.groups], plan.rejections) == (["g0", "g1"], ())


def test_every_alternative_is_worth_what_it_says() -> None:
    """``found_in`` checks the meaning of each group against the graph."""
    shapes = {"w": (64, 64), "w2": (64, 128), "a": (64, 4), "b": (4, 64), "b2": (4, 128)}
    found = found_in(capture(model(two_mains, **shapes), (t(8, 64, dtype=BF16),)))
    assert [group.name for group in found.groups] == ["g0", "g1", "g2", "g3"]
    assert found.rejections == ()


@pytest.mark.exhaustive
def test_alternatives_of_one_down_product_are_bounded() -> None:
    def function(s: Any, x: torch.Tensor) -> list[torch.Tensor]:
        y = x @ s.a
        return [x @ getattr(s, f"w{at}") + y @ getattr(s, f"b{at}") for at in range(MOST + 4)]

    shapes = {f"w{at}": (64, 64) for at in range(MOST + 4)} | {f"b{at}": (4, 64) for at in range(MOST + 4)}
    found = found_in(capture(model(function, a=(64, 4), **shapes), (t(8, 64, dtype=BF16),)))
    mains = [len(group.mains) for group in found.groups if group.branches]
    assert mains == [MOST + 4] * (MOST + 1)


@pytest.mark.exhaustive
def test_two_contested_products_of_one_group_may_both_go_to_the_later_main() -> None:
    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = x @ s.a, x @ s.c
        return x @ s.w + y @ s.b, x @ s.w2 + y @ s.b2, x @ s.v + z @ s.d, x @ s.v2 + z @ s.d2

    shapes = {name: (64, n) for name, n in {"w": 64, "w2": 128, "v": 64, "v2": 128, "a": 4, "c": 4}.items()}
    shapes |= {name: (4, n) for name, n in {"b": 64, "b2": 128, "d": 64, "d2": 128}.items()}
    found = found_in(capture(model(function, **shapes), (t(8, 64, dtype=BF16),)))
    joined = [{group.members[b.main].weight.node.removeprefix("p_") for b in group.branches} for group in found.groups]
    assert all(pair in joined for pair in ({"w", "v"}, {"w2", "v"}, {"w", "v2"}, {"w2", "v2"}))


@pytest.mark.exhaustive
def test_the_chosen_alternative_runs_and_a_plan_of_it_is_applied_again() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            names = {"a": (64, 4), "w": (64, 16), "b": (4, 16), "w2": (64, 128), "b2": (4, 128)}
            for name, shape in names.items():
                setattr(self, name, nn.Parameter(torch.randn(shape) / 8, requires_grad=False))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return two_mains(self, x)

    module, x = Shared(), torch.randn(8, 64)
    plan = fusioncc.plan(module, (x,), schedule="inline")
    compiled = fusioncc.optimize(module, (x,), plan=plan, on_error="raise")
    with torch.no_grad():
        for one, other in zip(compiled(x), module(x), strict=True):
            torch.testing.assert_close(one, other)
    (applied,) = fusioncc.plan_of(compiled)
    assert [group.name for group in applied.groups] == [group.name for group in plan.groups]
    assert any(group.branches and group.insertion for group in applied.groups)


def test_a_schedule_that_only_an_alternative_cannot_have_is_no_error() -> None:
    """``inline`` needs a branch, which the group without one, that is left out, does not have."""
    shapes = {"w": (K, 1024), "w2": (K, 8192), **LOW}
    options = {"device": "h200", "schedule": "inline", "on_error": "raise", "epilogues": "never"}
    plan = fusioncc.plan(model(two_mains, **shapes), inputs(1), **options)
    assert [group.schedule.kind for group in plan.groups] == ["inline"]
    assert {each.rule for each in plan.rejections} == {"joined_once"}


@pytest.mark.exhaustive
def test_a_plan_that_wants_groups_which_exclude_each_other_is_refused() -> None:
    module = model(feeding(("p", "q")), **ring(p=1024, q=1024))
    both = fusioncc.plan(module, inputs(2), schedule="library")
    one = fusioncc.plan(module, inputs(2), schedule="inline").groups[0]
    groups = tuple(replace(each, schedule=one.schedule, tier=one.tier) for each in both.groups)
    assert all(group.schedule != Schedule("library") for group in groups)
    with pytest.raises(Exception, match="exclude each other: g1 ") as caught:
        fusioncc.optimize(module, inputs(2), plan=replace(both, groups=groups), on_error="raise")
    assert PlanError.__name__ in repr(caught.value) or isinstance(caught.value.__cause__, PlanError)


def test_without_an_exclusion_networkx_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert fusioncc.plan(Lora(), (torch.randn(4, 64),)).groups
    with pytest.raises(ImportError):
        ring_plan(p=1024, q=1024)


def test_identical_groups_are_planned_once() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[Lora(at, rank=12) for at in range(6)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).relu()  # type: ignore[no-any-return]

    choose._rank.cache_clear()
    assert len(fusioncc.plan(Layers(), (torch.randn(4, 64),)).groups) == 6
    assert choose._rank.cache_info().misses == 2  # the last one is ranked again with the ReLU behind it
