"""Read ops: what a node of the graph is as ops of a chain: one elementwise op, one reduction, or a few of them.

What Inductor takes apart is read as the ops that it makes of it (:mod:`fusioncc.passes.taken_apart`), where nothing
took it apart before: one chain has one form, whichever door its graph came through. Only in the tier ``eager``, which
rounds as the graph that runs, is every node read as it stands.
"""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from fusioncc.chain import CAST, CONSTANT, REDUCTIONS, Argument, Op
from fusioncc.codegen import pointwise
from fusioncc.codegen.pointwise_dtypes import EIGHTS, FLOATS, in_dtype
from fusioncc.graph import CASTS, COPIES, aten, dtype_of, is_static, tensor
from fusioncc.passes.taken_apart import NORMALISATIONS, taken_apart
from fusioncc.sizes import is_known, sizes_of

COMPOSITES = NORMALISATIONS | {aten.var_mean.correction}
"""Nodes that are several ops over whole rows."""
FILLS: dict[Any, int] = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
FILLS |= {aten.scalar_tensor.default: 0}
"""Ops that make a tensor of one constant, and which of their arguments that is."""
ALIASES = COPIES - {aten.clone.default}
FILLED = dict.fromkeys([aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default], 0)
FILLED |= dict.fromkeys([aten.ones.default, aten.ones_like.default, aten.new_ones.default], 1)
ALPHA, DTYPE = Argument(None, "1", "alpha"), Argument(None, "None", "dtype")
"""Arguments of sums and of reductions that are left at their defaults."""


@dataclass
class Reader:
    """Collects the ops of one chain. ``number`` finds a value by the node that holds it; ``made`` of one that none of
    its nodes holds is what :meth:`op` returned."""

    numbers: dict[fx.Node, int]
    ops: list[Op] = field(default_factory=list)
    first: int = 0
    """Number of the first op's value: that of inputs."""
    exact: bool = False
    """Whether each node is read as it stands."""
    known: dict[Any, int] = field(default_factory=dict)

    def op(self, node: fx.Node, target: str, args: Sequence[Any], dtype: str, shape: Sequence[Any]) -> int:
        """Append an op, unless one like it is there; its arguments are numbers of values (as :class:`Argument`) or
        constants. Returns its number."""
        given = tuple(arg if isinstance(arg, Argument) else Argument(None, source_of(arg)) for arg in args)
        op = Op(node.name, target, given, dtype, sizes_of(shape), origin_of(node))
        number = self.known.setdefault(replace(op, node="", origin=""), self.first + len(self.ops))
        if number == self.first + len(self.ops):
            self.ops.append(op)
        return number

    def argument(self, value: Any, keyword: str = "") -> Argument:
        """An argument of a node as one of an op."""
        if isinstance(value, fx.Node):
            return Argument(self.numbers[value], keyword=keyword)
        return Argument(None, source_of(value), keyword)


def is_fill(node: fx.Node) -> bool:
    """Whether a node makes a tensor of one constant: no member of a chain, which makes its own where it reads one."""
    if node.target not in FILLS and node.target not in FILLED:
        return False
    value = tensor(node)
    fits = value is not None and not _unfit(value, symbolic=True) and dtype_of(node) not in EIGHTS
    return fits and isinstance(_fill(node), bool | int | float)


@functools.cache
def _has_form(target: Any) -> bool:
    """Whether nodes with this target may be ops of a chain; most of a graph's are not, and are asked nothing more."""
    special = target in COMPOSITES or target is operator.getitem or target in FILLS or target in FILLED
    return special or target in ALIASES or str(target) in (*REDUCTIONS, *pointwise.TABLE)


def refusal(node: fx.Node, *, symbolic: bool = False) -> str:
    """Why a node is no op of a chain; empty where it is one. ``symbolic``: sizes in front of the last may be that."""
    if node.op != "call_function" or not _has_form(node.target):
        return f"{node.target} has no expression"
    if is_fill(node):
        return "a constant is made where it is read"
    if node.target in ALIASES:
        return "it makes no tensor of its own"
    if node.target is operator.getitem:
        made = node.args[0]
        if not isinstance(made, fx.Node) or made.target not in COMPOSITES:
            return "it takes a list apart"
        return refusal(made, symbolic=symbolic)
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    tensors = [each for each in values if each is not None]
    if node.op != "call_function" or not tensors or not all(type(each) in PLAIN for each in tensors):
        return "it makes no plain tensor"
    for each in (*tensors, *(tensor(arg) for arg in node.all_input_nodes)):
        reason = "an argument is no tensor" if each is None else _unfit(each, symbolic=symbolic)
        if reason:
            return reason
    if len({each.device for each in (*tensors, *map(tensor, node.all_input_nodes)) if each is not None}) > 1:
        return "its tensors are on several devices"
    return _unread(node)


def read(node: fx.Node, reader: Reader) -> tuple[int, ...]:
    """Append the ops of a node that is one (:func:`refusal` is empty), or a constant: the numbers of its values."""
    if node.target is aten.var_mean.correction:
        return _var_mean(node, reader)
    made = pieces(node) if not reader.exact or node.target in COMPOSITES else None
    if made is not None:
        return _apart(node, made, reader)
    value, target = tensor(node), str(node.target)
    assert value is not None
    if is_fill(node):
        return (reader.op(node, CONSTANT, [_fill(node)], dtype_of(node), value.shape),)
    numbers = arguments(node) if reader.exact or _is_double(node) else list(map(single, arguments(node)))
    args: list[Any] = [reader.argument(*each) for each in zip(numbers, keywords(node), strict=False)]
    if target in REDUCTIONS:
        args[1] = [-1]
    return (reader.op(node, CAST if node.target in CASTS else target, args, dtype_of(node), value.shape),)


def pieces(node: fx.Node) -> fx.Graph | None:
    """What Inductor makes of a node, where all of that can be read; None where the node is one op."""
    if is_fill(node):
        return None
    graph = taken_apart(node.target, arguments(node))
    return (
        graph
        if graph is not None and all(is_fill(each) or not refusal(each, symbolic=True) for each in _calls(graph))
        else None
    )


def ops_of(node: fx.Node) -> int:
    """How many ops a node is read as."""
    made = pieces(node)
    return 1 if made is None else len(_calls(made))


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _apart(node: fx.Node, graph: fx.Graph, reader: Reader) -> tuple[int, ...]:
    """Append what a node is made of, as ops of the node."""
    begin, several = len(reader.ops), dict[Any, tuple[int, ...]]()
    given = (each for each in arguments(node) if isinstance(each, fx.Node))
    for each in graph.nodes:
        if each.op == "placeholder":
            reader.numbers[each] = reader.numbers[next(given)]
        elif each.target is operator.getitem:
            reader.numbers[each] = several[each.args[0]][each.args[1]]
        elif each.op == "call_function":
            several[each] = read(each, reader)
            reader.numbers[each] = several[each][0]
    reader.ops[begin:] = [replace(op, node=node.name, origin=origin_of(node)) for op in reader.ops[begin:]]
    results: Any = graph.output_node().args[0]
    return tuple(reader.numbers[each] for each in (results if isinstance(results, tuple | list) else [results]))


def _is_double(node: fx.Node) -> bool:
    """Whether an op computes in fp64."""
    return "fp64" in {dtype_of(node), *map(dtype_of, node.all_input_nodes)}


def single(value: Any) -> Any:
    """A constant as fp32 has it: a number that one door keeps as it is and another has rounded already is one."""
    return in_dtype(value, "fp32") if isinstance(value, float) else value


def arguments(node: fx.Node) -> list[Any]:
    """All arguments of an op in the order of its schema, those left out with their defaults; of a cast its input."""
    if node.target in CASTS:
        return [node.args[0], *(["nan"] if dtype_of(node) == "fp8e4m3" and overflows() else [])]
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((arg.name for arg in schema), node.args, strict=False)) | node.kwargs
    return [given.get(arg.name, arg.default_value) for arg in schema]


@functools.cache
def overflows() -> bool:
    """Whether torch makes NaN of what is too large for fp8e4m3 (before 2.13), and not the largest number."""
    return bool(torch.tensor(1e6).to(torch.float8_e4m3fn).float().isnan())


def keywords(node: fx.Node) -> list[str]:
    """For each of these arguments its name, where it is given by name only."""
    if node.target in CASTS:
        return ["", ""]
    return [arg.name if arg.kwarg_only else "" for arg in node.target._schema.arguments]  # type: ignore[union-attr]


def origin_of(node: fx.Node) -> str:
    """The op of the program that a node was decomposed from; its own name where that is not recorded."""
    sources = node.meta.get("from_node")
    return str(sources[0].name) if sources and node.meta.get("original_aten") is not None else node.name


def source_of(value: Any) -> str:
    """A constant as Python source."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    return repr(list(value) if isinstance(value, list | tuple) else value)


PLAIN: tuple[type, ...] = (torch.Tensor, torch._subclasses.FakeTensor)


def _unfit(value: torch.Tensor, *, symbolic: bool) -> str:
    if value.layout != torch.strided or value.is_quantized:
        return "a tensor is sparse or quantised"
    sizes = (*value.shape, *value.stride())
    if all(map(is_static, sizes)):
        return ""
    if not symbolic:
        return "a size is symbolic"
    if not all(map(is_known, sizes)):
        return "a size depends on data"
    return "" if is_static(value.shape[-1]) else "the length of its rows is symbolic"


def _unread(node: fx.Node) -> str:
    """Why the op of a node has no expression."""
    target = str(node.target)
    if node.target in COMPOSITES:
        return _whole_rows(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return "it is no op of ATen"
    if target in REDUCTIONS:
        return _not_along_last(node)
    terms = []
    for arg in arguments(node):
        if isinstance(arg, fx.Node):
            value = tensor(arg)
            assert value is not None
            terms.append(pointwise.Term("x", dtype_of(arg), value.dim() == 0))
        elif isinstance(arg, torch.SymInt | torch.SymFloat | torch.SymBool):
            return "an argument is symbolic"
        else:
            terms.append(pointwise.Term(source_of(arg)))
    return pointwise.refusal(target, terms, dtype_of(node))


def _fill(node: fx.Node) -> Any:
    """The constant of a node that fills, as a float where its tensor has floats."""
    value = FILLED[node.target] if node.target in FILLED else arguments(node)[FILLS[node.target]]
    return float(value) if isinstance(value, int) and dtype_of(node) in FLOATS else value


def _not_along_last(node: fx.Node) -> str:
    """Why a reduction is none along the last dimension that keeps it."""
    source = tensor(node.args[0])
    assert source is not None
    schema = [arg.name for arg in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(schema, arguments(node), strict=True))
    if not source.dim() or [dim % source.dim() for dim in given["dim"] or ()] != [source.dim() - 1]:
        return "it reduces another dimension than the last"
    if not given["keepdim"]:
        return "it drops the dimension that it reduces"
    if dtype_of(node.args[0]) not in FLOATING or given.get("dtype") not in (None, torch.float32):  # type: ignore[arg-type]
        return "it reduces other numbers than fp32 holds"
    return ""


FLOATING = ("bf16", "fp16", "fp32")


def _whole_rows(node: fx.Node) -> str:
    """Why a composite is none over rows of the last dimension in a floating dtype."""
    source = tensor(node.args[0])
    assert source is not None
    if dtype_of(node.args[0]) not in FLOATING:  # type: ignore[arg-type]
        return "it is not of a floating dtype"
    if node.target is aten._softmax.default and not (source.dim() and node.args[1] in (-1, source.dim() - 1)):
        return "it normalises another dimension"
    if node.target is aten.native_layer_norm.default and len(node.args[1]) != 1:  # type: ignore[arg-type]
        return "it normalises several dimensions"
    if node.target in NORMALISATIONS:
        return "" if pieces(node) is not None else "what it is made of has no expression"
    return _not_along_last(node) if dtype_of(node.args[0]) == "fp32" else "it rounds a variance"  # type: ignore[arg-type]


def _var_mean(node: fx.Node, reader: Reader) -> tuple[int, ...]:
    x_node, _, correction, _ = arguments(node)
    source = tensor(x_node)
    assert source is not None
    shape, rows, count = source.shape, (*source.shape[:-1], 1), int(source.shape[-1])
    dtype = dtype_of(x_node)

    def op(target: str, args: list[Any], shape: Sequence[Any]) -> Argument:
        return Argument(reader.op(node, target, args, dtype, shape))

    x = reader.argument(x_node)
    mean = op("aten.mean.dim", [x, [-1], True, DTYPE], rows)
    centred = op("aten.sub.Tensor", [x, mean, ALPHA], shape)
    total = op("aten.sum.dim_IntList", [op("aten.mul.Tensor", [centred, centred], shape), [-1], True, DTYPE], rows)
    freedom = float(max(0, count - (1 if correction is None else correction)))
    variance = op("aten.div.Tensor", [total, freedom], rows)
    assert mean.value is not None and variance.value is not None
    return (variance.value, mean.value)
