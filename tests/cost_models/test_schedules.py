"""The model on layers and bundles with several tiles each, as ``benchmarks/results/schedules.json`` has them: its first
choice against the best that was timed, and its times against theirs. The constants that are "fitted on the layers" were
chosen with these times in view; ``tests/benchmarks/test_results.py`` has layers that check them."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusioncc.cost_models import estimate
from fusioncc.device import get_device
from fusioncc.schedule import Schedule
from tests.cost_models.groups import bundle

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "schedules.json"
H200 = get_device("h200")


@pytest.fixture(scope="module")
def timed() -> list[list[tuple[float, float]]]:
    """``(predicted, measured)`` us of every schedule, by group."""
    return [pairs(row) for row in json.loads(RESULTS.read_text())["rows"]]


def pairs(row: dict[str, Any]) -> list[tuple[float, float]]:
    m, k, widths, rank = row["layer"]
    group = bundle(m, k, *((n, rank) for n in widths))
    found = []
    for each in row["schedules"]:
        assert not each.get("wrong")
        predicted = estimate(group, msgspec.convert(each["schedule"], Schedule), H200) if "us" in each else None
        if predicted is not None:
            found.append((predicted.us, each["us"]))
    return found


def test_the_first_choice_is_nearly_the_best(timed: list[list[tuple[float, float]]]) -> None:
    regrets = [min(group)[1] / min(us for _, us in group) for group in timed]
    assert len(regrets) >= 26
    assert statistics.geometric_mean(regrets) <= 1.02
    assert max(regrets) <= 1.09


def test_times_of_what_may_be_chosen(timed: list[list[tuple[float, float]]]) -> None:
    """Over schedules within 1.3x of the best."""
    errors = []
    for group in timed:
        limit = 1.3 * min(us for _, us in group)
        errors += sorted(abs(math.log(predicted / us)) for predicted, us in group if us <= limit)
    assert statistics.median(errors) <= 0.08
    assert statistics.quantiles(errors, n=10)[-1] <= 0.25
