"""Schedules are compiled in processes that have no card, for one that has: it finds the kernels in Triton's cache."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from fusioncc.device import get_device
from fusioncc.schedule import Schedule
from fusioncc.schedule import TileConfig as Tile
from fusioncc.tuning.child import environment
from fusioncc.tuning.compile_pool import CompilePool
from fusioncc.tuning.measuring import Failed, Job
from fusioncc.tuning.meter import COMPILER
from tests.codegen.cases import Lora, Main, early, group, inline, split, two_pool
from tests.tuning import scripted

H200 = get_device("h200")
GROUP = group(2048, 512, Main(4096, (Lora(16),)))
TILE, DOWN = Tile(64, 64, 64, 4, 3), Tile(64, 16, 64, 4, 3)
JOB = Job(GROUP.signature(), "fp32", "eager")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton compiles, into a folder of its own."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def pool(cache: Path) -> Iterator[CompilePool]:
    made = CompilePool(COMPILER, H200, environment(), workers=1)
    yield made
    made.close()


@pytest.mark.exhaustive
def test_what_is_raced_now_is_compiled_first() -> None:
    pool = CompilePool(scripted.COMPILER, H200, environment(), workers=1, limit_s=1.0)
    done: list[str] = []

    def ask(*kinds: str, first: bool) -> list[Future[Schedule | Failed]]:
        outcomes = pool.compiled(JOB, [Schedule(kind) for kind in kinds], first=first)
        for kind, outcome in zip(kinds, outcomes, strict=True):
            outcome.add_done_callback(lambda _, kind=kind: done.append(kind))  # type: ignore[misc]
        return outcomes

    later = ask("compiler hang", "1", "2", "3", first=False)
    now = ask("4", "2", "compiler hang", first=True)
    late = "its compiler did not come back: no answer within 1.0 s"
    assert [each.result(60) for each in later] == [Failed("build", late), *map(Schedule, "123")]
    assert [each.result(60) for each in now] == [*map(Schedule, "42"), Failed("build", late)]
    pool.close()
    assert list(dict.fromkeys(done)) == ["compiler hang", "2", "4", "1", "3"]


def compiled(pool: CompilePool, *schedules: Schedule) -> list[Schedule | Failed]:
    return [future.result(timeout=200) for future in pool.compiled(JOB, schedules, first=True)]


def looked_up(*schedules: Schedule) -> list[object]:
    """What :mod:`tests.tuning.cached` says of them, in a process of its own."""
    arguments = [msgspec.json.encode(each).decode() for each in (JOB, schedules, H200)]
    command = [sys.executable, "-m", "tests.tuning.cached", *arguments]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    found: list[object] = json.loads(run.stdout)
    return found


@pytest.mark.exhaustive
def test_what_was_compiled_ahead_is_found_and_what_does_not_build_costs_only_itself(pool: CompilePool) -> None:
    plain = inline(GROUP, TILE)
    large = inline(GROUP, Tile(128, 128, 128, 8, 4))
    asked = two_pool(GROUP, TILE, DOWN, workers=7, downs=1, k_split=2)
    dependent = early(split(GROUP, TILE, DOWN))
    first, too_large, no_form, a_part, fitted, last = compiled(
        pool, plain, large, Schedule("merged"), Schedule("k_concat"), asked, dependent
    )
    assert first == plain and last == dependent
    assert isinstance(too_large, Failed) and too_large.kind == "build" and "of shared memory, h200 has" in too_large.why
    assert isinstance(no_form, Failed) and "has no emitted form" in no_form.why
    assert a_part == Failed("build", "what 'k_concat' emits is a part of the group only")
    assert isinstance(fitted, Schedule)
    (workers,) = {each.workers for each in fitted.pools if each.role == "main"}
    assert workers and workers % 132 == 0, "as many as are resident"
    found = looked_up(plain, fitted, dependent)
    assert found == [[1, [True], []], [1, [True], []], [2, [True, True], []]], "and what was launched is built"


@pytest.mark.exhaustive
def test_what_was_not_compiled_is_not_found(cache: Path) -> None:
    """The test above would see a miss."""
    assert looked_up(inline(GROUP, TILE)) == [[1, [False], []]]
    assert any(cache.iterdir())
