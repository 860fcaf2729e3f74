"""Read rotations: two slices, one of them negated, that a node joins, as values that rules can judge."""

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.graph import aten, is_static, tensor
from fusioncc.passes.read_ops import arguments
from fusioncc.sizes import is_known, sizes_of

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


def read_rotation(node: fx.Node, order: dict[fx.Node, int]) -> Rotation | None:
    """What a node joins, if it may be a rotation; ``order`` is the position of each node in its graph."""
    if node.target not in JOINS:
        return None
    parts, dim = arguments(node)
    halves = [half for part in parts if (half := _half(part)) is not None] if len(parts) == 2 else []
    if len(halves) < 2 or not any(half.negated for half in halves) or tensor(node) is None:
        return None
    first, second = halves
    nodes = sorted({node, *first.nodes, *second.nodes}, key=order.__getitem__)
    return Rotation(node, first, second, dim % len(shape_of(node)), tuple(nodes))


def _half(node: fx.Node) -> Half | None:
    """A slice, negated or not, alone in a new dimension or not."""
    nodes, negated = [node], False
    while nodes[-1].target in (aten.neg.default, aten.unsqueeze.default):
        negated ^= nodes[-1].target is aten.neg.default
        nodes.append(nodes[-1].args[0])  # type: ignore[arg-type]
    taken = slice_of(nodes[-1])
    if taken is None:
        return None
    return Half(taken.source, (*taken.nodes, *nodes), taken.dim, taken.start, taken.stop, taken.step, negated)


def slice_of(node: fx.Node) -> Half | None:
    """What a node takes of another one, by a slice or as one of the parts of a split; None where that is not known."""
    args: tuple[Any, ...] = node.args
    if node.target is aten.slice.Tensor:
        source, dim, start, stop, step = arguments(node)
        return _part(source, (), dim, 0 if start is None else start, END if stop is None else stop, step)
    if node.target is operator.getitem and args[0].target in SPLITS:
        split, at = args
        source, sizes, dim = arguments(split)
        start, width = (at * sizes, sizes) if isinstance(sizes, int) else (sum(sizes[:at]), sizes[at])
        return _part(source, (split,), dim, start, start + width, 1)
    return None


def _part(source: Any, nodes: tuple[fx.Node, ...], dim: Any, start: Any, stop: Any, step: Any) -> Half | None:
    value = tensor(source)
    if value is None or not all(isinstance(each, int) for each in (dim, start, stop, step)):
        return None
    dim %= value.dim()
    if not is_static(value.shape[dim]) or not all(map(is_known, value.shape)):
        return None
    size = int(value.shape[dim])
    start, stop = (min(max(each + size if each < 0 else each, 0), size) for each in (start, stop))
    return Half(source, nodes, dim, start, stop, step, negated=False)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    value = tensor(node)
    assert value is not None
    return sizes_of(value.shape)
