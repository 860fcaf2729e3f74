"""Insert chains: what replaces the nodes of a chain, a call of its module or a kernel that Inductor sees."""

import functools
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import fx

from fusioncc.chain import Chain
from fusioncc.codegen.chain_space import space_of
from fusioncc.codegen.launch import EmittedModule
from fusioncc.graph import TORCH_DTYPES, aten, tensor
from fusioncc.passes.insertion import Insertion
from fusioncc.passes.launch_node import launch_node
from fusioncc.runtime.interpreter import launcher


def insert_chain(insertion: Insertion, chain: Chain, emitted: EmittedModule, module: ModuleType, form: str) -> None:
    """New nodes behind the last one of the chain; the old ones are replaced later."""
    last = insertion.by_name[chain.ops[-1].node]  # ops are in the order of the graph
    with insertion.graph.inserting_before(last.next):
        made = (_visible if form == "visible" else _called)(insertion, chain, emitted, module)
        for result, node in zip(chain.results, made, strict=True):
            old = insertion.by_name[result.node]
            node.meta.update({key: old.meta[key] for key in ("nn_module_stack", "stack_trace") if key in old.meta})
            insertion.replaced.append((old, node))


def _called(insertion: Insertion, chain: Chain, emitted: EmittedModule, module: ModuleType) -> list[fx.Node]:
    values = [_empty(insertion, chain, at) for at in range(len(chain.results))]
    operands = tuple(insertion.by_name[operand.node] for operand in chain.inputs)
    call = insertion.call(_laid_out(launcher(module), chain), operands, values, name=emitted.name)
    return [insertion.call(operator.getitem, (call, at), value) for at, value in enumerate(values)]


def _laid_out(launch: Callable[..., Any], chain: Chain) -> Callable[..., Any]:
    """``launch``, for tensors of any strides: what an op of eager made may lie otherwise than its fake tensor said,
    and is then copied."""
    strides = tuple(operand.strides for operand in chain.inputs)

    @functools.wraps(launch)
    def checked(*operands: torch.Tensor) -> Any:
        return launch(*map(with_strides, operands, strides))

    return checked


def with_strides(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor, or a copy where its strides are others (along a dimension of one they do not matter)."""
    there = value.stride()
    if there == strides or all(size == 1 or a == b for size, a, b in zip(value.shape, there, strides, strict=True)):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _visible(insertion: Insertion, chain: Chain, emitted: EmittedModule, module: ModuleType) -> list[fx.Node]:
    holder: dict[str, fx.Node] = {}
    for at, buffer in enumerate(emitted.buffers):
        value = _empty(insertion, chain, at)
        sides = (list(value.shape), list(value.stride()))
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        holder[buffer.name] = insertion.call(aten.empty_strided.default, sides, value, **options)
    rows = rows_of(chain)
    launch_node(
        insertion, emitted.launches[0], module, lambda each: insertion.by_name[each.node], rows, rows, holder, set()
    )
    return [holder[buffer.name] for buffer in emitted.buffers]


def rows_of(chain: Chain) -> int:
    """What the kernel of a chain is given as M: its rows, or its elements where tiles have one dimension."""
    space = space_of(chain)
    return space.rows if len(space.sizes) > 1 or chain.by_rows else space.sizes[0]


def _empty(insertion: Insertion, chain: Chain, at: int) -> Any:
    """A fake tensor as the kernel writes it."""
    result = chain.results[at]
    like = tensor(insertion.by_name[result.node])
    assert like is not None
    dtype = TORCH_DTYPES[chain.dtype_of(result.value)]
    return like.new_empty_strided(tuple(like.shape), result.strides, dtype=dtype)
