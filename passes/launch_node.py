"""One launch of an emitted kernel as a node that Inductor sees: a user-defined Triton kernel in functional form."""

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import fx

from fusioncc.codegen.launch import Arg, KernelLaunch
from fusioncc.errors import FusionError
from fusioncc.graph import tensor
from fusioncc.group import Operand
from fusioncc.passes.insertion import Insertion
from fusioncc.passes.size_nodes import rows_of
from fusioncc.runtime.build import tuned
from fusioncc.runtime.dependent import marked


def launch_node(
    insertion: Insertion,
    launch: KernelLaunch,
    module: ModuleType,
    given_operand: Callable[[Operand], fx.Node],
    rows: Any,
    rows_node: Any,
    holder: dict[str, fx.Node],
    written: set[str],
) -> None:
    """One ``triton_kernel_wrapper_functional`` node; buffers it writes are replaced in ``holder`` by its results.
    ``rows`` is the number of rows and ``rows_node`` the same, or the node that holds it where it is symbolic.

    Raises:
        FusionError: it would lose what the kernel writes.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional

    def given(arg: Arg) -> Any:
        if arg.kind == "operand":
            assert arg.operand is not None
            return given_operand(arg.operand)
        if arg.kind == "size":
            assert arg.operand is not None
            return rows_of(insertion, given_operand(arg.operand), arg.operand.shape[1])
        return rows_node if arg.kind == "rows" else holder[str(arg.value)]

    constants = {arg.name: arg.value for arg in launch.args if arg.kind == "constexpr"}
    tensors = {arg.name: given(arg) for arg in launch.args if arg.kind != "constexpr"}
    fresh = {arg.name: str(arg.value) for arg in launch.args if arg.kind == "buffer" and arg.value not in written}
    if len(set(fresh.values())) < len(fresh):
        raise FusionError(f"{launch.kernel} has two names for one buffer, each of which would be a tensor of its own")
    function = getattr(module, launch.kernel)
    kernel = tuned(marked(function) if launch.dependent else function, launch.num_warps, launch.num_stages)
    node = insertion.call(
        triton_kernel_wrapper_functional,
        (),
        {name: tensor(holder[buffer]) for name, buffer in fresh.items()},
        kernel_idx=kernel_side_table.add_kernel(kernel),
        constant_args_idx=kernel_side_table.add_constant_args(constants),
        grid=[(_programs(insertion, launch, rows, rows_node), 1, 1)],
        tma_descriptor_metadata={},
        kwargs=tensors,
        tensors_to_clone=list(fresh),
    )
    for name, buffer in fresh.items():
        holder[buffer] = insertion.call(operator.getitem, (node, name), tensor(holder[buffer]))
        written.add(buffer)


def _programs(insertion: Insertion, launch: KernelLaunch, rows: Any, rows_node: Any) -> Any:
    """Programs as a number, or as nodes when M is symbolic (persistent programs without a tile just end)."""
    if isinstance(rows_node, int):
        return launch.programs(rows_node)
    if launch.workers is not None:
        return launch.workers
    counts: dict[int, int] = {}
    for blocks in launch.grid:
        counts[blocks.block_m] = counts.get(blocks.block_m, 0) + blocks.count
    first, *others = [_tiles(insertion, height, count, rows, rows_node) for height, count in counts.items()]
    for other in others:
        first = insertion.call(operator.add, (first, other), first.meta["val"] + other.meta["val"])
    return first


def _tiles(insertion: Insertion, height: int, count: int, rows: Any, rows_node: fx.Node) -> fx.Node:
    """Nodes that count the tiles for a symbolic M: ``count`` for each ``height`` rows."""
    padded = insertion.call(operator.add, (rows_node, height - 1), rows + height - 1)
    row_blocks = insertion.call(operator.floordiv, (padded, height), (rows + height - 1) // height)
    return insertion.call(operator.mul, (row_blocks, count), row_blocks.meta["val"] * count)
