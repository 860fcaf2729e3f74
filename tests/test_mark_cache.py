"""Under which mark of the database a compiled graph is found again: one that was measured for, whatever else is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import fx
from torch._dynamo.utils import counters

from fusioncc import FusionPass, backend
from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.mark_cache import MarkCache
from fusioncc.passes.tune_groups import Tuning
from fusioncc.plan import Plan
from fusioncc.records import PlanLog
from fusioncc.tuning import tune
from fusioncc.tuning.database import Asked, Database, database
from tests.passes.models import BF16, Model, t
from tests.tuning.entries import DATE, DEVICE, entry, key
from tests.tuning.fake_meter import Clock, FakeMeter


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "cache"))


class Inductor:
    """Inductor as its cache sees it: a key is made of the inputs and of what the pass says of itself."""

    def __init__(self) -> None:
        self.kept: set[tuple[bytes, str]] = set()

    def compile_fx(self, gm: fx.GraphModule, inputs: list[Any], config_patches: dict[str, Any]) -> Callable[..., Any]:
        fusion = config_patches["post_grad_custom_pre_pass"]
        key = (fusion.uuid(), str([value.shape for value in inputs]))
        if key in self.kept:
            counters["inductor"]["fxgraph_cache_hit"] += 1
        else:
            fusion(gm.graph)
            assert fusion.uuid() == key[0], "Inductor asks more than once"
            self.kept.add(key)
        return gm.forward


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Inductor:
    made = Inductor()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", made.compile_fx)
    return made


def compiled(n: int = 4096, fault: Callable[[Any], str] = lambda schedule: "", **options: Any) -> tuple[Plan, bool]:
    """What a process plans for a product with a branch to ``n`` columns, and whether its pass ran at all."""
    weights = {"w": t(2048, n, dtype=BF16), "a": t(2048, 16, dtype=BF16), "b": t(16, n, dtype=BF16)}
    x = t(64, 2048, dtype=BF16)
    model = capture(Model(lambda s, x: x @ s.w + x @ s.a @ s.b, **weights), (x,))
    inputs = [node.meta["val"] for node in model.graph.nodes if node.op == "placeholder"]
    tuning = Tuning(lambda device: FakeMeter(Clock(), library=10.0, fault=fault))
    log = PlanLog(found := [], "h200")
    chosen = Options.of({"device": "h200", "on_error": "raise", **options})
    fusion = FusionPass(chosen, record=log.add, tuning=tuning)
    tune._tuner.cache_clear()
    backend._inductor_rest(model, inputs, fusion, log, {})
    (plan,) = found
    return plan, bool(fusion.plans)


def test_a_graph_that_was_measured_is_not_planned_again(inductor: Inductor) -> None:
    first, ran = compiled(autotune="quick")
    assert ran and first.groups[0].why.startswith("measured")
    assert compiled(autotune="quick") == (first, False)


def test_what_is_measured_for_another_graph_does_not_matter(inductor: Inductor) -> None:
    first, _ = compiled(autotune="quick")
    assert compiled(n=2048, autotune="quick")[1]
    assert compiled(autotune="quick") == (first, False)


def test_a_graph_that_found_nothing_is_planned_again_when_there_is_something(inductor: Inductor) -> None:
    """The first time nothing is kept at all and no key is made; the second time one is, and not found."""
    bare, ran = compiled()
    assert ran and compiled() == (bare, False)
    compiled(n=2048, autotune="quick")
    assert compiled() == (bare, True) and compiled() == (bare, False)
    tuned, _ = compiled(autotune="quick")
    again, ran = compiled()
    assert ran and again.groups == tuned.groups != bare.groups
    assert compiled() == (again, False)
    database().prune(DATE, everything=True)
    assert compiled() == (bare, False), "kept under the mark of a database without entries"


def test_what_is_left_to_measure_is_measured_by_a_later_process(inductor: Inductor) -> None:
    """Where nothing at all was kept, a later process knows as little, and finds the same."""
    assert compiled(autotune="quick", fault=lambda schedule: "crash")[1]
    assert not list((database().folder.path.parent / "marks").glob("*"))
    compiled(n=2048, autotune="quick")
    plan, ran = compiled(autotune="quick")
    assert ran and plan.groups[0].why.startswith("measured")


def test_what_asks_nothing_has_no_mark(inductor: Inductor, tmp_path: Path) -> None:
    first, _ = compiled(deterministic=True)
    compiled(n=2048, autotune="quick")
    assert compiled(deterministic=True) == (first, False)


@pytest.fixture
def marks(tmp_path: Path) -> MarkCache:
    return MarkCache(tmp_path / "marks" / "x.json")


def asked(of: Database) -> Asked:
    found = Asked()
    with of.watched(found):
        if not of.is_empty():
            of.find(key(), DEVICE)
    return found


def test_a_mark_holds_as_long_as_the_answers(marks: MarkCache) -> None:
    kept = database()
    marks.write("first", asked(kept), kept)
    assert marks.read(kept) == "first"
    kept.store(entry(key=key(card="other")), DEVICE)
    assert marks.read(kept) is None, "no key was made, so that anything may be one"
    marks.write("second", asked(kept), kept)
    kept.store(entry(key=key(card="third")), DEVICE)
    assert marks.read(kept) == "second"
    kept.store(entry(), DEVICE)
    assert marks.read(kept) is None
    marks.write("third", asked(kept), kept)
    assert marks.read(kept) == "third"
    kept.store(entry(5.0, effort="full"), DEVICE)
    assert marks.read(kept) is None


def test_an_answer_that_only_this_process_knows_is_one(marks: MarkCache, tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("in the way")
    kept = Database(tmp_path / "tuned")
    assert kept.store(entry(), DEVICE) == "in memory"
    marks.write("mark", asked(kept), kept)
    assert marks.read(kept) == "mark" and marks.read(Database(tmp_path / "tuned")) is None


def test_who_asked_too_early_has_no_mark(marks: MarkCache) -> None:
    """Another process stored something behind the question whether there is anything."""
    kept = database()
    early = asked(kept)
    kept.store(entry(), DEVICE)
    marks.write("mark", early, kept)
    assert marks.read(kept) is None


@pytest.mark.parametrize("text", ["", "[", "{}", '{"mark": 1, "asked": [], "answered": ""}'])
def test_a_file_that_cannot_be_read_is_no_mark(marks: MarkCache, text: str) -> None:
    assert marks.read(database()) is None
    marks.write("mark", Asked(), database())
    marks.path.write_text(text)
    assert marks.read(database()) is None


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    MarkCache(tmp_path / "file" / "x.json").write("mark", Asked(), database())


def test_watches_do_not_mix() -> None:
    kept, outer, inner = database(), Asked(), Asked()
    kept.store(entry(), DEVICE)
    with kept.watched(outer):
        with kept.watched(inner):
            pass
        kept.find(key(), DEVICE)
    kept.find(key(card="other"), DEVICE)
    assert outer.digests == {key().digest()} and not inner.digests
