"""Plans kept for a later process, and the log that keeps them."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from fusioncc.plan import Plan
from fusioncc.records import PlanLog
from fusioncc.runtime.files import cache_folder
from fusioncc.runtime.plan_cache import PlanCache
from tests.lora_models import Lora, rows
from tests.plans import lora_group, lora_plan, planned


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "plans" / "x.json")


def plans() -> list[Plan]:
    return [lora_plan(planned(lora_group("g0"), "k0")), lora_plan()]


def test_what_was_written_is_read_back_equal(cache: PlanCache) -> None:
    cache.write(plans())
    assert list(cache.read()) == plans()


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}", '[{"schema": "fusioncc.plan/2"}]'])
def test_a_file_that_cannot_be_read_is_no_plan(cache: PlanCache, text: str) -> None:
    assert cache.read() == ()
    cache.write([])
    cache.path.write_text(text)
    assert cache.read() == ()


def test_another_version_of_the_schema_is_no_plan(cache: PlanCache) -> None:
    cache.write([dataclasses.replace(plans()[0], schema="fusioncc.plan/0")])
    assert cache.read() == ()


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    PlanCache(tmp_path / "file" / "x.json").write(plans())


def test_the_entry_depends_on_graph_inputs_settings_and_state() -> None:
    def entry(x: torch.Tensor, gm: fx.GraphModule | None = None, setting: str = "") -> Path:
        return PlanCache.of(gm or fx.symbolic_trace(Lora()), [x], [setting]).path

    paths = [
        entry(rows()),
        entry(rows(5)),
        entry(rows().bfloat16()),
        entry(rows().requires_grad_()),
        entry(rows(8)[::2]),
        entry(rows(), setting="other"),
        entry(rows(), fx.symbolic_trace(Lora(scale=2.0))),
    ]
    with torch.no_grad():
        paths.append(entry(rows()))
    with torch.autocast("cpu", torch.bfloat16):
        paths.append(entry(rows()))
    assert len(set(paths)) == len(paths)
    assert entry(rows(seed=1)) == entry(rows(seed=2)), "values of tensors do not matter"


def test_a_log_keeps_every_plan_for_later_and_recalls_them(cache: PlanCache) -> None:
    log = PlanLog(first := [], "h200")
    log.cache = cache
    for plan in plans():
        log.add(plan)
    later = PlanLog(second := [], "h200")
    later.cache = cache
    later.recall()
    assert first == second == plans()
    later.add(plans()[1])
    assert second == plans(), "a plan that was recalled and then made again is one plan"


def test_a_log_without_a_plan_to_recall_says_so(cache: PlanCache) -> None:
    log = PlanLog(found := [], "h200")
    log.cache = cache
    log.recall()
    assert [plan.groups for plan in found] == [()]
    assert "its plan is not in the cache folder" in found[0].notes[0]


def test_a_failure_takes_back_what_did_not_come_to_be(cache: PlanCache) -> None:
    log = PlanLog(found := [], "h200")
    log.cache = cache
    log.add(plans()[0])
    log.fail("KeyError: injected")
    assert [plan.fallback for plan in found] == ["KeyError: injected"]


@pytest.mark.parametrize("chosen", [None, "relative/cache"])
def test_without_a_choice_the_cache_is_beside_inductor_s(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked without torch, and where torch has it."""
    monkeypatch.delenv("FUSIONCC_CACHE_DIR")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("USER", "some:body")
    if chosen is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", chosen)
    expected = Path(default_cache_dir() if chosen is None else os.path.abspath(chosen))  # noqa: PTH100
    assert cache_folder() == expected / "fusioncc"
