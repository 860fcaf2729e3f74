"""Contracting sets of nodes: one more set closes a cycle exactly where the whole contracted graph has one."""

import operator
import random

from torch import fx

from fusioncc.passes.exclusions import Contraction, is_acyclic


def drawn(of: random.Random) -> tuple[fx.Graph, list[fx.Node]]:
    """A graph of 4 to 24 sums of two earlier nodes."""
    graph = fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("y")]
    for _ in range(of.randint(4, 24)):
        nodes.append(graph.call_function(operator.add, tuple(of.choices(nodes[-8:], k=2))))
    return graph, nodes


def test_a_path_back_is_a_cycle_of_the_contracted_graph() -> None:
    of = random.Random(0)
    answers = []
    for _ in range(2000):
        graph, nodes = drawn(of)
        free = nodes[2:]
        of.shuffle(free)
        sets = [frozenset(free[at : at + size]) for at, size in ((0, 2), (2, of.randint(1, 3)))]
        inside = frozenset(free[-of.randint(1, 3) :]) - sets[0] - sets[1]
        if not inside or not is_acyclic(graph, sets):
            continue
        order = {node: at for at, node in enumerate(graph.nodes)}
        contraction = Contraction(order)
        contraction.contract(frozenset(free[:1]))
        contraction.contract(sets[0], instead_of=frozenset(free[:1]))
        contraction.contract(sets[1])
        answers.append(contraction.leads_back(inside))
        assert answers[-1] != is_acyclic(graph, [*sets, inside])
    assert min(answers.count(True), answers.count(False)) > 100
