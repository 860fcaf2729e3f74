"""Find rotations: ``cat((-x[..., d / 2:], x[..., :d / 2]), -1)``, the half turn in rotary position embeddings.

Slices, negation and cat are one op to a chain that ends tiles, ``rotate_half``; rules prove that they are.
"""

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import CASTS, COPIES, PERMUTES, SLICES, VIEWS, aten, same_size, tensor
from fusioncc.passes.read_rotations import Rotation, read_rotation, shape_of, slice_of


@dataclass(frozen=True)
class Rotations:
    """The rotations of a graph by each of their nodes; those that are refused, with the reason."""

    of: dict[fx.Node, Rotation]
    refused: tuple[tuple[Rotation, Rejected], ...]


def find_rotations(graph: fx.Graph) -> Rotations:
    """Every join of two slices of which one is negated, by what the rules say of it."""
    found: dict[fx.Node, Rotation] = {}
    refused = []
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        rotation = read_rotation(node, order)
        if rotation is None:
            continue
        reason = next((no for rule in RULES if isinstance(no := rule(rotation), Rejected)), None)
        if reason is None:
            found |= dict.fromkeys(rotation.nodes, rotation)
        else:
            refused.append((rotation, reason))
    return Rotations(found, tuple(refused))


def read_by(rotation: Rotation) -> list[fx.Node]:
    """What its halves are slices of, down to what is no view, no slice and no cast."""
    found = []
    for half in (rotation.first, rotation.second):
        node = half.source
        while node.target in VIEWS | PERMUTES | SLICES | CASTS:
            node = node.args[0]  # type: ignore[assignment]
        found.append(node)
    return found


def same_value(rotation: Rotation) -> Decision:
    """Both halves are of one value."""
    first, second = rotation.first.source, rotation.second.source
    if first is not second:
        return _rejected("same_value", rotation, f"the halves are of two values, {first.name} and {second.name}")
    return Accepted("same_value")


def side_by_side(rotation: Rotation) -> Decision:
    """The second half comes first, then the first one."""
    size = shape_of(rotation.first.source)[rotation.first.dim]
    parts = [(half.start, half.stop) for half in (rotation.first, rotation.second)]
    if rotation.first.step > 1 or rotation.second.step > 1:
        reason = "what is rotated alternates (interleaved), where tiles rotate halves that lie side by side"
        return _rejected("side_by_side", rotation, reason)
    if parts != [(size // 2, size), (0, size // 2)] or size % 2:
        listed = " and ".join(f"[{start}:{stop}]" for start, stop in parts)
        reason = f"{listed} are not the second and the first half of {size} columns"
        return _rejected("side_by_side", rotation, reason)
    return Accepted("side_by_side")


def last_dim(rotation: Rotation) -> Decision:
    """Halves are taken and joined along the columns."""
    dims, last = {rotation.dim, rotation.first.dim, rotation.second.dim}, len(shape_of(rotation.first.source)) - 1
    if dims != {last} or len(shape_of(rotation.node)) != last + 1:
        return _rejected("last_dim", rotation, "halves are taken or joined along another dimension than the last")
    return Accepted("last_dim")


def negated_first(rotation: Rotation) -> Decision:
    """What comes first is negated, and nothing else."""
    if not rotation.first.negated or rotation.second.negated:
        return _rejected("negated_first", rotation, "another half than the one in front is negated")
    return Accepted("negated_first")


def read_alone(rotation: Rotation) -> Decision:
    """No half is read elsewhere: a tile has none to store."""
    inside = set(rotation.nodes)
    for node in inside - {rotation.node}:
        if any(user not in inside for user in node.users):
            return _rejected("read_alone", rotation, f"{node.name} is read by others as well")
    return Accepted("read_alone")


def whole_heads(rotation: Rotation) -> Decision:
    """What is rotated is no part of a head, read through whatever keeps the columns."""
    source = rotation.first.source
    columns = shape_of(source)[-1]
    while source.target in VIEWS | COPIES | {aten.neg.default} and _has_columns(source.args[0], columns):
        source = source.args[0]  # type: ignore[assignment]
    taken = slice_of(source)
    if taken is not None and taken.dim == len(shape_of(taken.source)) - 1:
        whole = shape_of(taken.source)[-1]
        return _rejected("whole_heads", rotation, f"{columns} of {whole} columns are rotated, and the rest is not")
    return Accepted("whole_heads")


RULES = (same_value, side_by_side, last_dim, negated_first, read_alone, whole_heads)


def _has_columns(node: Any, columns: int) -> bool:
    value = tensor(node)
    return value is not None and value.dim() > 0 and same_size(value.shape[-1], columns)


def _rejected(rule: str, rotation: Rotation, reason: str) -> Rejected:
    return Rejected(rule, rotation.node.name, reason)
