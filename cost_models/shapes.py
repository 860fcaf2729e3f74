"""Shapes: one kernel for any number of rows, one for each bucket of rows, or one for each shape that occurs.

A histogram says how many calls have how many rows; all its calls are one *set*. A strategy costs T(r) = P + r*T: once P
to prepare its kernels, and T for each of r sets. Buckets pad the rows of a call up to their upper edge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from fusioncc.errors import ShapesError

LEAST, MOST = 1e-12, 1e15
"""What a count, a rate or a time may be: sums of them, and their ratios, stay far from the ends of a float."""
MOST_ROWS = (1 << 31) - 1
CallTime = Callable[[int], float]
"""Running time of one call with so many rows, us."""


@dataclass(frozen=True)
class Histogram:
    """``(rows, count)`` of every shape, fewest rows first. Counts may be rates, calls a second: a set is then a second.

    Raises:
        ShapesError: empty, not in order, or rows or a count that is not a positive number, or an absurd one.
    """

    shapes: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ShapesError("the histogram is empty: it needs the rows and the count of one shape at least")
        for rows, count in self.shapes:
            if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
                raise ShapesError(f"rows {rows!r} of the histogram is not a whole number from 1 to {MOST_ROWS}")
            if isinstance(count, bool) or not isinstance(count, int | float) or not LEAST <= count <= MOST:
                raise ShapesError(f"count {count!r} of {rows} rows is not a number above zero, up to {MOST:g}")
        if self.calls > MOST:
            raise ShapesError(f"counts of the histogram add up to more than {MOST:g}")
        if any(rows >= after for rows, after in pairwise(self.rows)):
            raise ShapesError("rows of the histogram must ascend, each given once")

    @classmethod
    def of(cls, counts: Mapping[int, float]) -> "Histogram":
        """The histogram of a mapping from rows to count, in any order; errors as above."""
        return cls(tuple(sorted(counts.items(), key=lambda shape: shape[0])))

    @property
    def rows(self) -> tuple[int, ...]:
        """The shapes: every number of rows that occurs."""
        return tuple(rows for rows, _ in self.shapes)

    @property
    def calls(self) -> float:
        """Calls of a set."""
        return sum(count for _, count in self.shapes)

    @property
    def total_rows(self) -> float:
        """Rows of all calls of a set."""
        return sum(rows * count for rows, count in self.shapes)

    def padded(self, edges: Sequence[int]) -> "Histogram":
        """The calls as they run in buckets that end at ``edges``: each has the rows of the lowest edge not below it.

        Raises:
            ShapesError: edges do not ascend, end below the largest shape, or a bucket holds no shape.
        """
        buckets = tuple(pairwise((0, *edges)))
        if any(low >= high for low, high in buckets):
            raise ShapesError(f"edges {_listed(edges)} do not ascend from 1 on")
        if not edges or edges[-1] < self.rows[-1]:
            raise ShapesError(
                f"edges {_listed(edges)} leave out calls of {self.rows[-1]} rows: the last must reach them"
            )
        counts = [sum(count for rows, count in self.shapes if low < rows <= high) for low, high in buckets]
        for edge, count in zip(edges, counts, strict=True):
            if not count:
                raise ShapesError(f"edges {_listed(edges)}: no shape falls into the bucket that ends at {edge} rows")
        return Histogram(tuple(zip(edges, counts, strict=True)))

    def running_ms(self, call_us: CallTime) -> float:
        """Running time of a set, ms."""
        return sum(count * call_us(rows) for rows, count in self.shapes) / 1e3


@dataclass(frozen=True)
class Strategy:
    """What is prepared, and the two costs of T(r) in ms: ``preparation_ms`` once, ``running_ms`` for each set."""

    name: str
    preparation_ms: float
    running_ms: float
    kernels: int = 1
    rows: float = 0
    """Rows that run in a set, padding counted."""
    edges: tuple[int, ...] = ()
    """Rows at which the buckets end; empty where nothing is padded."""

    def total_ms(self, sets: float | Fraction) -> Fraction:
        """T(r) for r = ``sets``, exactly."""
        return Fraction(self.preparation_ms) + Fraction(sets) * Fraction(self.running_ms)


def generic(histogram: Histogram, call_us: CallTime, kernel_ms: float) -> Strategy:
    """One kernel for any number of rows; ``kernel_ms`` prepares one."""
    return Strategy("generic", kernel_ms, histogram.running_ms(call_us), 1, histogram.total_rows)


def bucketed(histogram: Histogram, call_us: CallTime, kernel_ms: float, edges: Sequence[int]) -> Strategy:
    """One kernel for each bucket.

    Raises:
        ShapesError: see :meth:`Histogram.padded`.
    """
    padded = histogram.padded(edges)
    count = len(edges)
    name = f"{count} bucket{'s' * (count != 1)}"
    running = padded.running_ms(call_us)
    return Strategy(name, count * kernel_ms, running, count, padded.total_rows, tuple(edges))


def specialised(histogram: Histogram, call_us: CallTime, kernel_ms: float) -> Strategy:
    """One kernel for each shape."""
    count = len(histogram.shapes)
    return Strategy("specialised", count * kernel_ms, histogram.running_ms(call_us), count, histogram.total_rows)


def best_edges(histogram: Histogram, call_us: CallTime, most: int) -> tuple[tuple[int, ...], ...]:
    """The edges with the least running time for each number of buckets from 1 to ``most``, none of them empty.

    Edges are rows that occur: a lower edge is never slower where fewer rows are not. By dynamic programming over the
    largest shape of the last bucket, O(most * shapes²).

    Raises:
        ShapesError: no bucket, or more than there are shapes.
    """
    rows = histogram.rows
    if not 1 <= most <= len(rows):
        raise ShapesError(f"buckets={most} is not between 1 and the number of shapes, {len(rows)}")
    calls = list(accumulate((count for _, count in histogram.shapes), initial=0))
    us = [call_us(edge) for edge in rows]
    best = {end: (calls[end + 1] * us[end], rows[end : end + 1]) for end in range(len(rows))}
    found = [best[len(rows) - 1][1]]
    for buckets in range(2, most + 1):
        best = {
            end: min(
                (before_us + (calls[end + 1] - calls[before + 1]) * us[end], (*edges, rows[end]))
                for before, (before_us, edges) in best.items()
                if before < end
            )
            for end in range(buckets - 1, len(rows))
        }
        found.append(best[len(rows) - 1][1])
    return tuple(found)


def _listed(edges: Sequence[int]) -> str:
    return ",".join(map(str, edges)) or "(none)"
