"""The head of a chain: what is computed from products tile by tile, before anything is reduced along rows.

Of a residual sum in front of a norm the sum is the head. What follows the head reads its results, so it ends where the
fewest bytes have to be written; what does not read a product belongs to it where nothing else needs it.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod

from torch import fx

from fusioncc.graph import tensor
from fusioncc.passes.find_chains import is_reduction
from fusioncc.passes.read_rotations import Rotation
from fusioncc.sizes import sizes_of


def head_of(
    nodes: Sequence[fx.Node], products: Collection[fx.Node], rotated: Mapping[fx.Node, Rotation] | None = None
) -> tuple[fx.Node, ...]:
    """The nodes of a chain (in graph order) that make up its head; all of them where it begins with a reduction.
    ``products`` are the inputs that a group makes; rotations (``rotated``, by their nodes) stay whole."""
    turns = {rotation.nodes for rotation in (rotated or {}).values()}
    inside, behind = set(nodes), set[fx.Node]()
    head = set[fx.Node]()
    for node in nodes:
        if is_reduction(node) or any(each in behind for each in node.all_input_nodes):
            behind.add(node)
        elif any(each in head or each in products for each in node.all_input_nodes):
            head.add(node)
    for node in reversed(nodes):
        if node not in behind and all(user in head for user in node.users):
            head.add(node)
    shortest = [head]
    for node in reversed(nodes) if behind else ():
        if node in shortest[-1] and not any(user in shortest[-1] for user in node.users):
            shortest.append(shortest[-1] - {node})
    whole = (each for each in shortest if each and not any(_cut(each, turn) for turn in turns))
    best = min(whole, key=lambda each: _written(each, products), default=inside)
    return tuple(node for node in nodes if node in best)


def _cut(head: Collection[fx.Node], rotation: Sequence[fx.Node]) -> bool:
    """Whether a head has a part of a rotation."""
    return 0 < sum(node in head for node in rotation) < len(rotation)


def _written(head: Collection[fx.Node], products: Collection[fx.Node]) -> int:
    """Bytes of what others read of a head, and of the products that they read too."""
    made = (node for node in (*head, *products) if any(user not in head for user in node.users))
    return sum(map(_bytes, made))


def _bytes(node: fx.Node) -> int:
    value = tensor(node)
    return 0 if value is None else prod(sizes_of(value.shape)) * value.element_size()
