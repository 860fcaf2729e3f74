"""Best total: of things that exclude each other, those that are worth most together.

A maximum-weight independent set, where an exclusion may have more than two members: not all of them can be taken. Sets
that no exclusion connects are solved by themselves, exactly up to ``EXACT`` members by branching on whoever is excluded
most. Beyond that the better of two greedy choices is taken, by gain and by order: never worse than first come, first
served, and possibly not the best.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import fsum
from typing import Any

EXACT = 20
"""Most members of a connected set that is solved exactly: some 2,000 steps at worst (a path), a few of a clique."""

Indices = frozenset[int]


def best_total(gains: Sequence[float], exclusions: Collection[Indices]) -> Indices:
    """The indices of ``gains`` to take: the greatest sum, then the most members, then the earliest.

    Args:
        gains: what each is worth alone, in any one unit; a loss counts as nothing, so that it is taken where it can be.
        exclusions: sets of two indices or more, of which not all can be taken.
    """
    import networkx as nx

    def worth(taken: Collection[int]) -> Any:
        return fsum(max(gains[at], 0.0) for at in taken), len(taken), [-at for at in sorted(taken)]

    conflicts = nx.Graph()
    for exclusion in exclusions:
        nx.add_path(conflicts, exclusion)
    taken = frozenset(range(len(gains))) - frozenset(conflicts)
    for connected in map(frozenset, nx.connected_components(conflicts)):
        within = frozenset(exclusion for exclusion in exclusions if exclusion <= connected)
        if len(connected) <= EXACT:
            taken |= _exact(connected, within, worth)
        else:
            by_gain, in_order = sorted(connected, key=lambda at: (-gains[at], at)), sorted(connected)
            greedy: list[Indices] = [_greedy(order, within) for order in (by_gain, in_order)]
            taken |= max(greedy, key=worth)
    return taken


def _exact(free: Indices, exclusions: frozenset[Indices], worth: Callable[[Collection[int]], Any]) -> Indices:
    """The best of ``free``: with and without the one that is in most exclusions."""
    if not exclusions:
        return free
    counts = Counter(at for exclusion in exclusions for at in exclusion)
    pivot = min(counts, key=lambda at: (-counts[at], at))
    without = _exact(free - {pivot}, frozenset(each for each in exclusions if pivot not in each), worth)
    left = [each - {pivot} for each in exclusions]
    barred = frozenset(at for each in left if len(each) == 1 for at in each)
    beside = _exact(free - barred - {pivot}, frozenset(each for each in left if not each & barred), worth)
    return max(without, beside | {pivot}, key=worth)


def _greedy(order: Iterable[int], exclusions: Collection[Indices]) -> Indices:
    """Whoever comes first is taken."""
    taken: Indices = frozenset()
    for at in order:
        if not any(at in each and each <= taken | {at} for each in exclusions):
            taken |= {at}
    return taken
