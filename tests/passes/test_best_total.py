"""What is chosen among things that exclude each other, against every choice there is."""

import random
import time
from itertools import combinations, pairwise
from math import fsum

import pytest

from fusioncc.passes.best_total import EXACT, best_total

Exclusions = set[frozenset[int]]


def allowed(taken: frozenset[int], exclusions: Exclusions) -> bool:
    return not any(each <= taken for each in exclusions)


def total(gains: list[float], taken: frozenset[int]) -> float:
    return fsum(gains[at] for at in taken)


def brute_force(gains: list[float], exclusions: Exclusions) -> float:
    """Of every subset, as the bits of a number."""
    excluded = [sum(1 << at for at in each) for each in exclusions]
    subsets = (bits for bits in range(1 << len(gains)) if not any(bits & each == each for each in excluded))
    return max(total(gains, frozenset(at for at in range(len(gains)) if bits >> at & 1)) for bits in subsets)


def drawn(count: int, density: float, of: random.Random) -> Exclusions:
    """Pairs with this probability, and a few threes."""
    pairs = {frozenset(pair) for pair in combinations(range(count), 2) if of.random() < density}
    threes = {frozenset(of.sample(range(count), 3)) for _ in range(of.randrange(4))} if count > 2 else set()
    return pairs | threes


@pytest.mark.exhaustive
def test_the_choice_equals_brute_force_on_1000_conflict_graphs() -> None:
    of = random.Random(0)
    for _ in range(1000):
        count = of.randint(1, 12)
        gains = [round(of.uniform(0, 9), 1) for _ in range(count)]
        exclusions = drawn(count, of.choice((0.1, 0.3, 0.6)), of)
        taken = best_total(gains, exclusions)
        assert allowed(taken, exclusions)
        assert total(gains, taken) == pytest.approx(brute_force(gains, exclusions))
        assert all(not allowed(taken | {at}, exclusions) for at in range(count) if at not in taken)


def test_the_better_total_wins_over_the_first_and_over_the_best_single_one() -> None:
    """A path: whoever comes first, 1, keeps out both ends; whoever is best, 4, keeps out 3 and 2.5."""
    assert best_total([1.0, 3.0], {frozenset((0, 1))}) == {1}
    assert best_total([3.0, 4.0, 2.5], {frozenset((0, 1)), frozenset((1, 2))}) == {0, 2}


def test_of_three_that_exclude_each_other_only_together_two_are_taken() -> None:
    assert best_total([2.0, 1.0, 3.0], {frozenset((0, 1, 2))}) == {0, 2}


def test_ties_go_to_more_members_and_then_to_the_earlier() -> None:
    star = {frozenset((0, 1)), frozenset((0, 2))}
    assert best_total([2.0, 1.0, 1.0], star) == {1, 2}
    assert best_total([1.0, 1.0], {frozenset((0, 1))}) == {0}
    assert best_total([0.0, -3.0, 0.0], {frozenset((0, 1)), frozenset((0, 2))}) == {1, 2}


def test_without_exclusions_all_are_taken() -> None:
    assert best_total([1.0, -1.0, 0.0], ()) == {0, 1, 2}


@pytest.mark.parametrize("count", [EXACT + 1, 60])
def test_a_large_set_is_allowed_and_never_worse_than_first_come_first_served(count: int) -> None:
    of = random.Random(count)
    for density in (0.05, 0.2, 0.6):
        path = {frozenset((at, at + 1)) for at in range(count - 1)}  # so that all are connected
        exclusions = path | drawn(count, density, of)
        gains = [of.uniform(0, 9) for _ in range(count)]
        first: frozenset[int] = frozenset()
        for at in range(count):
            first |= {at} if allowed(first | {at}, exclusions) else frozenset()
        taken = best_total(gains, exclusions)
        assert allowed(taken, exclusions)
        assert total(gains, taken) >= total(gains, first)


def test_a_greedy_choice_that_is_not_the_best_is_still_better_than_the_first() -> None:
    """Beyond the bound the heaviest comes first: a star of 1 + many, where first come takes the light centre."""
    star = {frozenset((0, at)) for at in range(1, EXACT + 2)}
    assert best_total([1.0, *[2.0] * (EXACT + 1)], star) == set(range(1, EXACT + 2))


@pytest.mark.parametrize("shape", ["each excludes all others", "each excludes its neighbours", "random"])
def test_64_groups_of_20_candidates_are_chosen_in_under_two_seconds(shape: str) -> None:
    of = random.Random(1)
    exclusions: Exclusions = set()
    for start in range(0, 64 * 20, 20):
        family = range(start, start + 20)
        pairs = {
            "each excludes all others": list(combinations(family, 2)),
            "each excludes its neighbours": list(pairwise(family)),
            "random": [pair for pair in combinations(family, 2) if of.random() < 0.2],
        }[shape]
        exclusions |= {frozenset(pair) for pair in pairs}
    gains = [of.uniform(0, 9) for _ in range(64 * 20)]
    start_s = time.process_time()
    taken = best_total(gains, exclusions)
    assert time.process_time() - start_s < 2.0
    assert allowed(taken, exclusions)
    if shape == "each excludes all others":
        best = [max(range(start, start + 20), key=gains.__getitem__) for start in range(0, 64 * 20, 20)]
        assert taken == set(best)
