"""Plans that take what ships: behind the user's own results, without a card, under ``deterministic``."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fusioncc
from fusioncc.autotune import best
from fusioncc.decision import Rejected
from fusioncc.device import get_device
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import draft
from fusioncc.schedule import Schedule
from fusioncc.tuning import key_of
from fusioncc.tuning import shipped as tables
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.exchange import exported
from fusioncc.tuning.key import Versions
from fusioncc.tuning.neighbours import neighbours
from tests.passes.models import BF16, Model, t
from tests.passes.test_tuned_choice import CARD, LORA, ended, graph, kept, lora, own_folder, planned, setting, tuning
from tests.tuning.entries import DATE, DEVICE
from tests.tuning.fake_meter import FakeMeter

__all__ = ["own_folder"]
Ship = Callable[[Iterable[Entry]], None]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Ships a table in the place of the package's own."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    monkeypatch.setattr(tables, "FOLDER", folder)

    def written(entries: Iterable[Entry]) -> None:
        tables.table.cache_clear()
        (folder / "h200.json").write_bytes(exported(entries))

    return written


def result(kind: str = "inline", place: int = 1, **of: Any) -> Entry:
    """What was measured elsewhere for the group of ``graph``, with a schedule that the model does not choose."""
    key = key_of(planned(setting()).group, setting().options, DEVICE, CARD)
    found = best(key.group, DEVICE, kind) if kind != "library" else None
    schedule = neighbours(found[0], key, DEVICE)[place] if found is not None else Schedule("library")
    library = Measured(27.3, 0.1)
    key = replace(key, versions=Versions("2.11.0", "3.6.0", "e"))
    return replace(Entry(key, schedule, Measured(24.1, 0.1), library, "quick", 8, DATE), **of)


WHY = "measured 24.1 us against 27.3 us for library, for 64 rows with torch 2.11.0, triton 3.6.0, shipped with fusioncc"


@pytest.mark.parametrize("of", [setting(), setting(card=""), setting(deterministic=True)])
def test_what_ships_is_taken_untuned_and_the_plan_says_so(ship: Ship, of: Setting) -> None:
    before = planned(of)
    mine = result()
    ship([mine])
    group = planned(of)
    assert group.schedule == mine.schedule != before.schedule and group.why == WHY
    assert group.candidates == before.candidates, "which are the model's"


def test_library_that_was_measured_is_kept(ship: Ship) -> None:
    ship([result("library", time=Measured(27.3, 0.1))])
    group = planned(setting())
    assert (
        group.schedule == Schedule("library") and "measured 27.3 us, and nothing was faster, for 64 rows" in group.why
    )


def test_other_rows_of_the_bucket_are_served(ship: Ship) -> None:
    ship([result()])
    assert planned(setting(), graph(rows=50)).why == WHY
    assert "shipped" not in planned(setting(), graph(rows=128)).why


def test_the_user_s_own_results_go_first(ship: Ship) -> None:
    ship([result()])
    own = kept(setting(), "split", 0)
    assert planned(setting()).schedule == own.schedule
    assert planned(setting(deterministic=True)).why == WHY, "which reads no results of this machine"


def test_where_tuning_is_asked_for_it_is_done(ship: Ship) -> None:
    ship([result()])
    meters: list[FakeMeter] = []
    group = planned(setting(tuning=tuning(meters), autotune="quick"))
    assert len(meters) == 1 and "shipped" not in group.why and group.why.startswith("measured")


@pytest.mark.parametrize(
    "other",
    [
        setting(card="NVIDIA H100 80GB HBM3"),
        setting(device=get_device("h100")),
        setting(rest="eager"),
        setting(schedule="split"),
        setting(numerics="eager"),
        replace(setting(), runnable=Rejected("runnable", "cpu", "no card")),
        replace(setting(), measured=None),
    ],
)
def test_what_is_for_something_else_is_not_taken(ship: Ship, other: Setting) -> None:
    before = planned(other)
    ship([result()])
    assert planned(other) == before


def test_a_given_plan_is_carried_out(ship: Ship) -> None:
    plan = draft(graph(), setting()).plan
    ship([result()])
    (group,) = draft(graph(), replace(setting(), given=plan)).plan.groups
    assert group.why == "as planned" and group.schedule == plan.groups[0].schedule


def test_a_group_with_an_end_needs_a_result_of_its_own(ship: Ship) -> None:
    ship([result()])
    always, module = setting(epilogues="always"), graph(ended)
    before = planned(always, module)
    assert before.epilogues and "shipped" not in before.why
    key = key_of(before.group, always.options, DEVICE, CARD)
    found = best(key.group, DEVICE, "inline")
    assert found is not None
    mine = result(key=key, schedule=neighbours(found[0], key, DEVICE)[1])
    ship([mine])
    group = planned(always, module)
    assert group.schedule == mine.schedule and group.epilogues == before.epilogues and "shipped" in group.why


def test_the_front_door_that_needs_no_card_means_the_measured_one(ship: Ship) -> None:
    ship([result()])
    model = Model(lora, **{name: t(*shape, dtype=BF16) for name, shape in LORA.items()})
    (group,) = fusioncc.plan(model, (t(64, 2048, dtype=BF16),), device="h200").groups
    assert group.why == WHY
    (group,) = fusioncc.plan(model, (t(64, 2048, dtype=BF16),), device="h100").groups
    assert "shipped" not in group.why
