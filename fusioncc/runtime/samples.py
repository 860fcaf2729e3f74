"""What many measurements of one thing say. No torch."""

import statistics
from collections.abc import Sequence


def summary(samples: Sequence[float]) -> tuple[float, float]:
    """Median and spread, half the interquartile range."""
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return statistics.median(ordered), (ordered[-1 - quarter] - ordered[quarter]) / 2
