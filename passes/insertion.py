"""What is inserted for one group: its new nodes, and values brought into the shapes that kernels and graph want."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusioncc.graph import aten, is_static, same_size, size_hint, tensor


@dataclass
class Insertion:
    """New nodes of one group, and which old nodes they replace."""

    graph: fx.Graph
    by_name: dict[str, fx.Node]
    new: list[fx.Node] = field(default_factory=list)
    replaced: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)

    def call(
        self, target: Callable[..., Any], args: tuple[Any, ...], value: Any, name: str | None = None, **kwargs: Any
    ) -> fx.Node:
        """A node with its fake value."""
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta["val"] = value
        self.new.append(node)
        return node


def as_matrix(insertion: Insertion, lhs: fx.Node, k: int) -> fx.Node:
    """X as ``[M, K]``: the node itself, or a view of a contiguous tensor with more dimensions."""
    value = tensor(lhs)
    assert value is not None
    if value.dim() == 2:
        return lhs
    flat = value.reshape(-1, k)
    return insertion.call(aten.reshape.default, (lhs, [-1, k]), flat)


def shaped_like(insertion: Insertion, made: fx.Node, old: fx.Node) -> fx.Node:
    """The kernel's matrix in the shape of the node it replaces (any view of its elements, symbolic or not)."""
    value, wanted = tensor(made), tensor(old)
    assert value is not None and wanted is not None
    made.meta.update({key: old.meta[key] for key in ("nn_module_stack", "stack_trace") if key in old.meta})
    if wanted.dim() == 2 and is_static(wanted.shape[1]) and wanted.shape[1] == value.shape[1]:
        return made
    shape = _as_arguments(insertion, wanted, old)
    return insertion.call(aten.reshape.default, (made, shape), value.reshape(wanted.shape))


def laid_like(insertion: Insertion, made: fx.Node, old: fx.Node) -> fx.Node:
    """The kernel's matrix in the shape of the result of an epilogue, whose dimensions may lie in another order.

    One of a single element goes inside what has its stride, which so becomes its own again.
    """
    value, wanted = tensor(made), tensor(old)
    assert value is not None and wanted is not None
    sizes, strides = wanted.shape, wanted.stride()
    steps, single = [*map(size_hint, strides)], [same_size(size, 1) for size in sizes]
    order = sorted(range(wanted.dim()), key=lambda dim: (-(steps[dim] or 0), single[dim]))
    if order == [*range(wanted.dim())]:
        return shaped_like(insertion, made, old)
    dims = [order.index(dim) for dim in range(len(order))]
    laid = value.reshape([sizes[dim] for dim in order])
    shape = _as_arguments(insertion, laid, old)
    matrix = insertion.call(aten.reshape.default, (made, shape), laid)
    return insertion.call(aten.permute.default, (matrix, dims), laid.permute(dims))


def _as_arguments(insertion: Insertion, wanted: torch.Tensor, old: fx.Node) -> list[Any]:
    """Sizes of a tensor as numbers and at most one -1; more symbolic sizes are taken from the view that the node which
    it replaces came from."""
    symbolic = [d for d, size in enumerate(wanted.shape) if not is_static(size)]
    if len(symbolic) <= 1:
        return [-1 if d in symbolic else int(size) for d, size in enumerate(wanted.shape)]
    return [_size_node(insertion, size, old) if d in symbolic else int(size) for d, size in enumerate(wanted.shape)]


def _size_node(insertion: Insertion, size: Any, near: fx.Node) -> fx.Node:
    """A node that holds a symbolic size: one that is in the graph already."""
    node: fx.Node
    for node in insertion.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
            return node
        if node is near:
            break
    for node in insertion.graph.nodes:
        value = tensor(node) if node.op == "placeholder" else None
        for dim, other in enumerate(value.shape if value is not None else ()):
            if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                return insertion.call(aten.sym_size.int, (node, dim), other)
    raise LookupError(f"no node holds the size {size}")
