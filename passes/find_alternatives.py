"""Find alternatives: regions other than the first choice, where two of them want one product.

That takes a down product with several readers. Main products that each could add a branch of it: the first of them has
it, and here another one comes first, or all that went without. Or readers that are products of one input, a group of
their own: here no branch takes them. Which of these saves most is for the planner to say. In a graph without such a
down product this is a look at every branch.
"""

from collections import defaultdict
from collections.abc import Hashable

from torch import fx

from fusioncc.decision import Rejected
from fusioncc.passes.canonicalize import Gemm
from fusioncc.passes.find_branches import LowRankPair
from fusioncc.passes.find_regions import Region, grow, in_order

MOST = 16
"""Most alternatives of products that are connected by what they read."""


def find_alternatives(
    gemms: tuple[Gemm, ...],
    branches: dict[fx.Node, LowRankPair],
    regions: tuple[Region, ...],
    max_rank_fraction: float,
) -> tuple[tuple[Region, ...], ...]:
    """Each alternative as the regions of all products that are connected, by what they read, with a contested one."""
    readers: dict[Hashable, list[Gemm]] = defaultdict(list)
    for gemm in gemms:
        readers[gemm.lhs_key].append(gemm)
    users: dict[fx.Node, set[fx.Node]] = defaultdict(set)
    for branch in branches.values():
        users[branch.down.node] |= {branch.up.node, *(gemm.node for gemm in readers[branch.up.lhs_key])}
    owner = {node: region.main.node for region in regions for node in region.halves}
    contested = {
        down: ups for down, ups in users.items() if down in owner and {owner.get(up) for up in ups} != {owner[down]}
    }
    nothing: frozenset[fx.Node] = frozenset()
    found: list[tuple[Region, ...]] = []
    seen: set[fx.Node] = set()
    for down in contested:
        if down in seen:
            continue
        nodes = _connected(down, gemms, branches)
        seen |= nodes
        order = in_order([gemm for gemm in gemms if gemm.node in nodes], branches)
        losers = [region.main.node for region, refused in grow(order, branches, max_rank_fraction) if _lost(refused)]
        firsts = [{loser} for loser in losers] + [set(losers)] * (len(losers) > 1)
        apart = [frozenset(contested[each]) for each in contested if each in nodes]
        tries = [(sorted(order, key=lambda gemm: gemm.node not in first), nothing) for first in firsts]
        tries += [(order, reserved) for reserved in apart]
        for mains, reserved in tries[:MOST]:
            found.append(tuple(region for region, _ in grow(mains, branches, max_rank_fraction, reserved)))
    return tuple(found)


def _connected(start: fx.Node, gemms: tuple[Gemm, ...], branches: dict[fx.Node, LowRankPair]) -> set[fx.Node]:
    """Products that read what ``start`` may read, the other halves of their branches, and so on."""
    tied: dict[Hashable, set[fx.Node]] = defaultdict(set)
    """Products by something that they have in common: a value read, or a branch that both are part of."""
    for gemm in gemms:
        tied[gemm.lhs_key].add(gemm.node)
    for branch in branches.values():
        tied[branch.up.node] = {branch.up.node, branch.down.node}
        for source in branch.sources:
            tied[source.key].add(branch.down.node)
    ties: dict[fx.Node, list[set[fx.Node]]] = defaultdict(list)
    for nodes in tied.values():
        for node in nodes:
            ties[node].append(nodes)
    found, waiting = {start}, [start]
    while waiting:
        new = set().union(*ties[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def _lost(refused: dict[fx.Node, Rejected]) -> bool:
    """Whether a main was refused a branch because another one has it."""
    return any(each.rule == "joined_once" for each in refused.values())
