"""Take apart: what Inductor makes of an op for which it has no kernel of its own.

Doors differ in how they take ops apart: Inductor writes SiLU as ``x / (1 + exp(-x))``, torch.export as ``x *
sigmoid(x)``, and where eager runs the rest it stays one op. Graphs are captured and chains are read in Inductor's way,
so that a plan made through one door is applied through every other. No graph that runs is changed for it.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from fusioncc.codegen import pointwise
from fusioncc.graph import CASTS, aten, is_static, tensor

ONE_AT_A_TIME = threading.RLock()
"""torch.export, its decompositions and what traces an op hold state of the process."""
SUMS = (aten.add.Tensor, aten.add.Scalar)
NORMALISATIONS = frozenset({aten._softmax.default, aten.native_layer_norm.default})
"""Ops over whole rows that have no form but that of what they are made of."""


@dataclass(frozen=True)
class _Like:
    """A tensor that an op reads, without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Of the ops of chains those that Inductor takes apart, and how; but for casts, which are one op in a chain, and
    sums, which it takes apart where they are complex."""
    from torch._inductor.decomposition import select_decomp_table

    return {op: way for op, way in select_decomp_table().items() if is_read(op) and op not in (*CASTS, *SUMS)}


def is_read(op: Any) -> bool:
    """Whether an op is one of those of which chains are made."""
    return op in NORMALISATIONS or str(op) in pointwise.TABLE


def taken_apart(target: Any, arguments: Sequence[Any]) -> fx.Graph | None:
    """What Inductor makes of an op, given all arguments of its schema in order: a graph whose placeholders are the
    tensors among them. None where it takes nothing apart, or a size is symbolic."""
    sizes = (size for each in map(tensor, arguments) if each is not None for size in (*each.shape, *each.stride()))
    if target not in decompositions() or not all(map(is_static, sizes)):
        return None
    described = tuple(map(_described, arguments))
    with ONE_AT_A_TIME:
        return _traced(target, f"{described!r} {torch.get_default_dtype()}", *described)


def _described(argument: Any) -> Any:
    value = tensor(argument)
    if value is None:
        return tuple(argument) if isinstance(argument, list) else argument
    return _Like(tuple(map(int, value.shape)), tuple(map(int, value.stride())), value.dtype, value.device)


@functools.lru_cache(maxsize=1024)
def _traced(target: Any, written: str, *arguments: Any) -> fx.Graph | None:
    """``written`` tells apart what is equal: 1, 1.0 and True, 0.0 and -0.0, and what they are under another default
    dtype."""
    from torch._inductor.decomposition import select_decomp_table

    parameters = target._schema.arguments

    def run(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        values = [next(left) if isinstance(each, _Like) else each for each in arguments]
        pairs = list(zip(parameters, values, strict=True))
        named = {parameter.name: value for parameter, value in pairs if parameter.kwarg_only}
        return target(*(value for parameter, value in pairs if not parameter.kwarg_only), **named)

    with _disable_current_modes(), torch._C._DisableAutocast(), torch._subclasses.FakeTensorMode():
        tensors = [each.empty() for each in arguments if isinstance(each, _Like)]
        graph: fx.Graph = make_fx(run, decomposition_table=select_decomp_table())(*tensors).graph
    made = [node.target for node in graph.nodes if node.op == "call_function"]
    return graph if made and target not in made else None
