"""Shapes: the figures of the design documents, buckets against brute force, crossovers that really cross."""

import math
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fusioncc.cost_models.break_even import PerStrategy, cheapest, crossover, crossovers, ranges, strategies
from fusioncc.cost_models.shapes import Histogram, Strategy, best_edges, bucketed, generic, specialised
from fusioncc.errors import ShapesError

FFN = Histogram.of({256: 8, 1536: 1, 2048: 1})
ROW_FLOPS = 3 * 2 * 12288 * 4096
PEAK_TFLOPS = 503.8
"""Of the documents' card, dense bf16."""
GENERIC, BUCKETS, SPECIALISED = PRINTED = (
    Strategy("generic", 100, 17.0),
    Strategy("buckets", 400, 12.4),
    Strategy("specialised", 900, 6.8),
)
"""With the milliseconds that the documents print."""

HISTOGRAMS = st.dictionaries(st.integers(1, 4096), st.integers(1, 100), min_size=1, max_size=7).map(Histogram.of)
COSTS = st.builds(Strategy, st.uuids().map(str), st.integers(0, 50), st.integers(1, 50))
FEW = st.lists(COSTS, min_size=1, max_size=6)


def at(tflops: float, rows: int) -> float:
    """Time of a call at this rate, us."""
    return rows * ROW_FLOPS / (tflops * 1e6)


def test_the_documents_table() -> None:
    assert (FFN.calls, FFN.total_rows) == (10, 5632)
    assert pytest.approx(302e6, rel=0.001) == ROW_FLOPS
    padded = FFN.padded((512, 2048))
    assert padded.total_rows == 8192
    assert padded.total_rows / FFN.total_rows == pytest.approx(1.45, abs=0.005)
    assert [round(100 * rate / PEAK_TFLOPS) for rate in (100, 200, 250)] == [20, 40, 50]
    rows = (
        generic(FFN, lambda rows: at(100, rows), 100),
        bucketed(FFN, lambda rows: at(200, rows), 200, (512, 2048)),
        specialised(FFN, lambda rows: at(250, rows), 300),
    )
    assert [each.rows for each in rows] == [5632, 8192, 5632]
    assert [each.kernels for each in rows] == [1, 2, 3]
    assert [round(each.running_ms, 1) for each in rows] == [17.0, 12.4, 6.8]
    assert [each.preparation_ms for each in rows] == [100, 400, 900]


def test_the_documents_crossovers() -> None:
    found = {(each.first, each.second): each for each in crossovers(PRINTED)}
    rounded = {pair: round(each.sets) for pair, each in found.items() if each.sets is not None}
    assert rounded == {
        ("generic", "buckets"): 65,
        ("generic", "specialised"): 78,
        ("buckets", "specialised"): 89,
    }
    assert {each.before for each in found.values()} == {"generic", "buckets"}
    assert [each.strategy.name for each in ranges(PRINTED)] == ["generic", "buckets", "specialised"]
    assert [cheapest(PRINTED, sets).name for sets in (0, 65, 66, 89, 90)] == [
        *("generic", "generic", "buckets", "buckets", "specialised")
    ]


def test_the_best_two_buckets_are_better_than_the_documents() -> None:
    (edges,) = best_edges(FFN, lambda rows: at(200, rows), 2)[1:]
    assert edges == (256, 2048)
    assert FFN.padded(edges).total_rows == 6144


def test_bucketing_stops_paying_where_padding_costs_more_than_the_rate_gains() -> None:
    uneven = Histogram.of({1: 90, 2048: 10})
    padded = bucketed(uneven, lambda rows: at(200, rows), 200, (2048,))
    assert padded.running_ms > generic(uneven, lambda rows: at(100, rows), 100).running_ms


def test_a_rate_makes_a_set_a_second() -> None:
    rates = Histogram.of({16: 0.5, 64: 2.0})
    assert (rates.calls, rates.total_rows) == (2.5, 136.0)
    assert rates.padded((64,)).shapes == ((64, 2.5),)


def test_crossovers_are_exact() -> None:
    found = crossover(Strategy("a", 0, 0.3), Strategy("b", 1, 0.2))
    assert found.sets == 1 / (Fraction(0.3) - Fraction(0.2))


@pytest.mark.parametrize(
    ("first", "second", "cheaper"),
    [
        ((100, 10), (200, 10), "first"),  # parallel
        ((200, 10), (100, 10), "second"),
        ((100, 10), (200, 20), "first"),  # they meet at a negative number of sets
        ((200, 20), (100, 10), "second"),
        ((100, 20), (100, 10), "second"),  # they meet at none
        ((100, 10), (100, 10), ""),  # the same
    ],
)
def test_lines_that_do_not_cross(first: tuple[int, int], second: tuple[int, int], cheaper: str) -> None:
    found = crossover(Strategy("first", *first), Strategy("second", *second))
    assert (found.sets, found.before, found.after) == (None, cheaper, cheaper)


@given(COSTS, COSTS)
def test_crossovers_really_cross(first: Strategy, second: Strategy) -> None:
    found = crossover(first, second)
    mirrored = crossover(second, first)
    assert (mirrored.sets, mirrored.before, mirrored.after) == (found.sets, found.before, found.after)
    of = {each.name: each for each in (first, second)}
    if found.sets is None:
        differences = {first.total_ms(sets) - second.total_ms(sets) for sets in (Fraction(1, 10**6), 1, 10**6)}
        cheaper = {first.name: -1, second.name: 1, "": 0}[found.after]
        assert {(each > 0) - (each < 0) for each in differences} == {cheaper}
    else:
        before, after = of[found.before], of[found.after]
        assert before.total_ms(found.sets) == after.total_ms(found.sets)
        assert before.total_ms(found.sets / 2) < after.total_ms(found.sets / 2)
        assert before.total_ms(found.sets * 2) > after.total_ms(found.sets * 2)


@example([Strategy("a", 0, 3), Strategy("b", 1, 2), Strategy("c", 2, 1)], Fraction(1))  # all meet in one point
@example([Strategy("a", 1, 2), Strategy("b", 1, 1)], Fraction(0))
@given(FEW, st.fractions(0, 1000))
def test_the_ranges_name_a_cheapest_strategy_everywhere(compared: list[Strategy], sets: Fraction) -> None:
    found = ranges(compared)
    assert found[0].start == 0 and found[-1].end is None
    assert all(each.end is None or each.start < each.end for each in found)
    assert all(before.end == after.start for before, after in pairwise(found))
    (within,) = [each for each in found if each.start <= sets and (each.end is None or sets < each.end)]
    least = cheapest(compared, sets).total_ms(sets)
    assert within.strategy.total_ms(sets) == least == min(each.total_ms(sets) for each in compared)


@given(HISTOGRAMS, st.data())
def test_best_edges_equal_brute_force(histogram: Histogram, data: st.DataObject) -> None:
    """Whatever a call costs; all numbers are whole, so that sums are exact."""
    us = {rows: data.draw(st.integers(1, 1000)) for rows in histogram.rows}
    found = best_edges(histogram, us.__getitem__, len(us))
    assert [len(edges) for edges in found] == list(range(1, len(us) + 1))
    for buckets, edges in enumerate(found, start=1):
        lower = combinations(histogram.rows[:-1], buckets - 1)
        times = [histogram.padded((*each, histogram.rows[-1])).running_ms(us.__getitem__) for each in lower]
        assert histogram.padded(edges).running_ms(us.__getitem__) == min(times)


@given(HISTOGRAMS, st.floats(0.1, 2.0), st.integers(0, 1000), st.data())
def test_no_edges_at_all_are_better(histogram: Histogram, power: float, fixed: int, data: st.DataObject) -> None:
    """Edges need not be rows that occur, where fewer rows are never slower."""
    us = lambda rows: fixed + rows**power
    inner = st.lists(st.integers(1, histogram.rows[-1] - 1), max_size=4) if histogram.rows[-1] > 1 else st.just([])
    edges = (*sorted(set(data.draw(inner))), histogram.rows[-1] + data.draw(st.integers(0, 100)))
    used = tuple(high for low, high in pairwise((0, *edges)) if any(low < rows <= high for rows in histogram.rows))
    best = best_edges(histogram, us, len(used))[-1]
    given_ms, best_ms = (histogram.padded(each).running_ms(us) for each in (used, best))
    assert best_ms <= given_ms * (1 + 1e-12)


@given(HISTOGRAMS, st.floats(0.1, 2.0), st.integers(0, 1000))
def test_more_buckets_never_cost_more_running_time(histogram: Histogram, power: float, fixed: int) -> None:
    us = lambda rows: fixed + rows**power
    running = [histogram.padded(edges).running_ms(us) for edges in best_edges(histogram, us, len(histogram.shapes))]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(running))
    assert math.isclose(running[-1], histogram.running_ms(us))


def test_without_a_number_those_of_use_are_kept() -> None:
    times = PerStrategy(*[lambda rows, us=us: us * rows for us in (2.0, 1.0, 1.0)])
    histogram = Histogram.of({1: 1000, 16: 300, 64: 200, 200: 100, 512: 50, 777: 20, 2048: 10})
    found = strategies(histogram, times, PerStrategy(100, 200, 300))
    assert [each.name for each in found] == ["generic", "5 buckets", "6 buckets", "specialised"]
    everything = [bucketed(histogram, times.bucketed, 200, each) for each in best_edges(histogram, times.bucketed, 6)]
    for sets in (0, 10, 12, 13, 14, 60, 70, 1000):
        assert cheapest(found, sets).total_ms(sets) == cheapest((*found, *everything), sets).total_ms(sets)


def test_one_shape_has_no_buckets_unless_asked() -> None:
    one = Histogram.of({64: 1})
    times = PerStrategy(float, float, float)
    prices = PerStrategy(1.0, 1.0, 1.0)
    assert [each.name for each in strategies(one, times, prices)] == ["generic", "specialised"]
    assert [each.name for each in strategies(one, times, prices, buckets=1)] == ["generic", "1 bucket", "specialised"]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "the histogram is empty"),
        ({0: 1}, "rows 0 of the histogram"),
        ({-4: 1}, "rows -4 of the histogram"),
        ({2.5: 1}, "rows 2.5 of the histogram"),
        ({True: 1}, "rows True of the histogram"),
        ({1 << 31: 1}, "rows 2147483648 of the histogram"),
        ({4: 0}, "count 0 of 4 rows"),
        ({4: -1.5}, "count -1.5 of 4 rows"),
        ({4: math.nan}, "count nan of 4 rows"),
        ({4: math.inf}, "count inf of 4 rows"),
        ({4: 1e300}, "count 1e\\+300 of 4 rows"),
        ({4: "8"}, "count '8' of 4 rows"),
        ({4: True}, "count True of 4 rows"),
    ],
)
def test_a_histogram_that_makes_no_sense_names_the_field(counts: dict[int, float], message: str) -> None:
    with pytest.raises(ShapesError, match=message):
        Histogram.of(counts)


@pytest.mark.parametrize("shapes", [((4, 1), (2, 1)), ((4, 1), (4, 1))])
def test_a_histogram_is_in_order(shapes: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ShapesError, match="must ascend"):
        Histogram(shapes)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((), r"edges \(none\) leave out calls of 2048 rows"),
        ((512,), "edges 512 leave out calls of 2048 rows"),
        ((2048, 512), "do not ascend"),
        ((512, 512, 2048), "do not ascend"),
        ((0, 2048), "do not ascend from 1 on"),
        ((512, 1024, 2048), "no shape falls into the bucket that ends at 1024 rows"),
    ],
)
def test_edges_that_do_not_fit_are_refused(edges: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapesError, match=message):
        FFN.padded(edges)


@pytest.mark.parametrize("buckets", [0, -1, 4])
def test_buckets_are_at_most_as_many_as_shapes(buckets: int) -> None:
    with pytest.raises(ShapesError, match=f"buckets={buckets} is not between 1 and the number of shapes, 3"):
        best_edges(FFN, float, buckets)
