"""The search, driven by a meter without a card: the right winner or library, every failure classed, the time kept."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from fusioncc.autotune.choose import rankings
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from fusioncc.tuning.candidates import measured_kinds
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.form import from_bytes, to_bytes
from fusioncc.tuning.measuring import Dropped, Failed, Job, Race, Timed
from fusioncc.tuning.neighbours import neighbours
from fusioncc.tuning.outcome import Outcome
from fusioncc.tuning.search import search
from fusioncc.tuning.space import is_selectable, require_selectable
from tests.cost_models.groups import bundle, lora
from tests.shown import shown
from tests.tuning.entries import DATE, DEVICE, GROUP, key
from tests.tuning.fake_meter import Clock, FakeMeter

LORA = lora(64, 4096, 4096, 16)
BUNDLE = bundle(512, 4096, (4096, 16), (1024, 16), (1024, 16))
PLAIN = bundle(64, 4096, (4096, 0), (1024, 0))


def searched(
    group: Group = LORA, effort: str = "quick", seconds: float | None = None, options: Any = None, **of: Any
) -> tuple[Outcome, FakeMeter]:
    clock = Clock()
    meter = FakeMeter(clock, **of)
    profile = EFFORTS[effort]
    limit = profile.seconds if seconds is None else seconds
    outcome = search(key(group, **(options or {})), DEVICE, meter, profile, limit, clock=clock, now=lambda: DATE)
    return outcome, meter


def everything(group: Group) -> list[Schedule]:
    """Every schedule of a group that can be chosen, but for divisions of two_pool."""
    wanted = key(group)
    found = [
        Schedule(kind, tuple(pool for pools in launched for pool in pools))
        for kind in measured_kinds(wanted)
        for ranked in rankings(wanted.group, DEVICE, kind)
        for launched in product(*(choices[:12] if len(ranked) > 1 else choices for choices in ranked))
    ]
    return [each for each in dict.fromkeys(found) if is_selectable(each, wanted, DEVICE)]


@pytest.mark.parametrize("group", [GROUP, LORA, PLAIN], ids=["small", "lora", "plain"])
@pytest.mark.parametrize("seed", shown(range(8), 1))
def test_quick_is_near_the_true_best(group: Group, seed: int) -> None:
    """Of a card on which kinds and tiles are off the model by 10 and 5 %."""
    outcome, meter = searched(group, seed=2 * seed, library=10.0)
    assert outcome.entry is not None
    signature = group.signature()
    least = min(meter.true_us(signature, each) for each in everything(group))
    assert meter.true_us(signature, outcome.entry.schedule) <= 1.05 * least


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_quick_names_the_fastest_that_was_raced(seed: int) -> None:
    outcome, meter = searched(BUNDLE, seed=seed, library=10.0)
    assert outcome.entry is not None and outcome.entry.effort == "quick"
    raced = {schedule for race in meter.races for schedule in race}
    assert 5 <= len(raced) <= 8 and outcome.entry.candidates == len(raced)
    times = {each: meter.true_us(BUNDLE.signature(), each) for each in raced}
    assert times[outcome.entry.schedule] <= 1.01 * min(times.values())
    assert meter.races[-1] == tuple(dict.fromkeys(meter.races[-1])) and len(meter.races[-1]) == 2
    assert outcome.entry.schedule in meter.races[-1], "the fastest two are raced once more"


def test_what_waits_is_compiled_while_the_others_are_raced() -> None:
    """The meter is told to start before anything is ranked, then of the schedules in the order in which they race; in
    between there is time for others."""
    told: list[tuple[str, ...]] = []

    class Noting(FakeMeter):
        def begin(self) -> None:
            told.append(("begin",))

        def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
            told.append(tuple({each.kind: None for each in schedules}))
            super().prepare(job, schedules)

        def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
            told.append(("race",))
            return super().race(job, schedules, seconds)

    clock = Clock()
    meter = Noting(clock, library=10.0)
    search(key(LORA), DEVICE, meter, EFFORTS["quick"], 60.0, clock=clock, meanwhile=lambda: told.append(("others",)))
    assert told[0] == ("begin",) and "two_pool" not in told[1]
    assert told[2:5] == [("two_pool",), ("others",), ("race",)]


@pytest.mark.parametrize("seed", shown([0, 2, 4, 6], 1))
@pytest.mark.parametrize("group", [GROUP, LORA, BUNDLE], ids=["small", "lora", "bundle"])
def test_full_ends_where_no_neighbour_is_faster(group: Group, seed: int) -> None:
    quick, _ = searched(group, "quick", 1e6, seed=seed, library=10.0)
    outcome, meter = searched(group, "full", 1e6, seed=seed, library=10.0)
    assert quick.entry is not None and outcome.entry is not None and outcome.entry.effort == "full"
    signature, best = group.signature(), outcome.entry.schedule
    reached = meter.true_us(signature, best)
    for each in neighbours(best, outcome.key, DEVICE):
        assert meter.true_us(signature, each) > 0.97 * reached, "no gain beyond the spreads"
    assert reached <= 1.01 * meter.true_us(signature, quick.entry.schedule)


def test_full_finds_what_quick_does_not() -> None:
    """Over several cards it is never behind, and somewhere well ahead."""
    gains, sigmas = [], {"kind": 0.0, "blocks": 0.15, "schedule": 0.05}
    for seed in (0, 2, 4, 6):
        quick, meter = searched(LORA, "quick", 1e6, seed=seed, library=10.0, sigmas=sigmas)
        full, _ = searched(LORA, "full", 1e6, seed=seed, library=10.0, sigmas=sigmas)
        assert quick.entry and full.entry
        times = [meter.true_us(LORA.signature(), each.schedule) for each in (quick.entry, full.entry)]
        gains.append(times[0] / times[1])
    assert min(gains) > 0.98 and max(gains) > 1.05


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_library_stays_where_nothing_beats_it(effort: str) -> None:
    outcome, _ = searched(effort=effort, library=0.3, seconds=1e6)
    assert outcome.entry is not None
    assert outcome.entry.schedule == Schedule("library") and outcome.entry.time == outcome.entry.library
    assert outcome.entry.effort == effort and "nothing beat library" in outcome.why
    assert from_bytes(to_bytes(outcome.entry)) == outcome.entry, "so that it is not searched again"


def test_noise_is_no_gain() -> None:
    """What is ahead of library by less than the spreads leaves it."""
    outcome, meter = searched(noise=0.0)
    assert outcome.entry is not None
    best = meter.true_us(LORA.signature(), outcome.entry.schedule)
    library = meter.true_us(LORA.signature(), Schedule("library"))
    near = best / library * 1.01
    noisy, _ = searched(noise=0.02, library=near)
    exact, _ = searched(noise=0.0001, library=near)
    assert noisy.entry is not None and noisy.entry.schedule.kind == "library"
    assert exact.entry is not None and exact.entry.schedule.kind != "library"


CLASSES = ("wrong", "hang", "crash", "memory", "build")


@pytest.mark.parametrize("failure", CLASSES)
def test_a_failure_costs_only_itself(failure: str) -> None:
    """The schedule that would have won fails; the next best wins, and the failure is counted."""
    sound, meter = searched(noise=0.0, library=10.0, seconds=300.0)
    assert sound.entry is not None and sound.failures == {}
    fastest = sound.entry.schedule
    outcome, _ = searched(noise=0.0, library=10.0, seconds=300.0, fault=lambda each: failure * (each == fastest))
    assert outcome.failures == {failure: 1}
    assert outcome.entry is not None and outcome.entry.schedule not in (fastest, Schedule("library"))
    raced = {each.schedule for each in outcome.raced if isinstance(each.result, Timed)}
    times = {each: meter.true_us(LORA.signature(), each) for each in raced}
    assert min(times, key=lambda each: times[each]) == outcome.entry.schedule


def test_every_failure_is_classed() -> None:
    """A class by turns; each failing schedule is raced once and counted once."""
    order: dict[Schedule, str] = {}

    def fault(schedule: Schedule) -> str:
        return order.setdefault(schedule, (*CLASSES, "", "", "")[len(order) % 8])

    outcome, _ = searched(BUNDLE, seconds=300.0, fault=fault)
    expected = {name: [*order.values()].count(name) for name in CLASSES if name in order.values()}
    assert outcome.failures == expected and len(expected) >= 4
    assert outcome.entry is not None and outcome.entry.candidates == len(order) - sum(expected.values())


@pytest.mark.parametrize("failure", CLASSES)
def test_where_everything_fails_nothing_is_known(failure: str) -> None:
    """That nothing was faster than library is known of what was measured only."""
    outcome, meter = searched(seconds=300.0, fault=lambda each: failure)
    (count,) = outcome.failures.values()
    assert outcome.entry is None and outcome.why == f"nothing could be measured: {count} {failure}"
    assert [*outcome.failures] == [failure] and count == len({each for race in meter.races for each in race})
    forced, _ = searched(seconds=300.0, fault=lambda each: failure, options={"schedule": "inline"})
    assert forced.entry is None and "nothing could be measured" in forced.why


def test_where_only_slow_ones_do_not_fail_library_stays() -> None:
    """They were measured, if in a short look only."""
    calls: dict[Schedule, int] = {}
    outcome, _ = searched(
        library=0.01, seconds=300.0, fault=lambda each: "crash" * (calls.setdefault(each, len(calls)) % 2)
    )
    dropped = [each for each in outcome.raced if isinstance(each.result, Dropped)]
    assert outcome.entry is not None and outcome.entry.schedule == Schedule("library")
    assert outcome.entry.candidates == len(dropped) >= 1 and outcome.failures["crash"] >= 1


def test_what_fails_only_when_it_is_confirmed_counts_for_nothing() -> None:
    calls: list[Schedule] = []

    def fault(schedule: Schedule) -> str:
        calls.append(schedule)
        return "crash" * (calls.count(schedule) > 1)

    outcome, _ = searched(noise=0.0, library=10.0, seconds=300.0, fault=fault)
    assert outcome.entry is None and outcome.why.startswith("nothing could be measured")


def test_who_fails_in_the_last_race_is_replaced() -> None:
    """The fastest is right at first and wrong when it is confirmed."""
    sound, _ = searched(noise=0.0, library=10.0, seconds=300.0)
    assert sound.entry is not None
    fastest, calls = sound.entry.schedule, []

    def fault(schedule: Schedule) -> str:
        calls.append(schedule)
        return "wrong" * (schedule == fastest and calls.count(fastest) > 1)

    outcome, meter = searched(noise=0.0, library=10.0, seconds=300.0, fault=fault)
    assert outcome.entry is not None and outcome.entry.schedule not in (fastest, Schedule("library"))
    assert outcome.failures == {"wrong": 1} and fastest not in meter.races[-1] and len(meter.races[-1]) == 2


class NoLibrary(FakeMeter):
    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        self.races.append(schedules)
        return Race(Failed("memory", "no room for X"), (None,) * len(schedules))


def test_without_a_time_of_library_nothing_is_known() -> None:
    clock = Clock()
    meter = NoLibrary(clock)
    outcome = search(key(LORA), DEVICE, meter, EFFORTS["full"], 60.0, clock=clock)
    assert outcome.entry is None and "memory: no room for X" in outcome.why and len(meter.races) == 1
    assert outcome.broken == Failed("memory", "no room for X") and outcome.failures == {}


@pytest.mark.parametrize("effort", ["quick", "full"])
@pytest.mark.parametrize("seconds", [12.0, 60.0, 240.0])
@pytest.mark.parametrize("seed", shown(range(6), 1))
def test_the_time_is_kept(effort: str, seconds: float, seed: int) -> None:
    """Compilation and every kind of failure included, to 10 %."""
    chance = random.Random(seed)
    faults: dict[Schedule, str] = {}

    def fault(schedule: Schedule) -> str:
        return faults.setdefault(schedule, chance.choice((*CLASSES, "", "", "", "")))

    outcome, meter = searched(BUNDLE, effort, seconds, seed=seed, fault=fault)
    assert outcome.seconds == meter.clock.now <= 1.1 * seconds
    if outcome.seconds < 0.7 * seconds and outcome.entry is not None:
        assert outcome.entry.effort == effort, "nothing was left to do"


def test_no_time_is_no_result() -> None:
    outcome, meter = searched(seconds=0.0)
    assert outcome.entry is None and "no time" in outcome.why and not meter.races
    short, _ = searched(seconds=4.0, library=0.3)
    assert short.entry is None and "no time to measure every candidate" in short.why


def test_a_forced_kind_stays_also_where_library_is_faster() -> None:
    outcome, meter = searched(library=0.3, options={"schedule": "inline"})
    assert outcome.entry is not None and outcome.entry.schedule.kind == "inline"
    assert {each.kind for race in meter.races for each in race} == {"inline"}
    assert outcome.entry.time.us > outcome.entry.library.us
    assert from_bytes(to_bytes(outcome.entry)) == outcome.entry


@pytest.mark.parametrize("schedule", ["library", "packed", "merged"])
def test_what_has_no_kernel_of_ours_is_not_searched(schedule: str) -> None:
    outcome, meter = searched(options={"schedule": schedule})
    assert outcome.entry is None and not meter.races


def test_two_pool_is_raced_behind_the_others_from_the_tile_that_won() -> None:
    outcome, meter = searched(lora(2048, 4096, 4096, 16), seconds=300.0, library=10.0)
    first, second, *_ = meter.races
    assert {each.kind for each in first}.isdisjoint({"two_pool"}) and {each.kind for each in second} == {"two_pool"}
    plain = [each for each in outcome.raced if each.schedule in first]
    best = min(plain, key=lambda each: _part(each.result, each.library)).schedule
    tiles = [next(pool.tile for pool in each.pools if pool.role == "main") for each in (best, second[0])]
    assert len({(tile.block_m, tile.block_n, tile.tma) for tile in tiles}) == 1


def _part(result: object, library: Measured) -> float:
    return result.time.us / library.us if isinstance(result, Timed) else float("inf")


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_the_same_card_gives_the_same_outcome(effort: str) -> None:
    once, first = searched(BUNDLE, effort, seed=3)
    again, second = searched(BUNDLE, effort, seed=3)
    assert once == again and first.races == second.races


@pytest.mark.parametrize("of", [{"seed": 1}, {"seed": 2}, {"seed": 5, "library": 10.0}])
def test_what_is_kept_can_be_chosen(of: dict[str, float]) -> None:
    outcome, _ = searched(lora(2048, 4096, 4096, 16), "full", **of)
    assert outcome.entry is not None
    require_selectable(outcome.entry.schedule, outcome.key, DEVICE)
    assert from_bytes(to_bytes(outcome.entry)) == outcome.entry


def test_what_was_pruned_is_counted_by_reason() -> None:
    outcome, _ = searched()
    assert outcome.pruned and sum(outcome.pruned.values()) > 100
    assert any("block is at least twice" in reason for reason in outcome.pruned)


def test_each_race_is_told() -> None:
    told: list[int] = []
    clock = Clock()
    tell: Callable[[object], None] = lambda raced: told.append(len(raced))  # type: ignore[arg-type]
    outcome = search(key(LORA), DEVICE, FakeMeter(clock), EFFORTS["quick"], 60.0, clock=clock, tell=tell)
    assert sum(told) == len(outcome.raced) and len(told) == 3
