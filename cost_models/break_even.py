"""Where strategies of T(r) = P + r*T cost the same, and which is cheapest for how many sets; solved in fractions."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Generic, TypeVar

from fusioncc.cost_models.shapes import CallTime, Histogram, Strategy, best_edges, bucketed, generic, specialised

MOST_BUCKETS = 16
"""Numbers of buckets that are tried where none is asked for."""
T = TypeVar("T")


@dataclass(frozen=True)
class Crossover:
    """Two strategies, by name: which is cheaper up to ``sets``, and which from there on.

    Where one is cheaper for every positive number of sets (parallel lines, or lines that meet at none), ``sets`` is
    None and both names are its name; both are empty when the lines are the same.
    """

    first: str
    second: str
    sets: Fraction | None
    before: str
    after: str


@dataclass(frozen=True)
class Range:
    """``strategy`` is cheapest from ``start`` sets up to ``end`` (None: however many)."""

    strategy: Strategy
    start: Fraction
    end: Fraction | None


def crossover(first: Strategy, second: Strategy) -> Crossover:
    """Where the costs of two strategies cross, if they do."""
    slow, fast = sorted((first, second), key=lambda each: each.running_ms, reverse=True)
    if slow.preparation_ms < fast.preparation_ms and slow.running_ms > fast.running_ms:
        return Crossover(first.name, second.name, _meeting(slow, fast), slow.name, fast.name)
    name = "" if _costs(first) == _costs(second) else min(first, second, key=_costs).name
    return Crossover(first.name, second.name, None, name, name)


def crossovers(compared: Sequence[Strategy]) -> tuple[Crossover, ...]:
    """That of every pair, in order."""
    return tuple(crossover(first, second) for first, second in combinations(compared, 2))


def ranges(compared: Sequence[Strategy]) -> tuple[Range, ...]:
    """The cheapest strategy for every number of sets, from none on; one of equal strategies, the first, is named."""
    now, start = min(compared, key=lambda each: (each.preparation_ms, each.running_ms)), Fraction(0)
    found: list[Range] = []
    while True:
        faster = [each for each in compared if each.running_ms < now.running_ms]
        if not faster:
            return (*found, Range(now, start, None))
        after = min(faster, key=lambda each: (_meeting(now, each), each.running_ms))
        found.append(Range(now, start, _meeting(now, after)))
        now, start = after, _meeting(now, after)


def cheapest(compared: Sequence[Strategy], sets: float | Fraction) -> Strategy:
    """The strategy with the least T(r) for r = ``sets``; the first of equal ones."""
    return min(compared, key=lambda each: each.total_ms(sets))


def _costs(strategy: Strategy) -> tuple[float, float]:
    """What decides for every positive number of sets where two strategies do not cross."""
    return strategy.running_ms, strategy.preparation_ms


def _meeting(slow: Strategy, fast: Strategy) -> Fraction:
    """Sets after which a slower strategy has cost as much as a faster one."""
    saved = Fraction(slow.running_ms) - Fraction(fast.running_ms)
    return (Fraction(fast.preparation_ms) - Fraction(slow.preparation_ms)) / saved


@dataclass(frozen=True)
class PerStrategy(Generic[T]):
    """A figure for each strategy: of the kernel for any rows, that of a bucket, that of one shape."""

    generic: T
    bucketed: T
    specialised: T


def strategies(
    histogram: Histogram,
    call_us: PerStrategy[CallTime],
    kernel_ms: PerStrategy[float],
    buckets: int | None = None,
    edges: Sequence[int] = (),
) -> tuple[Strategy, ...]:
    """The generic one, those in buckets, the specialised one. Buckets end at ``edges``, or where that number of
    ``buckets`` runs fastest; with neither, those of the numbers up to ``MOST_BUCKETS`` that are cheapest for some
    number of sets.

    Raises:
        ShapesError: edges or a number of buckets that do not fit the histogram.
    """
    first = generic(histogram, call_us.generic, kernel_ms.generic)
    last = specialised(histogram, call_us.specialised, kernel_ms.specialised)
    if edges:
        tried: Sequence[Sequence[int]] = [edges]
    elif buckets is not None:
        tried = best_edges(histogram, call_us.bucketed, buckets)[-1:]
    else:
        most = min(MOST_BUCKETS, len(histogram.shapes) - 1)
        tried = best_edges(histogram, call_us.bucketed, most) if most else ()
    middle = [bucketed(histogram, call_us.bucketed, kernel_ms.bucketed, each) for each in tried]
    if not edges and buckets is None:
        best = [found.strategy for found in ranges((first, *middle, last))]
        middle = [each for each in middle if each in best]
    return first, *middle, last
