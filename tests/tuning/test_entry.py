"""Which of two results for one key is kept."""

from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pytest

from fusioncc.tuning.entry import Measured, settled
from tests.tuning.entries import DATE, entry


@pytest.mark.parametrize(
    ("effort", "us", "kept_effort", "kept_us", "replaced"),
    [
        ("quick", 9.0, "quick", 10.0, True),
        ("quick", 10.0, "quick", 9.0, False),
        ("quick", 9.9, "quick", 10.0, False),  # within the spreads
        ("quick", 10.0, "quick", 10.0, False),
        ("quick", 5.0, "full", 10.0, False),
        ("full", 9.0, "quick", 10.0, True),
        ("full", 10.1, "quick", 10.0, True),  # a wider search found nothing else
        ("full", 12.0, "quick", 10.0, False),
    ],
)
def test_effort_first_then_who_is_ahead(
    effort: Literal["quick", "full"], us: float, kept_effort: Literal["quick", "full"], kept_us: float, replaced: bool
) -> None:
    new, old = entry(us, effort=effort), entry(kept_us, effort=kept_effort)
    stays = old if effort == "quick" or kept_effort == "full" else replace(old, effort="full")
    assert settled(new, old) == (new if replaced else stays)


def test_what_a_wider_search_leaves_has_its_effort() -> None:
    """The times stay those that were measured, and so does their date."""
    old, new = entry(10.0), entry(12.0, effort="full", candidates=40, date=DATE + timedelta(days=1))
    assert settled(new, old) == entry(10.0, effort="full", candidates=40)
    assert settled(old, settled(new, old)) == settled(new, old) == settled(new, settled(new, old))


def test_runs_are_compared_by_what_they_share() -> None:
    """The card was clocked down in the second run: a longer time, and still the better one."""
    throttled = entry(14.0, library=Measured(28.0, 0.2))
    assert settled(throttled, entry(10.0)) == settled(entry(10.0), throttled) == throttled


def test_noise_replaces_nothing() -> None:
    noisy = entry(8.0, time=Measured(8.0, 3.0))
    assert settled(noisy, entry(10.0)) == entry(10.0) and settled(entry(10.0), noisy) == noisy
