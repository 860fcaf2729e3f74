"""Facts about nodes of a functional ATen FX graph, read from ``meta["val"]``. Nothing here changes a graph.

Sizes may be symbolic: they are compared as expressions, so that looking at a graph never adds a guard.
"""

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._sympy.functions import Max, Min

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
    torch.int8: "int8",
}
HOLDERS = ("placeholder", "get_attr")
"""Nodes that hold a tensor from outside the graph."""
TORCH_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()} | {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64)
}
_EXACT = {("bf16", "fp32"), ("fp16", "fp32"), ("bf16", "fp64"), ("fp16", "fp64"), ("fp32", "fp64")}

aten = torch.ops.aten
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
}
VIEWS |= {aten.squeeze.dim, aten.squeeze.dims}
PERMUTES = {aten.permute.default, aten.transpose.int, aten.t.default}
COPIES = {
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
}
CASTS = {aten._to_copy.default, aten.to.dtype, torch.ops.prims.convert_element_type.default}
SLICES = {aten.slice.Tensor, aten.select.int}
MEMORY_VIEWS: set[Any] = VIEWS | PERMUTES | SLICES | {aten.expand.default, aten.as_strided.default, aten.unfold.default}
MEMORY_VIEWS |= {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, operator.getitem}
"""What Inductor makes of a tensor in memory without writing it, where it does not copy (:func:`copies`)."""
PADS = {aten.constant_pad_nd.default}
SUMS = {aten.add.Tensor, aten.sub.Tensor}


def tensor(node: Any) -> torch.Tensor | None:
    """The fake tensor a node stands for; None for anything else (sizes, tuples, constants)."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def dtype_of(node: fx.Node) -> str:
    """Short name of a tensor node's dtype (``bf16``), or torch's own name where the vocabulary has none."""
    value = tensor(node)
    return "none" if value is None else DTYPE_NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are provably equal."""
    return bool(_expression(a) == _expression(b))


def is_static(size: Any) -> bool:
    """Whether a size is a plain number, known when the graph is compiled."""
    return isinstance(size, int) or bool(getattr(_expression(size), "is_number", False))


def size_hint(size: Any) -> int | None:
    """The number, or the value a symbolic size had at capture; None when there is none (data dependent)."""
    if is_static(size):
        return int(_expression(size))
    hint = size.node.hint
    return None if hint is None else int(hint)


def size_symbol(size: Any) -> str:
    """The expression of a symbolic size, empty for a static one."""
    return "" if is_static(size) else str(_expression(size))


def _expression(size: Any) -> Any:
    """The expression of a size; of one that is the same for all values of its symbols, as ``Min(64, 64*s0)`` is where
    ``s0`` is at least 1 (a stride of what torch.export views), that number."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    if not expression.has(Min, Max):
        return expression
    bounds = size.node.shape_env.bound_sympy(expression)
    return bounds.lower if bounds.is_singleton() else expression


def product(sizes: Any) -> Any:
    """Product of sizes, symbolic or not."""
    result: Any = 1
    for size in sizes:
        result = result * size
    return result


def is_exact_cast(node: fx.Node) -> bool:
    """A cast that changes no value (widening, or to the same dtype)."""
    if node.target not in CASTS or not isinstance(node.args[0], fx.Node):
        return False
    before, after = tensor(node.args[0]), tensor(node)
    if before is None or after is None or before.device != after.device:
        return False
    return holds(dtype_of(node), dtype_of(node.args[0]))


def holds(wide: str, narrow: str) -> bool:
    """Whether every value of dtype ``narrow`` is a value of dtype ``wide``."""
    return wide == narrow or (narrow, wide) in _EXACT


def is_rounding(node: fx.Node) -> bool:
    """A cast on one device between the floating dtypes of ordinary arithmetic: it may round, and changes nothing else.

    Casts to integers or to 8-bit formats quantise on purpose and are not looked through.
    """
    if node.target not in CASTS or not isinstance(node.args[0], fx.Node):
        return False
    before, after = tensor(node.args[0]), tensor(node)
    if before is None or after is None or before.device != after.device:
        return False
    return {dtype_of(node.args[0]), dtype_of(node)} <= {"bf16", "fp16", "fp32", "fp64"}


def keeps_order(node: fx.Node) -> bool:
    """A view, permutation or expansion after which the elements, read row by row, are the same in the same order."""
    if node.target not in VIEWS | PERMUTES | {aten.expand.default}:
        return False
    source, result = tensor(node.args[0]), tensor(node)
    if source is None or result is None:
        return False
    if node.target in PERMUTES:
        moved = [dim for dim in permutation(node) if not same_size(source.shape[dim], 1)]
        return moved == sorted(moved)
    return same_size(product(source.shape), product(result.shape))


def copies(node: fx.Node) -> bool:
    """Whether one of ``VIEWS`` is none of what it reads: a reshape that the strides do not allow writes a new tensor.

    Between two dimensions that do not lie one behind the other, the new shape has to have an edge too.
    """
    source, result = (tensor(node.args[0]), tensor(node)) if node.target in VIEWS else (None, None)
    if source is None or result is None:
        return node.target in VIEWS
    dims = [(size, step) for size, step in zip(source.shape, source.stride(), strict=True) if not same_size(size, 1)]
    edges = [product(result.shape[at:]) for at in range(result.dim())]
    for at, (_, step) in enumerate(dims[:-1], 1):
        inside = product(size for size, _ in dims[at:])
        follows = same_size(step, product(dims[at]))
        if not follows and not any(same_size(inside, edge) for edge in edges):
            return True
    return False


def permutation(node: fx.Node) -> list[int]:
    """Source dimension of each dimension of a permute, transpose or t node."""
    source = tensor(node.args[0])
    assert source is not None
    dims = list(range(source.dim()))
    if node.target is aten.permute.default:
        order: Any = node.args[1]
        return [dims[d] for d in order]
    a, b = (node.args[1], node.args[2]) if node.target is aten.transpose.int else (0, -1)
    if dims:
        dims[a], dims[b] = dims[b], dims[a]  # type: ignore[index]
    return dims


def value_key(node: fx.Node) -> Any:
    """A hashable key: equal keys mean equal matrices after flattening to ``[rows, last dim]``.

    Views that keep the order of elements, copies and exact casts are peeled; other pure rearrangements are compared by
    structure, with the shape they start from: equal elements, viewed in two shapes, are permuted to different ones.
    """
    value = tensor(node)
    return (_elements(node), _expression(value.shape[-1]) if value is not None and value.dim() else 1)


def _elements(node: fx.Node) -> Any:
    """A key of the elements in order."""
    while keeps_order(node) or node.target in COPIES or is_exact_cast(node):
        node = node.args[0]  # type: ignore[assignment]
    source = tensor(node.args[0]) if node.args else None
    if source is None or node.target not in PERMUTES | SLICES | CASTS | {aten.expand.default}:
        return node
    shape = () if node.target in CASTS else tuple(map(_expression, source.shape))
    rest = tuple(map(_freeze, node.args[1:])) + tuple(sorted((k, _freeze(v)) for k, v in node.kwargs.items()))
    return (str(node.target), _elements(node.args[0]), shape, *rest)  # type: ignore[arg-type]


def _freeze(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_freeze, value))
    return value if isinstance(value, fx.Node | int | float | bool | type(None)) else str(value)


@dataclass(frozen=True)
class Storage:
    """The node whose memory a rearranged 2-D tensor reads, and its strides in elements (0: expanded)."""

    node: fx.Node
    strides: tuple[int, ...]


def storage_of(node: fx.Node) -> Storage | None:
    """Where the matrix in the last two dimensions lies: through transposes, unsqueezes and expansions; None when a
    stride is symbolic."""
    value = tensor(node)
    assert value is not None
    dims: list[int | None] = []
    dims += range(value.dim())[-2:]
    while True:
        if node.target in PERMUTES:
            order = permutation(node)
            dims = [None if d is None else order[d] for d in dims]
        elif node.target is aten.unsqueeze.default:
            at = int(node.args[1]) % (tensor(node).dim())  # type: ignore[arg-type, union-attr]
            dims = [None if d is None or d == at else d - (d > at) for d in dims]
        elif node.target is aten.expand.default:
            inner, outer = tensor(node.args[0]), tensor(node)
            assert inner is not None and outer is not None
            lead = outer.dim() - inner.dim()
            dims = [
                None if d is None or d < lead or not same_size(inner.shape[d - lead], outer.shape[d]) else d - lead
                for d in dims
            ]
        else:
            break
        node = node.args[0]  # type: ignore[assignment]
    root = tensor(node)
    assert root is not None
    strides = [0 if d is None else root.stride(d) for d in dims]
    if not all(map(is_static, strides)):
        return None
    return Storage(node, tuple(int(s) for s in strides))


def users_outside(node: fx.Node, inside: set[fx.Node]) -> Iterator[fx.Node]:
    """Users of a node that are not in a set, in graph order of use."""
    return (user for user in node.users if user not in inside)


def keeps_elements(node: fx.Node) -> bool:
    """A view, cast or copy, and what only pads."""
    return node.target in VIEWS | PERMUTES | CASTS | COPIES | PADS | {aten.expand.default}


def forms_of(node: fx.Node) -> Iterator[fx.Node]:
    """A tensor, and views and casts of it."""
    yield node
    for user in filter(keeps_elements, node.users):
        yield from forms_of(user)


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a tensor, through views and casts of it."""
    return (user for form in forms_of(node) for user in form.users if not keeps_elements(user))


def matrix_strides(value: torch.Tensor) -> tuple[int, int] | None:
    """The strides of a tensor as the matrix of its rows along the last dimension: one of two dimensions with static
    strides, or a contiguous one; None of any other."""
    if value.dim() == 2 and all(map(is_static, value.stride())):
        return int(value.stride(0)), int(value.stride(1))
    return (int(value.shape[-1]), 1) if value.is_contiguous() else None


def is_aligned(node: fx.Node) -> bool:
    """Whether a tensor begins on a multiple of 16 bytes (allocations do; a view may begin anywhere)."""
    value = tensor(node)
    assert value is not None
    offset = value.storage_offset()
    return is_static(offset) and int(offset) * value.element_size() % 16 == 0


def rows_may_be_padded(node: fx.Node) -> bool:
    """Whether Inductor may store an intermediate with longer rows than it has elements (comprehensive padding).

    It pads large strides that are no multiple of its alignment; inputs of the graph stay as they are.
    """
    from torch._inductor import config

    while node.target in VIEWS | PERMUTES | {aten.expand.default} and not copies(node):
        node = node.args[0]  # type: ignore[assignment]
    value = tensor(node)
    if value is None or node.op in HOLDERS:
        return False
    if config.triton_kernel_default_layout_constraint != "needs_fixed_stride_order":
        return True
    least, alignment = config.padding_stride_threshold, config.padding_alignment_bytes
    return any(is_static(s) and s > least and int(s) * value.element_size() % alignment for s in value.stride())


def gaps_may_close(node: fx.Node) -> bool:
    """Whether Inductor may store a tensor without the gaps that its strides have: of what it computes it keeps the
    order of strides, not their values, so that a slice of an intermediate (or an expansion) may be written by itself.

    Views of the graph's inputs stay as they are.
    """
    value = tensor(node)
    while node.target in MEMORY_VIEWS and not copies(node):
        node = node.args[0]  # type: ignore[assignment]
    return value is not None and node.op not in HOLDERS and not is_dense(value)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dimensions from the longest stride to the shortest, those of one element first."""
    return tuple(sorted(range(len(shape)), key=lambda dim: (shape[dim] > 1, -strides[dim])))


def is_dense(value: torch.Tensor) -> bool:
    """Whether the elements of a tensor lie one behind the other in memory, in whatever order of its dimensions."""
    dims = [(stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if not same_size(size, 1)]
    dims.reverse()
    if all(size_hint(stride) is not None for stride, _ in dims):
        dims.sort(key=lambda dim: size_hint(dim[0]) or 0)
    expected: Any = 1
    for stride, size in dims:
        if not same_size(stride, expected):
            return False
        expected = expected * size
    return True


def trainable_inputs(graph: fx.Graph) -> frozenset[fx.Node]:
    """Inputs and attributes that require a gradient.

    AOTAutograd takes the mark off the graph and records it beside; where that record does not fit the graph one by one,
    one trainable input makes all of them so.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    held = [*inputs, *(node for node in graph.nodes if node.op == "get_attr")]
    marked = {node for node in held if (value := tensor(node)) is not None and value.requires_grad}
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset(marked)
    recorded = [info.requires_grad for info in context.fw_metadata.input_info]
    if len(recorded) != len(inputs):
        return frozenset(inputs if any(recorded) else marked)
    return frozenset(marked.union(node for node, trainable in zip(inputs, recorded, strict=True) if trainable))


def is_backward(graph: fx.Graph) -> bool:
    """Whether a graph computes gradients."""
    return any(node.op == "placeholder" and node.name.startswith("tangents_") for node in graph.nodes)


def is_mutation(node: fx.Node) -> bool:
    """Whether a node writes to one of its arguments."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    return isinstance(target, torch._ops.HigherOrderOperator) and "mutation" in str(target)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    target = node.target
    tags = getattr(target, "tags", ())
    return (
        torch.Tag.nondeterministic_seeded in tags or "inductor_random" in str(target) or "inductor_seed" in str(target)
    )


def is_collective(node: fx.Node) -> bool:
    """Whether a node communicates with other ranks."""
    return "c10d" in str(node.target)


def module_path(node: fx.Node) -> str:
    """Module path the capture recorded for a node (``model.layers.0.self_attn.q_proj``); empty when unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = re.sub(r"^L\['[^']*'\]\.?", "", str(list(stack.values())[-1][0]))
    return re.sub(r"(__dict__\.)?_modules\.", "", re.sub(r"\['([^']*)'\]", r".\1", path).lstrip("."))
