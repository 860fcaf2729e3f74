"""Canonicalize: every matrix product of the graph as one :class:`Gemm`, whichever op the capture left.

``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``linear`` and the outer product that a rank-1 ``mm`` is decomposed to are read
into the same record. Batch-1 products (einsum), products whose weight is expanded over the batch, and operands padded
to an aligned size (with the slice behind) are read as the plain product they compute.
"""

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.graph import PADS, aten, keeps_order, product, same_size, tensor, value_key


@dataclass(frozen=True)
class Gemm:
    """``result[M, N] = alpha * lhs[M, K] @ weight[K, N] (+ bias[N] | + addend[M, N])``, ``batch`` times.

    ``node`` is the op, ``result`` the node with the product's own shape (the slice behind a padded op).
    """

    node: fx.Node
    result: fx.Node
    lhs: fx.Node
    lhs_key: Any
    weight: fx.Node
    m: Any
    n: Any
    k: Any
    batch: Any = 1
    bias: fx.Node | None = None
    addend: fx.Node | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transposed: bool = False
    """The weight node is ``[N, K]`` (linear)."""
    padded_lhs: fx.Node | None = None
    """What the op reads in the place of ``lhs``, where that is padded."""


def canonicalize(graph: fx.Graph) -> tuple[Gemm, ...]:
    """All matrix products of ``graph``, in graph order."""
    found = (_read(node) for node in graph.nodes if node.op == "call_function" and tensor(node) is not None)
    return tuple(gemm for gemm in found if gemm is not None)


def _read(node: fx.Node) -> Gemm | None:
    target, args, kwargs = node.target, node.args, node.kwargs
    if target in (aten.mm.default, aten.bmm.default):
        return _product(node, args[0], args[1])
    if target in (aten.addmm.default, aten.baddbmm.default):
        alpha, beta = kwargs.get("alpha", 1.0), kwargs.get("beta", 1.0)
        if not isinstance(alpha, int | float) or not isinstance(beta, int | float):
            return None
        return _product(node, args[1], args[2], args[0], float(alpha), float(beta))
    if target is aten.linear.default:
        return _product(node, args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias"), transposed=True)
    if target is aten.mul.Tensor:
        return _outer_product(node)
    return None


def _product(
    node: fx.Node,
    lhs: Any,
    weight: Any,
    added: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transposed: bool = False,
) -> Gemm | None:
    x, w, out = tensor(lhs), tensor(weight), tensor(node)
    if x is None or w is None or out is None or not x.dim() or w.dim() < 2:
        return None
    given = lhs
    lhs, weight, result = _unpad(node, lhs, weight, transposed)
    padded = None if given is lhs else given
    x, w, out = tensor(lhs), tensor(weight), tensor(result)
    assert x is not None and w is not None and out is not None
    k, n = x.shape[-1], out.shape[-1]
    batch: Any = 1
    if w.dim() == 3 and not _is_shared_over_batch(weight):
        batch = w.shape[0]
    m = product(x.shape[:-1]) if same_size(batch, 1) else x.shape[-2]
    bias, addend = read_added(added, result, beta)
    return Gemm(
        node, result, lhs, value_key(lhs), weight, m, n, k, batch, bias, addend, alpha, beta, transposed, padded
    )


def product_nodes(gemm: Gemm) -> set[fx.Node]:
    """The op of a product, its result, and the slices between them."""
    nodes, node = {gemm.node}, gemm.result
    while node is not gemm.node:
        nodes.add(node)
        node = node.args[0]  # type: ignore[assignment]
    return nodes


def _is_shared_over_batch(weight: fx.Node) -> bool:
    value = tensor(weight)
    assert value is not None
    return same_size(value.shape[0], 1) or (weight.target is aten.expand.default and same_size(value.stride(0), 0))


def read_added(added: Any, result: fx.Node, beta: float) -> tuple[fx.Node | None, fx.Node | None]:
    """Tell a bias ``[N]`` (any shape of N elements in the last dimension) from an addend of the product's shape."""
    value, out = tensor(added), tensor(result)
    if value is None or out is None or beta == 0:
        return None, None
    if value.dim() and same_size(product(value.shape), out.shape[-1]) and same_size(value.shape[-1], out.shape[-1]):
        rows = product(out.shape[:-1])
        return (added, None) if not same_size(rows, 1) or value.dim() == 1 else (None, added)
    return None, added


def _unpad(node: fx.Node, lhs: fx.Node, weight: fx.Node, transposed: bool) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Drop zero padding of K on both sides, and of M and N when the only user slices it off again."""
    if transposed or not (_is_zero_pad(lhs) or _is_zero_pad(weight)):
        return lhs, weight, node
    bare_lhs: Any = lhs.args[0] if _is_zero_pad(lhs) else lhs
    bare_weight: Any = weight.args[0] if _is_zero_pad(weight) else weight
    x, w = tensor(bare_lhs), tensor(bare_weight)
    if x is None or w is None or not same_size(x.shape[-1], w.shape[-2]):
        return lhs, weight, node
    result = node
    wanted = [*x.shape[:-1], w.shape[-1]]
    while len(result.users) == 1 and not _has_shape(result, wanted):
        (user,) = result.users
        if user.target is not aten.slice.Tensor or user.args[0] is not result or not _starts_at_zero(user):
            break
        result = user
    return (bare_lhs, bare_weight, result) if _has_shape(result, wanted) else (lhs, weight, node)


def _is_zero_pad(node: fx.Node) -> bool:
    if node.target not in PADS:
        return False
    widths: Any = node.args[1]
    fill: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
    return bool(fill == 0) and all(isinstance(width, int) and width >= 0 for width in widths) and not any(widths[::2])


def _starts_at_zero(node: fx.Node) -> bool:
    start: Any = node.args[2] if len(node.args) > 2 else 0
    step: Any = node.args[4] if len(node.args) > 4 else 1
    return start in (0, None) and bool(step == 1)


def _has_shape(node: fx.Node, shape: list[Any]) -> bool:
    value = tensor(node)
    return value is not None and value.dim() == len(shape) and all(map(same_size, value.shape, shape))


def _outer_product(node: fx.Node) -> Gemm | None:
    """``[M, 1] * [1, N]`` where the column is a matrix product (or a view, cast or scale of one): rank 1."""
    column, row = node.args
    x, w = tensor(column), tensor(row)
    if x is None or w is None or x.dim() != 2 or w.dim() != 2:
        return None
    if not (same_size(x.shape[1], 1) and same_size(w.shape[0], 1)) or same_size(w.shape[1], 1):
        return None
    source: Any = column
    while isinstance(source, fx.Node) and (keeps_order(source) or source.target is aten.mul.Tensor):
        source = source.args[0]
    if not isinstance(source, fx.Node) or source.target not in (aten.mm.default, aten.addmm.default):
        return None
    assert isinstance(column, fx.Node) and isinstance(row, fx.Node)
    return Gemm(node, node, column, value_key(column), row, x.shape[0], w.shape[1], 1)
