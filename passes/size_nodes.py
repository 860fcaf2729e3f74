"""Sides of a tensor as arguments of nodes: numbers, and nodes that hold at run time what is symbolic."""

import operator
from typing import Any

from torch import fx

from fusioncc.graph import aten, is_static, product, same_size, size_hint, tensor
from fusioncc.passes.insertion import Insertion


def rows_of(insertion: Insertion, node: fx.Node, columns: int) -> Any:
    """How many rows of so many columns a tensor has: a number, or a node that holds it."""
    value = tensor(node)
    assert value is not None
    symbolic = [dim for dim, size in enumerate(value.shape) if not is_static(size)]
    rows: Any = int(product(size for size in value.shape if is_static(size))) // columns
    whole = rows
    for dim in symbolic:
        size = insertion.call(aten.sym_size.int, (node, dim), value.shape[dim])
        whole = whole * value.shape[dim]
        rows = size if rows == 1 else insertion.call(operator.mul, (size, rows), whole)
    return rows


def strides_of(insertion: Insertion, node: fx.Node) -> tuple[Any, ...]:
    """The strides that a tensor has in the graph as numbers, and as nodes where they are symbolic: the size of a
    dimension times its stride, at run time.

    Raises:
        LookupError: a symbolic stride is nothing of that kind.
    """
    value = tensor(node)
    assert value is not None
    sizes, steps = value.shape, value.stride()
    found: dict[int, Any] = {dim: int(step) for dim, step in enumerate(steps) if is_static(step)}
    rest = [dim for dim in range(value.dim()) if dim not in found and not same_size(sizes[dim], 1)]
    for dim in sorted(rest, key=lambda dim: size_hint(steps[dim]) or 0):
        inner = next((at for at in found if same_size(steps[dim], sizes[at] * steps[at])), None)
        if inner is None:
            raise LookupError(f"no dimension of {node.name} explains the stride {steps[dim]}")
        size = sizes[inner]
        held = int(size) if is_static(size) else insertion.call(aten.sym_size.int, (node, inner), size)
        found[dim] = insertion.call(operator.mul, (held, found[inner]), steps[dim])
    return tuple(found.get(dim, 1) for dim in range(value.dim()))  # of one element no stride matters
