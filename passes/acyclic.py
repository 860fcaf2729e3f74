"""Acyclic: contracting several groups at once must leave the graph without a cycle.

Each group is legal alone; two of them can still feed each other through their other members. A group that would close
such a cycle is left out.
"""

from collections import defaultdict
from collections.abc import Hashable
from graphlib import CycleError, TopologicalSorter

from torch import fx


def keep_acyclic(graph: fx.Graph, covered: list[frozenset[fx.Node]]) -> list[bool]:
    """For each set of nodes whether it may be contracted beside those kept before it."""
    if _is_acyclic(graph, covered):
        return [True] * len(covered)
    kept: list[bool] = []
    for position in range(len(covered)):
        chosen = [nodes for nodes, keep in zip(covered, [*kept, True], strict=False) if keep]
        kept.append(_is_acyclic(graph, chosen) if position else True)
    return kept


def _is_acyclic(graph: fx.Graph, covered: list[frozenset[fx.Node]]) -> bool:
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
