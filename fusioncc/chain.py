"""Vocabulary of chains: plain frozen values, no torch.

A chain is a convex set of elementwise nodes, and of reductions along rows, evaluated in one pass over its ``shape``. It
is a short program: values are numbered, first the inputs, then what each op makes of earlier ones; the outputs are
values that the rest of the graph reads. Every value broadcasts to ``shape`` as torch broadcasts: sizes are compared
from the last dimension on, and a size of 1 is repeated. Nodes are named, not held, as in a group.
"""

from dataclasses import dataclass, replace
from math import prod

from fusioncc.operand import DTYPE_BYTES, Operand

REDUCTIONS = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
"""Overloads that reduce along dimensions; in a chain along the last one, which stays with size 1."""
IN_ORDER = ("aten.sum.dim_IntList", "aten.mean.dim")
"""Reductions whose result depends on the order of the additions."""
CASTS = ("prims.convert_element_type.default", "aten._to_copy.default", "aten.to.dtype")
"""Overloads that only change the dtype."""
CAST = "aten._to_copy.default"
"""The one of ``CASTS`` that stands for all of them in a chain."""
CONSTANT = "aten.full.default"
"""The op without an input: every element is its one argument."""
ROTATE_HALF = "fusioncc.rotate_half.default"
"""The op that makes ``(-hi, lo)`` of the halves ``(lo, hi)`` of every head of a row, as rotary position embeddings do;
its second argument is the number of columns of a head. In a chain that ends tiles only."""


@dataclass(frozen=True)
class Argument:
    """One argument of an op: the value with this number, or (``value`` is None) a constant as Python source: ``2.5``,
    ``-1``, ``True``, ``float('inf')``, ``None``, ``'floor'``. ``keyword`` is its name where it must be named."""

    value: int | None
    constant: str = ""
    keyword: str = ""


@dataclass(frozen=True)
class Op:
    """One op: elementwise, or a reduction along the last dimension that keeps it. ``target`` names the overload
    (``aten.mul.Tensor``); ``args`` are all arguments of its schema in order, those left out with their defaults.
    ``dtype`` and ``shape`` are those of the result in eager; ``origin`` is the op of the program that this one was
    decomposed from, which eager runs as one kernel."""

    node: str
    target: str
    args: tuple[Argument, ...]
    dtype: str
    shape: tuple[int, ...]
    origin: str = ""

    @property
    def stem(self) -> str:
        """The name of the op alone: ``mul``."""
        return self.target.split(".")[1].strip("_")

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction along the last dimension."""
        return self.target in REDUCTIONS

    @property
    def head(self) -> int:
        """Columns that it needs in one place; 1 of an elementwise op."""
        return int(self.args[1].constant) if self.target == ROTATE_HALF else 1

    @property
    def values(self) -> tuple[int, ...]:
        """Numbers of the values that it reads, each once."""
        return tuple(dict.fromkeys(arg.value for arg in self.args if arg.value is not None))


@dataclass(frozen=True)
class Result:
    """A value that the rest of the graph reads: its number, the node that held it, and the strides of the tensor that
    is written, in elements."""

    value: int
    node: str
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Elementwise ops that are evaluated in one pass over ``shape``."""

    name: str
    shape: tuple[int, ...]
    inputs: tuple[Operand, ...]
    ops: tuple[Op, ...]
    results: tuple[Result, ...]

    @property
    def by_rows(self) -> bool:
        """Whether it reduces along the last dimension, so that one program has whole rows."""
        return any(op.reduces for op in self.ops)

    def dtype_of(self, value: int) -> str:
        """Dtype in which eager holds the value with this number."""
        return self.inputs[value].dtype if value < len(self.inputs) else self.ops[value - len(self.inputs)].dtype

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of its values, each once, in order."""
        return tuple(dict.fromkeys([*(each.dtype for each in self.inputs), *(op.dtype for op in self.ops)]))

    def shape_of(self, value: int) -> tuple[int, ...]:
        """Shape of the value with this number."""
        return self.inputs[value].shape if value < len(self.inputs) else self.ops[value - len(self.inputs)].shape

    def bytes_of(self, value: int) -> int:
        """Bytes of the distinct elements of the value with this number."""
        if value < len(self.inputs):
            return self.inputs[value].bytes
        return prod(self.shape_of(value)) * DTYPE_BYTES[self.dtype_of(value)]

    def signature(self) -> "Chain":
        """The chain with every name removed: equal for chains that may share a kernel."""
        return replace(
            self,
            name="",
            inputs=tuple(replace(each, node="") for each in self.inputs),
            ops=tuple(replace(op, node="", origin="") for op in self.ops),
            results=tuple(replace(result, node="") for result in self.results),
        )


@dataclass(frozen=True)
class ChainTile:
    """What one program of a chain's kernel has: ``block_m`` rows of ``block_n`` elements. ``block_m`` is 0 where the
    elements are one row, so that tiles have one dimension."""

    block_m: int
    block_n: int
    num_warps: int
