"""Schedules that were measured: where a plan takes one, what it says of it, and when groups are tuned."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as f

import fusioncc
from fusioncc import FusionPass, pipeline
from fusioncc.autotune import best, pick
from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import Device, get_device
from fusioncc.errors import OptionError, TuningError
from fusioncc.group import Group
from fusioncc.passes import tune_groups
from fusioncc.passes.build_groups import Built
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import Tuning, keys_of
from fusioncc.pipeline import draft
from fusioncc.plan import GroupPlan
from fusioncc.schedule import Schedule
from fusioncc.seam import FusionWarning
from fusioncc.tuning import key_of
from fusioncc.tuning.database import database
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.measuring import Meter
from fusioncc.tuning.neighbours import neighbours
from fusioncc.tuning.search import search
from fusioncc.tuning.tune import Means, Tuned, Tuner
from tests.passes.models import BF16, Model, t
from tests.tuning.entries import DATE, DEVICE
from tests.tuning.fake_meter import Clock, FakeMeter

CARD = "NVIDIA H200"
LORA = {"w": (2048, 4096), "a": (2048, 16), "b": (16, 4096)}


def lora(s: Any, x: torch.Tensor) -> torch.Tensor:
    return x @ s.w + x @ s.a @ s.b


def ended(s: Any, x: torch.Tensor) -> torch.Tensor:
    return f.silu(lora(s, x))


def captured(function: Callable[..., Any] = lora, rows: int = 64) -> fx.Graph:
    model = Model(function, **{name: t(*shape, dtype=BF16) for name, shape in LORA.items()})
    return capture(model, (t(rows, 2048, dtype=BF16),)).graph


graph = cache(captured)
"""The same graph for all who only read it."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "cache"))


def setting(card: str = CARD, device: Device = DEVICE, tuning: Tuning | None = None, **options: Any) -> Setting:
    chosen = Options.of({"on_error": "raise", **options})
    return Setting(chosen, device, Accepted("runnable", ("offline",)), card=card, tuning=tuning)


def planned(of: Setting, of_graph: fx.Graph | None = None) -> GroupPlan:
    (group,) = draft(of_graph or graph(), of).plan.groups
    return group


def kept(of: Setting, kind: str = "inline", place: int = 1, of_graph: fx.Graph | None = None) -> Entry:
    """An entry for the group of a graph, with a schedule that the model does not choose."""
    (key,) = keys_of(draft(of_graph or graph(), of).plan.groups, of)
    found = best(key.group, of.device, kind) if kind != "library" else None
    schedule = neighbours(found[0], key, of.device)[place] if found is not None else Schedule("library")
    library = Measured(40.0, 0.1)
    entry = Entry(key, schedule, Measured(20.0, 0.1) if found else library, library, "quick", 8, DATE)
    assert database().store(entry, of.device) == "stored"
    return entry


def test_a_measured_schedule_is_the_choice_and_says_so() -> None:
    before = planned(setting())
    entry = kept(setting())
    group = planned(setting())
    assert group.schedule == entry.schedule != before.schedule
    assert group.why == "measured 20.0 us against 40.0 us for library, on 2026-11-30"
    assert group.candidates == before.candidates, "which are the model's"
    assert group.tier == "fp32"


def test_library_that_was_measured_stays() -> None:
    assert planned(setting()).schedule.kind != "library"
    kept(setting(), "library")
    group = planned(setting())
    assert group.schedule == Schedule("library")
    assert group.why == "measured 40.0 us, and nothing was faster, on 2026-11-30"


@pytest.mark.parametrize(
    "other",
    [
        setting(deterministic=True),
        setting(card=""),
        setting(card="NVIDIA H100 80GB HBM3"),
        setting(device=get_device("h100")),
        setting(rest="eager"),
        setting(max_peak_increase=10**9),
        setting(numerics="relaxed"),
        replace(setting(), measured=None),
    ],
)
def test_what_was_measured_elsewhere_is_not_taken(other: Setting) -> None:
    before = planned(other)
    kept(setting())
    assert planned(other) == before


def test_a_plan_for_a_card_that_is_not_here_is_the_model_s() -> None:
    """The front door that needs no card means none."""
    model = Model(lora, **{name: t(*shape, dtype=BF16) for name, shape in LORA.items()})
    before = fusioncc.plan(model, (t(64, 2048, dtype=BF16),), device="h200")
    kept(setting())
    assert fusioncc.plan(model, (t(64, 2048, dtype=BF16),), device="h200") == before


def test_a_forced_kind_has_entries_of_its_own() -> None:
    kept(setting())
    assert planned(setting(schedule="split")).why == "forced by schedule="
    entry = kept(setting(schedule="split"), "split")
    group = planned(setting(schedule="split"))
    assert group.schedule == entry.schedule and group.why.startswith("measured 20.0 us")


def test_a_given_plan_is_carried_out() -> None:
    plan = draft(graph(), setting()).plan
    kept(setting())
    (group,) = draft(graph(), replace(setting(), given=plan)).plan.groups
    assert group.why == "as planned" and group.schedule == plan.groups[0].schedule


def test_where_kernels_do_not_run_nothing_is_taken() -> None:
    kept(setting())
    refused = replace(setting(), runnable=Rejected("runnable", "cpu", "no card"))
    assert planned(refused).schedule == Schedule("library") and keys_of((planned(refused),), refused) == []


def test_what_moves_weights_is_no_matter_of_measuring() -> None:
    """Where the model wants weights packed, they are."""
    model = Model(lambda s, x: (x @ s.w, x @ s.v), w=t(2048, 512, dtype=BF16), v=t(2048, 512, dtype=BF16))
    module = capture(model, (t(16, 2048, dtype=BF16),)).graph
    packing = setting(pack_weights=True)
    (group,) = draft(module, packing).plan.groups
    expected = [] if pick(group.candidates, group.group).kind == "packed" else [group.group]
    assert [key.group for key in keys_of((group,), packing)] == [each.signature() for each in expected]


def tuning(meters: list[FakeMeter], **of: Any) -> Tuning:
    def made(device: Device) -> Meter:
        meters.append(FakeMeter(Clock(), **{"library": 10.0, **of}))
        return meters[-1]

    return Tuning(made)


def test_autotune_measures_what_the_database_lacks_once() -> None:
    meters: list[FakeMeter] = []
    group = planned(setting(tuning=tuning(meters), autotune="quick"))
    (key,) = keys_of((group,), setting())
    entry = database().find(key, DEVICE)
    assert entry is not None and group.schedule == entry.schedule and group.why.startswith("measured")
    assert planned(setting(tuning=tuning(meters), autotune="quick")) == group == planned(setting())
    assert len(meters) == 1 and meters[0].closed == 1
    meter = FakeMeter(Clock(), library=10.0)
    alone = search(key, DEVICE, meter, tune_groups.EFFORTS["quick"], 1e3)
    assert alone.entry is not None and alone.entry.schedule == entry.schedule


def test_the_meter_begins_before_anything_is_planned_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something is, it may be all that is asked for."""
    meters: list[FakeMeter] = []
    begun: list[int] = []

    def noting(*given: Any, **named: Any) -> Any:
        begun.append(sum(meter.begun for meter in meters))
        return planning(*given, **named)

    planning = pipeline.plan_groups
    monkeypatch.setattr(pipeline, "plan_groups", noting)
    planned(setting(tuning=tuning(meters), autotune="quick"))
    assert begun[0] == 1 and len(meters) == 1
    meters.clear(), begun.clear()
    planned(setting(tuning=tuning(meters), autotune="quick"), graph(rows=128))
    assert begun[0] == 0 and len(meters) == 1 and meters[0].begun == 1


def test_a_meter_that_does_not_begin_is_told_of_by_tuning() -> None:
    def missing(device: Device) -> Meter:
        raise ZeroDivisionError("no card")

    with pytest.warns(FusionWarning, match="ZeroDivisionError: no card; the cost models choose"):
        planned(setting(tuning=Tuning(missing), autotune="quick", on_error="fallback"))


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("not asked", {}),
        ("deterministic", {"autotune": "full", "deterministic": True}),
        ("eager", {"autotune": "quick", "numerics": "eager"}),
    ],
)
def test_nothing_is_measured_where_nobody_asks(why: str, options: dict[str, Any]) -> None:
    meters: list[FakeMeter] = []
    with_meter, without = setting(tuning=tuning(meters), **options), setting(**{**options, "autotune": "none"})
    assert planned(with_meter) == planned(without) and meters == [], why


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (setting(autotune="quick"), "there is no card to measure on"),
        (setting(autotune="quick", deterministic=True), "leaves the choice to the cost models"),
        (replace(setting(autotune="full"), runnable=Rejected("runnable", "cpu", "no kernels here")), "no kernels here"),
    ],
)
def test_a_plan_says_why_nothing_was_measured(of: Setting, reason: str) -> None:
    (note,) = [each for each in draft(graph(), of).plan.notes if each.startswith("autotune")]
    assert note.startswith("autotune: nothing is measured: ") and reason in note


def test_the_end_of_tiles_is_part_of_what_is_measured() -> None:
    """A group that ends with a chain has an entry of its own."""
    always = setting(epilogues="always")
    kept(setting())
    module = graph(ended)
    group = planned(always, module)
    assert group.epilogues and "measured" not in group.why
    entry = kept(always, "inline", 1, module)
    again = planned(always, module)
    assert again.schedule == entry.schedule and again.epilogues == group.epilogues
    assert again.why.startswith("measured 20.0 us") and "ends with what follows" in again.why


def test_a_group_that_is_better_off_without_its_end_goes_without() -> None:
    always, module = setting(epilogues="always"), graph(ended)
    kept(always, "library", 0, module)
    plan = draft(module, always).plan
    (group,) = plan.groups
    assert not group.epilogues
    assert any("stay the vendor's, measured 40.0 us" in each.reason for each in plan.rejections)


@pytest.mark.parametrize("kind", ["split", "two_pool"])
def test_what_was_measured_does_not_decide_whether_tiles_end(kind: str) -> None:
    """It may be a kind that the model has behind its own."""
    auto, module = setting(epilogues="auto"), graph(ended)
    before = planned(auto, module)
    assert before.epilogues and before.schedule.kind != kind
    kept(auto, kind, 0, module)
    group = planned(auto, module)
    assert group.epilogues == before.epilogues and group.schedule.kind == kind and group.why.startswith("measured")


def test_a_group_without_its_end_is_measured_in_turn() -> None:
    """With the end nothing beats library; without it something does. One meter measures both."""
    meters: list[FakeMeter] = []

    def made(device: Device) -> Meter:
        meters.append(EndsLose(Clock(), library=10.0))
        return meters[-1]

    group = planned(setting(tuning=Tuning(made), autotune="quick", epilogues="always"), graph(ended))
    assert not group.epilogues and group.schedule.kind != "library"
    assert [each.closed for each in meters] == [1]


class EndsLose(FakeMeter):
    """Where tiles end with something the vendor's kernels are far ahead."""

    def true_us(self, group: Group, schedule: Schedule, tier: str = "fp32") -> float:
        us = super().true_us(group, schedule, tier)
        return 0.001 * us if schedule.kind == "library" and group.epilogues else us


class Parted:
    """Ranks of which one has died."""

    rank = 0

    def gathered(self, mine: Any, wait_s: float) -> list[Any]:
        raise TuningError("ranks", "a rank did not answer: connection closed")


def test_a_dead_rank_leaves_the_choice_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned(setting())
    kept(setting())
    monkeypatch.setattr(tune_groups, "torch_ranks", Parted)
    meters: list[FakeMeter] = []
    with pytest.warns(FusionWarning, match="a rank did not answer: connection closed; the cost models choose"):
        group = planned(setting(tuning=tuning(meters), autotune="quick", on_error="fallback"))
    assert group == before and meters == []
    with pytest.raises(TuningError, match="did not answer"):
        planned(setting(tuning=tuning(meters), autotune="quick"))


def test_a_meter_that_breaks_leaves_the_choice_of_the_model() -> None:
    class Broken(FakeMeter):
        def race(self, *_: Any) -> Any:
            raise ZeroDivisionError("in the meter")

    before = planned(setting())
    broken = Tuning(lambda device: Broken(Clock()))
    with pytest.warns(FusionWarning, match="ZeroDivisionError: in the meter; the cost models choose"):
        assert planned(setting(tuning=broken, autotune="quick", on_error="fallback")) == before


def test_caches_depend_on_what_was_measured() -> None:
    passes = [FusionPass(), FusionPass(Options(deterministic=True))]
    before = [each.uuid() for each in passes]
    kept(setting())
    after = [each.uuid() for each in passes]
    assert before[0] != after[0] and before[1] == after[1]
    kept(setting(card="NVIDIA H100 80GB HBM3"))
    again = FusionPass().uuid()
    assert again not in (before[0], after[0])
    database().prune(DATE, everything=True)
    assert FusionPass().uuid() == before[0]


@pytest.mark.parametrize("fault", ["crash", ""])
def test_where_a_search_keeps_nothing_caches_hold_the_same_graph(fault: str) -> None:
    """A graph is kept in Inductor's cache under the key from before its tuning. Who has that key later knows as much,
    and would plan the same; where something was kept the key is another."""

    def rewritten(by: FusionPass) -> tuple[str, tuple[GroupPlan, ...]]:
        rewriting = captured()
        by(rewriting)
        return str(rewriting), by.plans[-1].groups

    options = Options(autotune="quick", device="h200", on_error="raise")
    measuring = Tuning(lambda device: FakeMeter(Clock(), library=10.0, fault=lambda schedule: fault))
    tuned, later = FusionPass(options, tuning=measuring), FusionPass(options)
    key = tuned.uuid()
    kept_under_it = rewritten(tuned)
    assert key is not None and (later.uuid() == key) == bool(fault)
    assert (tuned.plans[-1].groups[0].why.startswith("measured")) == (not fault)
    assert rewritten(later) == kept_under_it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autotune": "heroic"}, "valid values: 'none', 'quick', 'full'"),
        ({"autotune_seconds": 0}, r"not in \(0,"),
        ({"autotune_seconds": float("nan")}, r"not in \(0,"),
        ({"autotune_seconds": float("inf")}, r"not in \(0,"),
        ({"autotune_seconds": True}, "not a number of seconds"),
        ({"autotune_seconds": "60"}, "not a number of seconds"),
        ({"deterministic": 1}, "valid values: True, False"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options.of(options)


def test_the_key_is_that_of_the_group_as_it_runs() -> None:
    eager = setting(rest="eager")
    group = planned(eager)
    (key,) = keys_of((group,), eager)
    assert group.lhs.aligned and not key.group.lhs.aligned
    assert key == key_of(replace(group.group, lhs=replace(group.lhs, aligned=False)), eager.options, DEVICE, CARD)


def test_what_inductor_is_told_need_not_have_a_hash() -> None:
    """It is no part of the key."""
    entry = kept(setting())
    assert planned(setting(inductor={"post_grad_fusion_options": {}, "some": [1]})).schedule == entry.schedule


def test_what_is_capped_is_measured_nowhere() -> None:
    entry = kept(setting(schedule="streams"), "streams", 0)
    free, capped = setting(schedule="streams"), setting(schedule="streams", emitted_multiprocessors=8)
    assert planned(free).schedule == entry.schedule
    assert "measured" not in planned(capped).why and keys_of((planned(capped),), capped) == []


@pytest.mark.exhaustive
def test_all_rounds_of_a_graph_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so many as there are groups to be measured: none beats library, so each end goes, one after the other."""
    clock, meters = Clock(), list[FakeMeter]()

    def two(s: Any, x: torch.Tensor) -> Any:
        return tuple(f.silu(x @ s.w[:, half] + x @ s.a @ s.b[:, half]) for half in (slice(2048), slice(2048, 4096)))

    seconds: list[float | None] = []
    searching = Tuner.tune

    def noting(self: Tuner, keys: Any, means: Means, ranks: Any = None) -> Tuned:
        seconds.append(means.seconds)
        clock.now += 30.0  # of 100 s
        return searching(self, keys, means, ranks)

    monkeypatch.setattr(Tuner, "tune", noting)
    monkeypatch.setattr(tune_groups, "monotonic", clock)
    of_time = {"autotune": "quick", "autotune_seconds": 100.0}
    always = setting(tuning=tuning(meters, library=0.1), epilogues="always", **of_time)
    group = planned(always, graph(two))
    assert seconds == [max(0.0, 100.0 - 30.0 * at) for at in range(len(seconds))] and len(seconds) >= 4
    assert group.schedule == Schedule("library") and not group.epilogues and "measured" in group.why


@pytest.mark.exhaustive
@pytest.mark.parametrize("ends", [1, 2, 5])
def test_ends_that_all_lose_are_not_tried_in_every_choice_of_them(ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five there would be 32; from the fourth round on the group goes without all of them."""
    meters: list[FakeMeter] = []

    def some(s: Any, x: torch.Tensor) -> Any:
        halves = [slice(at * 256, (at + 1) * 256) for at in range(ends)]
        return tuple(f.silu(x @ s.w[:, half] + x @ s.a @ s.b[:, half]) for half in halves)

    always = setting(tuning=tuning(meters, library=0.01), autotune="quick", epilogues="always")
    rounds: list[int] = []
    searching = Tuner.tune

    def counted(self: Tuner, keys: Any, means: Means, ranks: Any = None) -> Tuned:
        tuned = searching(self, keys, means, ranks)
        rounds.append(len(tuned.outcomes))
        return tuned

    monkeypatch.setattr(Tuner, "tune", counted)
    group = planned(always, graph(some))
    assert not group.epilogues and group.schedule == Schedule("library") and group.why.startswith("measured")
    assert sum(map(bool, rounds)) == {1: 2, 2: 4, 5: 5}[ends] and [each.closed for each in meters] == [1]
    for each in group.group.mains:
        assert group.group.epilogue_of(each) is None


def test_a_later_process_plans_the_choice_of_ends_that_was_measured() -> None:
    """Of five ends most choices are measured nowhere. What was settled is planned again, tuned or not, and nothing is
    searched for it."""
    meters: list[FakeMeter] = []

    def made(device: Device) -> Meter:
        meters.append(EndsLose(Clock(), library=10.0))
        return meters[-1]

    def five(s: Any, x: torch.Tensor) -> Any:
        halves = [slice(at * 256, (at + 1) * 256) for at in range(5)]
        return tuple(f.silu(x @ s.w[:, half] + x @ s.a @ s.b[:, half]) for half in halves)

    module, of = graph(five), setting(epilogues="always")
    models = planned(of, module)
    tunes = replace(of, tuning=Tuning(made), options=replace(of.options, autotune="quick"))
    settled = planned(tunes, module)
    assert len(models.epilogues) == 5 and not settled.epilogues and settled.why.startswith("measured")
    assert planned(of, module) == settled == planned(tunes, module) and len(meters) == 1


def test_a_choice_of_ends_that_nobody_measured_is_the_model_s_as_long_as_none_is_known_without() -> None:
    def two(s: Any, x: torch.Tensor) -> Any:
        halves = (slice(2048), slice(2048, 4096))
        return tuple(f.silu(x @ s.w[:, half] + x @ s.a @ s.b[:, half]) for half in halves)

    always, module = setting(epilogues="always"), graph(two)
    kept(always, "library", 0, module)
    group = planned(always, module)
    assert len(group.epilogues) == 1 and group.why.startswith("predicted")
    bare = setting(epilogues="never")
    entry = kept(bare, "inline", 1, module)
    group = planned(always, module)
    assert not group.epilogues and group.schedule == entry.schedule and group.why.startswith("measured")


def test_a_group_that_does_not_build_is_planned_again_and_not_tuned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks may have built all of theirs, and would not be at the meeting."""
    calls: list[int] = []
    searching = Tuner.tune

    def counted(self: Tuner, keys: Any, means: Means, ranks: Any = None) -> Tuned:
        calls.append(len(keys))
        return searching(self, keys, means, ranks)

    def endless(groups: tuple[GroupPlan, ...], modules: Any, of: Setting) -> Built:
        assert of.measured is not None
        measured.append(len(of.measured))
        return Built(groups, (), (), frozenset(each.name for each in groups if each.epilogues))

    measured: list[int] = []
    monkeypatch.setattr(Tuner, "tune", counted)
    monkeypatch.setattr(pipeline, "build_groups", endless)
    of = setting(tuning=tuning([]), autotune="quick", epilogues="always")
    (group,) = pipeline.rewrite(captured(ended), of, "call").groups
    assert not group.epilogues and calls == [1, 1] and measured == [0, 1], "searched, and found known"
