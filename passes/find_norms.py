"""Find norms: the RMSNorm that makes the X of a group.

``x * rsqrt(mean(x * x) + epsilon) * weight``, however it is rounded in between: the weight may multiply before the last
cast or behind it, or not at all. One node stands for all of it where nothing decomposed it.
"""

import operator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import fx

from fusioncc.decision import Rejected
from fusioncc.graph import (
    COPIES,
    HOLDERS,
    aten,
    dtype_of,
    is_exact_cast,
    is_rounding,
    keeps_order,
    same_size,
    tensor,
    value_key,
)
from fusioncc.passes.read_ops import single

WHOLE = {aten.rms_norm.default, aten._fused_rms_norm.default}
"""Ops that are a norm: x, the shape of its rows, weight, epsilon."""
EPSILON = torch.finfo(torch.float32).eps
"""Where none is given."""
SUMS = {aten.add.Tensor, aten.add.Scalar}


@dataclass(frozen=True)
class FoundNorm:
    """A norm of the rows of ``x``, which makes ``node``."""

    node: fx.Node
    x: fx.Node
    epsilon: float
    squares: str
    """dtype of the squares, their mean and its root, of several the first that is not fp32."""
    nodes: frozenset[fx.Node]
    """All that it is made of."""
    casts: tuple[fx.Node, ...] = ()
    """What casts ``x`` in front of them; others may read that too."""
    weight: fx.Node | None = None
    rounded: bool = False
    """Whether it is rounded to less than fp32 before the weight multiplies."""

    @property
    def covered(self) -> frozenset[fx.Node]:
        """The nodes that nothing reads any more once the group reads ``x``."""
        covered = set(self.nodes)
        for cast in sorted(self.casts, reverse=True):
            covered |= {cast} if all(user in covered for user in cast.users) else set()
        return frozenset(covered)


def find_norm(lhs: fx.Node) -> FoundNorm | Rejected | None:
    """The norm that makes what a group reads, or why what scales its rows is none; None where nothing does."""
    node: Any = lhs
    while _is_view(node):
        node = node.args[0]
    value = tensor(node)
    if value is None or not value.dim():
        return None
    found = _whole(node) or _scaled(node, value.shape[-1])
    return replace(found, node=node) if isinstance(found, FoundNorm) else found


def _whole(node: fx.Node) -> FoundNorm | None:
    """A norm that is one node, maybe behind a cast."""
    made, passed = _through(node)
    one: Any = made.args[0] if made.target is operator.getitem and made.args[1] == 0 else made
    if not isinstance(one, fx.Node) or one.target not in WHOLE:
        return None
    given: Any = one.args
    x, shape, weight, epsilon = (*given, None, None)[:4]
    epsilon = EPSILON if epsilon is None else epsilon
    if len(shape) != 1 or not _is_epsilon(epsilon):
        return None
    nodes = frozenset((*passed, made, one))
    return FoundNorm(
        node, x, single(float(epsilon)), "fp32", nodes, weight=weight if isinstance(weight, fx.Node) else None
    )


def _scaled(node: fx.Node, k: Any, weight: fx.Node | None = None) -> FoundNorm | Rejected | None:
    """What multiplies rows by the reciprocal root of a mean of their squares, before or behind one ``weight``."""
    product, passed = _through(node)
    sides: Any = product.args
    if product.target is not aten.mul.Tensor or not all(isinstance(side, fx.Node) for side in sides):
        return None
    for x, scale in (sides, sides[::-1]):
        root, between = _through(scale)
        if _is_reciprocal_root(root):
            found = _mean_of_squares(x, root)
            break
    else:
        found, between, root = None, [], product
        for other, vector in (sides, sides[::-1]) if weight is None else ():
            if found is None and _is_row(vector, k):
                found = _scaled(other, k, vector)
                if isinstance(found, FoundNorm):
                    rounded = dtype_of(other) != "fp32"
                    found = replace(found, weight=vector, rounded=rounded)
    if isinstance(found, FoundNorm):
        squares = next((dtype_of(each) for each in between if dtype_of(each) != "fp32"), found.squares)
        return replace(found, nodes=found.nodes.union(passed, between, (product, root)), squares=squares)
    return found


def _mean_of_squares(x: fx.Node, root: Any) -> FoundNorm | Rejected:
    """The norm of ``x`` with this reciprocal root."""
    total, behind = _through(root.args[0])
    epsilon = total.args[1] if total.target in SUMS and len(total.args) == 2 and not total.kwargs else None
    if _is_input(epsilon):
        why = "the number under its root is an input of the graph, and tiles have it as a constant"
        return _rejected(root, why, "dynamic=True makes an input of a Python float, dynamic=None does not")
    if not _is_epsilon(epsilon):
        return _rejected(root, "no number from 0 on is added under its root")
    mean, before = _through(total.args[0])
    if mean.target is not aten.mean.dim:
        return _rejected(root, f"under its root is no mean, but {mean.target}")
    squared, inside = _through(mean.args[0])
    value = tensor(squared)
    assert value is not None
    dims, keeps = [*mean.args[1:], False][:2]
    if [dim % value.dim() for dim in dims or ()] != [value.dim() - 1] or keeps is not True:
        return _rejected(root, "the mean under its root is of another dimension than the last")
    if not _is_square(squared):
        return _rejected(root, f"the mean under its root is not of squares, but of {squared.target}")
    narrowed = [_narrowest(each) for each in (x, *squared.all_input_nodes)]
    source, other = narrowed[0][0], narrowed[1][0]
    if not _is_one_value(source, other):
        return _rejected(root, f"the squares are of {other.name}, and what is scaled is {source.name}")
    casts = dict.fromkeys(node for made, passed in narrowed for node in (*passed, made) if node is not source)
    nodes = frozenset((*behind, total, *before, mean, *inside, squared))
    summed = (squared, *inside, mean, *before, total, *behind, root)
    squares = next((dtype_of(each) for each in summed if dtype_of(each) != "fp32"), "fp32")
    return FoundNorm(root, source, single(float(epsilon)), squares, nodes, tuple(casts))


def _rejected(root: fx.Node, reason: str, hint: str = "") -> Rejected:
    return Rejected("root_mean_square", root.name, f"what scales the rows of X is no norm: {reason}", hint)


def _is_view(node: Any) -> bool:
    """A node with the rows of what it reads, in the same order."""
    if not (keeps_order(node) or node.target in COPIES):
        return False
    source, value = tensor(node.args[0]), tensor(node)
    if source is None or value is None or not (source.dim() and value.dim()):
        return False
    return same_size(source.shape[-1], value.shape[-1])


def _through(node: Any) -> tuple[Any, list[fx.Node]]:
    """What a node is made of, through views and casts, and these."""
    passed = []
    while _is_view(node) or is_rounding(node):
        passed.append(node)
        node = node.args[0]
    return node, passed


def _narrowest(node: Any) -> tuple[Any, list[fx.Node]]:
    """The tensor whose values a node has, through views and casts that change none, and these."""
    passed = []
    while _is_view(node) or is_exact_cast(node):
        passed.append(node)
        node = node.args[0]
    return node, passed


def _is_reciprocal_root(node: Any) -> bool:
    return node.target is aten.rsqrt.default or bool(node.target is aten.pow.Tensor_Scalar and node.args[1] == -0.5)


def _is_epsilon(value: Any) -> TypeGuard[float]:
    """Whether it is a number that the root of a positive one can have beside it, in fp32."""
    return isinstance(value, int | float) and 0 <= value <= torch.finfo(torch.float32).max


def _is_input(value: Any) -> bool:
    """Whether a number is a tensor without dimensions from outside the graph, maybe cast."""
    source = _through(value)[0] if tensor(value) is not None else value
    given = tensor(source)
    return given is not None and not given.dim() and source.op in HOLDERS


def _is_square(node: Any) -> bool:
    times_itself = node.target is aten.mul.Tensor and _is_one_value(*node.args)
    return times_itself or bool(node.target is aten.pow.Tensor_Scalar and node.args[1] == 2)


def _is_one_value(one: Any, other: Any) -> bool:
    """Whether two tensors are equal element by element: one node, or casts of one to the same dtype."""
    if one is other:
        return True
    a, b = tensor(one), tensor(other)
    if a is None or b is None or a.dim() != b.dim() or not all(map(same_size, a.shape, b.shape)):
        return False
    return bool(value_key(one) == value_key(other))


def _is_row(node: Any, k: Any) -> bool:
    """Whether a node has one row of K elements."""
    value = tensor(node)
    return value is not None and value.dim() > 0 and same_size(value.numel(), k) and same_size(value.shape[-1], k)
