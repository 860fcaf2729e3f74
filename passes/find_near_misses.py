"""Find near misses: what looks like a low-rank branch beside a main product, and was not joined, with the reason.

From every product that no region has taken the pass walks back, through elementwise ops and views, to a product of
small rank that reads some X, and forward to a sum in which a main product of the same X takes part. What stands on the
way is named by :mod:`fusioncc.passes.near_miss_rules`. Two reasons at once (a large rank too) are another pattern, not
a near miss. The graph is only read.
"""

import operator
from collections import deque
from collections.abc import Iterator

import torch
from torch import fx

from fusioncc.decision import Rejected
from fusioncc.graph import CASTS, COPIES, PERMUTES, SLICES, SUMS, VIEWS, is_random
from fusioncc.passes.branch_rules import is_low_rank
from fusioncc.passes.canonicalize import Gemm
from fusioncc.passes.find_branches import sources_of
from fusioncc.passes.near_miss_rules import NearMiss, check_near_miss

MAX_STEPS = 12
"""Longest way that is followed, in nodes: an activation after decomposition has half as many."""
_PASSED = VIEWS | PERMUTES | SLICES | COPIES | CASTS

Way = tuple[fx.Node, ...]


def find_near_misses(
    gemms: tuple[Gemm, ...],
    settled: set[fx.Node],
    joined: dict[fx.Node, frozenset[fx.Node]],
    max_rank_fraction: float,
) -> list[Rejected]:
    """One refusal for each near miss.

    Args:
        gemms: every product of the graph.
        settled: products that need no reason: halves of joined branches, up products that a rule has refused.
        joined: the nodes of each region that has branches, by the node of its main product.
    """
    by_result = {gemm.result: gemm for gemm in gemms}
    found = []
    for up in gemms:
        if up.node not in settled and up.node not in joined:
            decisions = map(check_near_miss, _misses(up, by_result, settled, joined, max_rank_fraction))
            found += [decision for decision in decisions if isinstance(decision, Rejected)][:1]
    return found


def _misses(
    up: Gemm,
    by_result: dict[fx.Node, Gemm],
    settled: set[fx.Node],
    joined: dict[fx.Node, frozenset[fx.Node]],
    max_rank_fraction: float,
) -> Iterator[NearMiss]:
    """Every pair of a down product behind ``up`` and a main product of the same X in a sum with it."""
    for down, inner in _products_behind(up.lhs, by_result):
        if down is up or down.addend is not None or not is_low_rank(down.n, up.n, down.k, max_rank_fraction):
            continue
        keys = {source.key for source in sources_of(down.lhs)}
        for total, behind_up, other in _sums_of(up, by_result):
            for main, behind_main in _products_behind(other, by_result):
                if main.node in settled or main in (down, up) or main.lhs_key not in keys:
                    continue
                covered = joined.get(main.node, frozenset())
                yield NearMiss(main, down, up, inner, behind_up, behind_main, total, covered)


def _products_behind(node: fx.Node, by_result: dict[fx.Node, Gemm]) -> Iterator[tuple[Gemm, Way]]:
    """Products that ``node`` is computed from elementwise, nearest first, with the way from each to ``node``."""
    waiting: deque[tuple[fx.Node, Way]] = deque([(node, ())])
    seen = {node}
    while waiting:
        here, way = waiting.popleft()
        if here in by_result:
            yield by_result[here], way
        elif len(way) < MAX_STEPS and _is_elementwise(here):
            fresh = [arg for arg in here.all_input_nodes if arg not in seen]
            seen.update(fresh)
            waiting += [(arg, (here, *way)) for arg in fresh]


def _sums_of(up: Gemm, by_result: dict[fx.Node, Gemm]) -> Iterator[tuple[fx.Node, Way, fx.Node]]:
    """Sums that ``up`` enters elementwise, nearest first: the sum, the way from ``up`` to it, the other addend."""
    if up.addend is not None:
        yield up.node, (), up.addend
    waiting: deque[tuple[fx.Node, Way]] = deque([(up.result, ())])
    seen = {up.result}
    while waiting:
        here, way = waiting.popleft()
        for user in here.users:
            if user in seen:
                continue
            seen.add(user)
            if user in by_result and by_result[user].addend is here:
                yield user, way, user
            elif user.target in SUMS:
                yield from ((user, way, arg) for arg in user.args[:2] if isinstance(arg, fx.Node) and arg is not here)
            if len(way) < MAX_STEPS and _is_elementwise(user):
                waiting.append((user, (*way, user)))


def _is_elementwise(node: fx.Node) -> bool:
    """Element i of the result is made from element i of each input, but for views and broadcasts."""
    if node.target is operator.getitem:
        return is_random(node.all_input_nodes[0])
    tags = getattr(node.target, "tags", ())
    return node.target in _PASSED or torch.Tag.pointwise in tags or is_random(node)
