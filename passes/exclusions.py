"""Exclusions: which groups cannot be fused beside each other.

Two groups exclude each other when they claim one node. Others do when fusing them would close a cycle: each group is
legal alone, and still two or more can feed each other through their members. The dependency graph of the groups has an
edge where one is computed from another, by any way through the graph; fusing a set of groups leaves the graph acyclic
exactly when the dependency graph has no cycle among them.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

from torch import fx

Covered = Sequence[frozenset[fx.Node]]
"""The nodes that each group covers; none where it leaves them as they are."""


def claimed_twice(covered: Covered) -> set[frozenset[int]]:
    """Pairs of groups that cover one node."""
    owners: dict[fx.Node, list[int]] = defaultdict(list)
    for at, nodes in enumerate(covered):
        for node in nodes:
            owners[node].append(at)
    return {frozenset(pair) for claims in owners.values() for pair in combinations(claims, 2)}


def is_acyclic(graph: fx.Graph, covered: Covered) -> bool:
    """Whether all groups can be contracted at once; no two may cover one node."""
    owner: dict[fx.Node, int] = {node: at for at, nodes in enumerate(covered) for node in nodes}
    inputs: dict[Hashable, set[Hashable]] = defaultdict(set)
    for node in graph.nodes:
        here = owner.get(node, node)
        inputs[here] |= {there for arg in node.all_input_nodes if (there := owner.get(arg, arg)) != here}
    try:
        TopologicalSorter(inputs).prepare()
    except CycleError:
        return False
    return True


class Contraction:
    """Sets of nodes of a graph that become one node each; ``order`` is the position of each node in the graph."""

    def __init__(self, order: Mapping[fx.Node, int]) -> None:
        self._order = order
        self._owner: dict[fx.Node, frozenset[fx.Node]] = {}
        self._spans: dict[frozenset[fx.Node], tuple[int, int]] = {}

    def contract(self, nodes: frozenset[fx.Node], instead_of: frozenset[fx.Node] = frozenset()) -> None:
        """One more set, also in the place of one that is part of it."""
        self._spans.pop(instead_of, None)
        self._owner.update(dict.fromkeys(nodes, nodes))
        places = [self._order[node] for node in nodes]
        self._spans[nodes] = min(places), max(places)

    def leads_back(self, inside: frozenset[fx.Node]) -> bool:
        """Whether a path leaves the nodes ``inside`` and comes back. No set lies on both sides, and the rest of the
        graph has no cycle."""
        last = self._reached(max(self._order[node] for node in inside))
        waiting = [user for node in inside for user in node.users if user not in inside]
        seen: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen or node in inside:
                continue
            together = self._owner.get(node, frozenset((node,)))
            seen.update(together)
            for user in (user for each in together for user in each.users):
                if user in inside:
                    return True
                if user not in seen and self._order[user] <= last:
                    waiting.append(user)
        return False

    def _reached(self, last: int) -> int:
        """The position behind which no set has a node that also has one in front of it: nothing comes back from
        there."""
        for first, end in sorted(self._spans.values()):
            if first <= last:
                last = max(last, end)
        return last


def dependencies(graph: fx.Graph, covered: Covered) -> Any:
    """The dependency graph of the groups, a networkx ``DiGraph`` of their indices."""
    import networkx as nx

    owners: dict[fx.Node, int] = defaultdict(int)
    """Sets of groups as bits: of a node those that cover it, and below those that it is computed from."""
    for at, nodes in enumerate(covered):
        for node in nodes:
            owners[node] |= 1 << at
    sources: dict[fx.Node, int] = {}
    found = nx.DiGraph()
    found.add_nodes_from(range(len(covered)))
    for node in graph.nodes:
        before = 0
        for arg in node.all_input_nodes:
            before |= sources[arg] | owners[arg]
        sources[node] = before
        found.add_edges_from(
            (source, user) for user in _bits(owners[node]) for source in _bits(before) if source != user
        )
    return found


def cycle_among(feeds: Any, groups: Collection[int]) -> frozenset[int] | None:
    """Some of ``groups`` that are computed from each other, as few as a cycle through one of its edges has."""
    import networkx as nx

    among = feeds.subgraph(groups)
    try:
        source, user = nx.find_cycle(among)[0]
    except nx.NetworkXNoCycle:
        return None
    return frozenset(nx.shortest_path(among, user, source))


def _bits(of: int) -> list[int]:
    return [at for at in range(of.bit_length()) if of >> at & 1]
