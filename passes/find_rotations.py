"""Find rotations: ``cat((-x[..., d / 2:], x[..., :d / 2]), -1)``, the half turn in rotary position embeddings.

Slices, negation and cat are one op to a chain that ends tiles, ``rotate_half``; rules prove that they are.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import COPIES, PERMUTES, SLICES, VIEWS, aten, is_static, tensor

JOINS = (aten.cat.default, aten.stack.default)
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)
END = 2**63 - 1
"""Where a slice ends that goes to the end."""


@dataclass(frozen=True)
class Half:
    """``source[start:stop:step]`` along ``dim``, negated or not; ``nodes`` lead from the source to it."""

    source: fx.Node
    nodes: tuple[fx.Node, ...]
    dim: int
    start: int
    stop: int
    step: int
    negated: bool


@dataclass(frozen=True)
class Rotation:
    """Two slices, one of them negated, that ``node`` joins along ``dim``; ``nodes`` are all of it in graph order."""

    node: fx.Node
    first: Half
    second: Half
    dim: int
    nodes: tuple[fx.Node, ...]


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
        rotation = _rotation(node, order) if node.target in JOINS else None
        if rotation is None:
            continue
        reason = next((no for rule in RULES if isinstance(no := rule(rotation), Rejected)), None)
        if reason is None:
            found |= dict.fromkeys(rotation.nodes, rotation)
        else:
            refused.append((rotation, reason))
    return Rotations(found, tuple(refused))


def same_value(rotation: Rotation) -> Decision:
    """Both halves are of one value."""
    first, second = rotation.first.source, rotation.second.source
    if first is not second:
        return _rejected("same_value", rotation, f"the halves are of two values, {first.name} and {second.name}")
    return Accepted("same_value")


def side_by_side(rotation: Rotation) -> Decision:
    """The second half comes first, then the first one."""
    size = _shape(rotation.first.source)[rotation.first.dim]
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
    dims, last = {rotation.dim, rotation.first.dim, rotation.second.dim}, len(_shape(rotation.first.source)) - 1
    if dims != {last} or len(_shape(rotation.node)) != last + 1:
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
    """What is rotated is no part of a head."""
    source = rotation.first.source
    while source.target in VIEWS | COPIES | {aten.neg.default}:
        source = source.args[0]  # type: ignore[assignment]
    taken = _slice(source)
    if taken is not None and taken.dim == len(_shape(taken.source)) - 1:
        width, whole = _shape(source)[-1], _shape(taken.source)[-1]
        return _rejected("whole_heads", rotation, f"{width} of {whole} columns are rotated, and the rest is not")
    return Accepted("whole_heads")


RULES = (same_value, side_by_side, last_dim, negated_first, read_alone, whole_heads)


def read_by(rotation: Rotation) -> list[fx.Node]:
    """What its halves are slices of, down to what is no view and no slice."""
    found = []
    for half in (rotation.first, rotation.second):
        node = half.source
        while node.target in VIEWS | PERMUTES | SLICES:
            node = node.args[0]  # type: ignore[assignment]
        found.append(node)
    return found


def _rotation(node: fx.Node, order: dict[fx.Node, int]) -> Rotation | None:
    parts: Any = node.args[0]
    halves = [half for part in parts if (half := _half(part)) is not None] if len(parts) == 2 else []
    if len(halves) < 2 or not any(half.negated for half in halves) or tensor(node) is None:
        return None
    first, second = halves
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    nodes = sorted({node, *first.nodes, *second.nodes}, key=order.__getitem__)
    return Rotation(node, first, second, dim % len(_shape(node)), tuple(nodes))


def _half(node: fx.Node) -> Half | None:
    """A slice, negated or not, alone in a new dimension or not."""
    nodes, negated = [node], False
    while nodes[-1].target in (aten.neg.default, aten.unsqueeze.default):
        negated ^= nodes[-1].target is aten.neg.default
        nodes.append(nodes[-1].args[0])  # type: ignore[arg-type]
    taken = _slice(nodes[-1])
    if taken is None:
        return None
    return Half(taken.source, (*taken.nodes, *nodes), taken.dim, taken.start, taken.stop, taken.step, negated)


def _rejected(rule: str, rotation: Rotation, reason: str) -> Rejected:
    return Rejected(rule, rotation.node.name, reason)


def _slice(node: fx.Node) -> Half | None:
    """What a node takes of another one, by a slice or as one of the parts of a split; None where that is not known."""
    args: tuple[Any, ...] = node.args
    if node.target is aten.slice.Tensor:
        given: list[Any] = [*args[1:], *[0, None, None, 1][len(args) - 1 :]]
        dim, start, stop, step = given
        return _part(args[0], (), dim, 0 if start is None else start, END if stop is None else stop, step)
    if node.target is operator.getitem and args[0].target in SPLITS:
        split, at = args
        source, sizes, *dim = split.args
        start, width = (at * sizes, sizes) if isinstance(sizes, int) else (sum(sizes[:at]), sizes[at])
        return _part(source, (split,), dim[0] if dim else 0, start, start + width, 1)
    return None


def _part(source: Any, nodes: tuple[fx.Node, ...], dim: Any, start: Any, stop: Any, step: Any) -> Half | None:
    value = tensor(source)
    if value is None or not all(isinstance(each, int) for each in (dim, start, stop, step)):
        return None
    if not all(map(is_static, value.shape)):
        return None
    dim %= value.dim()
    size = int(value.shape[dim])
    start, stop = (min(max(each + size if each < 0 else each, 0), size) for each in (start, stop))
    return Half(source, nodes, dim, start, stop, step, negated=False)


def _shape(node: fx.Node) -> Sequence[int]:
    value = tensor(node)
    assert value is not None
    return tuple(map(int, value.shape))
