"""The head of a chain: what is computed from products tile by tile, before anything is reduced along rows.

Of a residual sum in front of a norm the sum is the head. What follows the head reads its results, so it ends where the
fewest bytes have to be written; what does not read a product belongs to it where nothing else needs it.
"""

from collections.abc import Collection, Sequence

from torch import fx

from fusioncc.graph import tensor
from fusioncc.passes.find_chains import is_reduction


def head_of(nodes: Sequence[fx.Node], products: Collection[fx.Node]) -> tuple[fx.Node, ...]:
    """The nodes of a chain (in graph order) that make up its head; all of them where it begins with a reduction.
    ``products`` are the inputs that a group makes."""
    behind: set[fx.Node] = set()
    head: set[fx.Node] = set()
    for node in nodes:
        if is_reduction(node) or any(each in behind for each in node.all_input_nodes):
            behind.add(node)
        elif any(each in head or each in products for each in node.all_input_nodes):
            head.add(node)
    for node in reversed(nodes):
        if node not in behind and all(user in head for user in node.users):
            head.add(node)
    for node in reversed(nodes) if behind else ():
        sources = [each for each in node.all_input_nodes if each in head]
        last = node in head and not any(user in head for user in node.users)
        if last and sources and _bytes(node) > _needed(sources, head):
            head.remove(node)
    return tuple(node for node in nodes if node in head) or tuple(nodes)


def _needed(sources: Sequence[fx.Node], head: set[fx.Node]) -> int:
    """Bytes of the inputs of a last node that are to be written only when the head ends in front of it."""
    return sum(_bytes(each) for each in dict.fromkeys(sources) if all(user in head for user in each.users))


def _bytes(node: fx.Node) -> int:
    value = tensor(node)
    return 0 if value is None else int(value.numel()) * value.element_size()
