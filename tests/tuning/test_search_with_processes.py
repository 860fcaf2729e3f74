"""The search with the processes of the card's meter, on a scripted bench: what hangs, dies or is wrong costs itself."""

import time
from pathlib import Path

import pytest

from fusioncc.tuning.card_worker import Limits
from fusioncc.tuning.database import Database
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.meter import CardMeter
from fusioncc.tuning.tune import Means, Tuner
from tests.cost_models.groups import bundle
from tests.tuning.entries import DEVICE, key
from tests.tuning.kinds_bench import BENCH
from tests.tuning.scripted import COMPILER

KEY = key(bundle(64, 4096, (4096, 16), (1024, 16), (1024, 16)))
LIMITS = Limits(attempt=1.0, sample=1.0, open=2.0)


@pytest.mark.exhaustive
def test_the_fastest_that_is_right_wins(tmp_path: Path) -> None:
    def meter() -> CardMeter:
        bench = (BENCH, str(tmp_path / "notes"))
        return CardMeter(DEVICE, limits=LIMITS, compilers=1, bench=bench, compiler=COMPILER)

    tuner = Tuner(Database(tmp_path / "tuned"))
    tuned = tuner.tune([KEY], Means(DEVICE, KEY.card, meter, EFFORTS["quick"], 100.0))
    (outcome,) = tuned.outcomes
    kinds = [each.schedule.kind for each in outcome.raced]
    assert outcome.entry is not None and outcome.entry.schedule.kind == "split", outcome.why
    assert (outcome.entry.time.us, outcome.entry.library.us) == (10.0, 20.0)
    raced = {name: kinds.count(name) for name in ("inline", "horizontal", "two_pool")}
    assert outcome.failures == {"hang": raced["inline"], "wrong": raced["horizontal"], "crash": raced["two_pool"]}
    assert all(raced.values()) and outcome.seconds < 100.0


@pytest.mark.exhaustive
def test_the_time_is_kept_by_processes_too(tmp_path: Path) -> None:
    """A hang is waited for, and what had no time then is not named."""

    def meter() -> CardMeter:
        bench = (BENCH, str(tmp_path / "notes"))
        return CardMeter(DEVICE, limits=LIMITS, compilers=1, bench=bench, compiler=COMPILER)

    began = time.monotonic()
    Tuner(Database(tmp_path / "tuned")).tune([KEY], Means(DEVICE, KEY.card, meter, EFFORTS["full"], 8.0))
    assert time.monotonic() - began < 8.0 + 2 * LIMITS.attempt + 2.0
