"""Find low-rank branches: pairs of products ``(X @ A) @ B`` of small rank, with every scale on the way collected.

Scales are recognised wherever people put them: on X, on A's product, on B's product, as a number or a one-element
tensor. Roundings on the way (casts) are looked through; what they mean for the result is the numerics rule's matter.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from fusioncc.graph import (
    COPIES,
    aten,
    dtype_of,
    holds,
    is_rounding,
    keeps_order,
    product,
    same_size,
    tensor,
    value_key,
)
from fusioncc.passes.canonicalize import Gemm


@dataclass(frozen=True)
class Scale:
    """A product of constants and one-element tensors, with the nodes that applied them."""

    value: float = 1.0
    tensors: tuple[fx.Node, ...] = ()

    def times(self, other: "Scale") -> "Scale":
        """Both factors."""
        return Scale(self.value * other.value, self.tensors + other.tensors)


@dataclass(frozen=True)
class Source:
    """A value that A's LHS is a scaled form of: its key and the scale."""

    key: Any
    scale: Scale


@dataclass(frozen=True)
class LowRankPair:
    """``scale * (X @ A) @ B``: the two products, the scales in front of B's bias and behind it, the nodes between them.

    ``sources`` are the values that may be X, A's own LHS first; ``lhs_key`` and ``on_lhs`` belong to the one chosen.
    """

    down: Gemm
    up: Gemm
    lhs_key: Any
    on_lhs: Scale
    on_down: Scale
    inner: tuple[fx.Node, ...]
    sources: tuple[Source, ...]

    def reading(self, lhs_key: Any) -> "LowRankPair":
        """The branch with the main member's LHS as its X, where it is one of the sources."""
        source = next((source for source in self.sources if source.key == lhs_key), None)
        return self if source is None else replace(self, lhs_key=source.key, on_lhs=source.scale)


def find_branches(gemms: tuple[Gemm, ...]) -> dict[fx.Node, LowRankPair]:
    """Low-rank branches by the node of their up product; the rank is judged later, against the main member."""
    by_result = {gemm.result: gemm for gemm in gemms}
    branches = {}
    for up in gemms:
        source, on_down, inner = peel_scales(up.lhs)
        down = by_result.get(source)
        if down is None or down is up or down.addend is not None or not _fits(down, up):
            continue
        inner = inner if up.padded_lhs is None else (up.padded_lhs, *inner)
        sources = sources_of(down.lhs)
        branches[up.node] = LowRankPair(down, up, sources[-1].key, sources[-1].scale, on_down, inner, sources)
    return branches


def _fits(down: Gemm, up: Gemm) -> bool:
    """Sizes are known and the rank is one number; whether it is small is for the rule ``low_rank`` to say."""
    return all(isinstance(size, int) for size in (down.k, down.n, up.k, up.n)) and same_size(down.n, up.k)


def sources_of(node: fx.Node) -> tuple[Source, ...]:
    """What a down product's LHS is a scaled form of, nearest first.

    A value that was rounded on the way is no source: the main product would have to read it unrounded.
    """
    sources, scale, dtypes = [Source(value_key(node), Scale())], Scale(), {dtype_of(node)}
    while (step := _step(node)) is not None:
        node, factor = step
        scale = scale.times(factor)
        dtypes.add(dtype_of(node))
        if all(holds(wide, dtype_of(node)) for wide in dtypes):
            sources.append(Source(value_key(node), scale))
    return tuple(sources)


def peel_scales(node: fx.Node, stops: Container[fx.Node] = ()) -> tuple[fx.Node, Scale, tuple[fx.Node, ...]]:
    """Walk back through order-keeping views, copies, roundings and scales: source, scale, nodes passed (nearest first).

    Walks no further than ``stops``: a product of rank 1 is a multiplication, and no scale.
    """
    scale, passed = Scale(), []
    while node not in stops and (step := _step(node)) is not None:
        passed.append(node)
        node, factor = step
        scale = scale.times(factor)
    return node, scale, tuple(passed)


def _step(node: fx.Node) -> tuple[fx.Node, Scale] | None:
    """One step back through a scale, or through a view, copy or rounding."""
    if keeps_order(node) or node.target in COPIES or is_rounding(node):
        return node.args[0], Scale()  # type: ignore[return-value]
    return scale_of(node)


def scale_of(node: fx.Node) -> tuple[fx.Node, Scale] | None:
    """``(operand, factor)`` of a multiplication or division by a number or a one-element tensor, or a negation."""
    if node.target is aten.neg.default:
        return node.args[0], Scale(-1.0)  # type: ignore[return-value]
    if node.target in (aten.div.Tensor, aten.div.Scalar) and isinstance(node.args[1], int | float):
        return (node.args[0], Scale(1.0 / node.args[1])) if node.args[1] else None  # type: ignore[return-value]
    if node.target not in (aten.mul.Tensor, aten.mul.Scalar):
        return None
    for value, factor in (node.args[:2], node.args[1::-1]):
        if not isinstance(value, fx.Node) or tensor(value) is None:
            continue
        if isinstance(factor, int | float) and not isinstance(factor, bool):
            return value, Scale(float(factor))
        if isinstance(factor, fx.Node) and _is_scalar_for(factor, node):
            return value, Scale(1.0, (factor,))
    return None


def _is_scalar_for(factor: fx.Node, node: fx.Node) -> bool:
    """A one-element floating tensor that only scales: it adds no dimension to the result."""
    value, result = tensor(factor), tensor(node)
    if value is None or result is None or not value.dtype.is_floating_point:
        return False
    return same_size(product(value.shape), 1) and not same_size(product(result.shape), 1)
