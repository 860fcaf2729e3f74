"""Find low-rank branches: pairs of products ``(X @ A) @ B`` of small rank, with every scale on the way collected.

Scales are recognised wherever people put them: on X, on A's product, on B's product, as a number or a one-element
tensor. Roundings on the way (casts) are looked through; what they mean for the result is the numerics rule's matter.
"""

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.graph import CASTS, COPIES, aten, keeps_rows, product, same_size, tensor, value_key
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
class LowRank:
    """``scale * (X @ A) @ B``: the two products, the scales in front of B's bias and behind it, the nodes between them.

    ``lhs_key`` is the value both this branch and its main member must read: A's LHS with scales peeled.
    """

    down: Gemm
    up: Gemm
    lhs_key: Any
    on_lhs: Scale
    on_down: Scale
    inner: tuple[fx.Node, ...]


def find_branches(gemms: tuple[Gemm, ...]) -> dict[fx.Node, LowRank]:
    """Low-rank branches by the node of their up product; the rank is judged later, against the main member."""
    by_result = {gemm.result: gemm for gemm in gemms}
    branches = {}
    for up in gemms:
        source, on_down, inner = peel_scales(up.lhs)
        down = by_result.get(source)
        if down is None or down is up or down.addend is not None or not _shrinks(down, up):
            continue
        root, on_lhs, _ = peel_scales(down.lhs)
        branches[up.node] = LowRank(down, up, value_key(root), on_lhs, on_down, inner)
    return branches


def _shrinks(down: Gemm, up: Gemm) -> bool:
    """The middle dimension is smaller than both ends (a first sieve; the rule ``low_rank`` decides)."""
    sizes = (down.k, down.n, up.k, up.n)
    if not all(isinstance(size, int) for size in sizes) or not same_size(down.n, up.k):
        return False
    return int(down.n) < min(int(down.k), int(up.n))


def peel_scales(node: fx.Node) -> tuple[fx.Node, Scale, tuple[fx.Node, ...]]:
    """Walk back through row-keeping views, copies, casts and scales: source, scale, nodes passed (nearest first)."""
    scale, passed = Scale(), []
    while True:
        factor = scale_of(node)
        if factor is not None:
            scale = scale.times(factor[1])
        elif not (keeps_rows(node) or node.target in COPIES | CASTS):
            return node, scale, tuple(passed)
        passed.append(node)
        node = factor[0] if factor is not None else node.args[0]  # type: ignore[assignment]


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
