"""Insert kernels: replace each planned region by its emitted kernel.

``visible``: every launch becomes a ``triton_kernel_wrapper_functional`` node over ``aten.empty`` buffers, which
Inductor schedules as a user-defined Triton kernel (no opaque call, no clone). ``opaque``: one op that runs the module,
where its ``launch`` does more than launch kernels. ``call``: one node that calls the module's own ``launch``. New nodes
are made first, then uses are replaced; old nodes are erased last, so that a failure can put everything back.
"""

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from types import ModuleType
from typing import Any

from torch import fx

from fusioncc.chain import Chain
from fusioncc.codegen.launch import Buffer, EmittedModule, M
from fusioncc.errors import FusionError
from fusioncc.graph import TORCH_DTYPES, aten, is_dense, is_mutation, is_static, tensor
from fusioncc.group import Group, Operand
from fusioncc.passes.insert_chains import insert_chain, with_strides
from fusioncc.passes.insert_merged import insert_merged
from fusioncc.passes.insert_packed import insert_packed, insert_product
from fusioncc.passes.insertion import Insertion, as_matrix, laid_like, shaped_like
from fusioncc.passes.launch_node import launch_node
from fusioncc.passes.size_nodes import rows_of, strides_of
from fusioncc.runtime.interpreter import launcher
from fusioncc.runtime.opaque import OPAQUE
from fusioncc.seam import translated
from fusioncc.sizes import sizes_of

HeldBy = Mapping[str, int]
"""By kind of schedule, the key of the holder of its weights."""
HOLDING = {"packed": insert_packed, "merged": insert_merged}
"""Kinds whose products are calls that find their weights in a holder."""


def insertion_of(emitted: EmittedModule, form: str) -> str:
    """How a module enters a graph under ``form``: what does more than launch kernels is never ``visible``,
    but ``opaque``."""
    return "opaque" if emitted.opaque and form == "visible" else form


def insert_kernels(
    graph: fx.Graph,
    groups: list[tuple[Group, EmittedModule, ModuleType]],
    form: str,
    holding: Sequence[tuple[str, Group]] = (),
    held_by: HeldBy | None = None,
    chains: Sequence[tuple[Chain, EmittedModule, ModuleType]] = (),
) -> None:
    """Replace the regions of ``groups`` and the nodes of ``chains`` in ``graph``, all or none, each as
    :func:`insertion_of` says; ``form`` is ``visible`` or ``call``. Those of ``holding``, each behind its kind of
    ``HOLDING``, become calls in either form, which find their weights by ``held_by``.

    Raises:
        FusionError: a kernel cannot be inserted (the group is named), or the result is no sound graph. The graph is as
            it was.
    """
    by_name = {node.name: node for node in graph.nodes}
    insertions: list[Insertion] = []
    with ExitStack() as undo:
        undo.callback(_erase_new, insertions)
        for group, emitted, module in groups:
            insertions.append(Insertion(graph, by_name))
            action = functools.partial(_insert, insertions[-1], group, emitted, module, form, held_by or {})
            translated(f"inserting the kernel of {group.name} failed", action, FusionError)
        for kind, group in holding:
            insertions.append(Insertion(graph, by_name))
            action = functools.partial(HOLDING[kind], insertions[-1], group, (held_by or {}).get(kind, 0), form)
            translated(f"inserting the {kind} product of {group.name} failed", action, FusionError)
        for chain, emitted, module in chains:
            insertions.append(Insertion(graph, by_name))
            action = functools.partial(insert_chain, insertions[-1], chain, emitted, module, form)
            translated(f"inserting the kernel of {chain.name} failed", action, FusionError)
        replaced = [pair for insertion in insertions for pair in insertion.replaced]
        undo.callback(_put_back, list(graph.nodes), _arguments([user for old, _ in replaced for user in old.users]))
        for old, new in replaced:
            old.replace_all_uses_with(new)
        inserted = [
            *(group.name for group, _, _ in groups),
            *(group.name for _, group in holding),
            *(chain.name for chain, _, _ in chains),
        ]
        names = ", ".join(inserted)
        translated(f"the graph with the kernels of {names} is not sound", lambda: _make_sound(graph), FusionError)
        undo.pop_all()
    _erase_unused([old for old, _ in replaced])


def _make_sound(graph: fx.Graph) -> None:
    """Every node behind its inputs, as torch's own check wants it."""
    _restore_order(graph)
    graph.lint()


_Arguments = dict[fx.Node, tuple[Any, Any]]


def _arguments(users: list[fx.Node]) -> _Arguments:
    """What each node takes now."""
    return {user: (user.args, user.kwargs) for user in users}


def _put_back(order: list[fx.Node], arguments: _Arguments) -> None:
    """The nodes in their old order, with their old arguments."""
    for node, following in pairwise(order):
        if node.next is not following:
            node.append(following)
    for user, (args, kwargs) in arguments.items():
        user.args, user.kwargs = args, kwargs


def _erase_new(insertions: list[Insertion]) -> None:
    """Take back every new node."""
    for node in reversed([node for insertion in insertions for node in insertion.new]):
        node.graph.erase_node(node)


def _erase_unused(nodes: list[fx.Node]) -> None:
    """Erase replaced nodes that nothing reads any more, and what only they read; nothing else of the graph."""
    waiting = list(nodes)
    erased: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in erased or node.users or node.op != "call_function" or is_mutation(node):
            continue
        inputs = node.all_input_nodes
        node.graph.erase_node(node)
        erased.add(node)
        waiting += inputs


def _place(graph: fx.Graph, by_name: dict[str, fx.Node], group: Group, emitted: EmittedModule) -> fx.Node:
    """The node to insert before: the first product, or what follows the operand defined last if that comes later."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    first = min((by_name[member.node] for member in group.members), key=order.__getitem__)
    last = max((by_name[operand.node] for operand in emitted.operands), key=order.__getitem__)
    return first if order[last] < order[first] else last.next


def _insert(
    insertion: Insertion, group: Group, emitted: EmittedModule, module: ModuleType, form: str, held_by: HeldBy
) -> None:
    graph, by_name = insertion.graph, insertion.by_name
    following = _place(graph, by_name, group, emitted)
    with graph.inserting_before(following):
        lhs = as_matrix(insertion, by_name[group.lhs.node], group.k)
        insert = {"visible": _visible, "opaque": _opaque, "call": _called}[insertion_of(emitted, form)]
        made = insert(insertion, group, emitted, module, lhs)
        for buffer in emitted.buffers:
            if buffer.role == "operand":
                insert_product(insertion, group, "k_concat", made[buffer.name], held_by.get("k_concat", 0), form)
            if buffer.role not in ("output", "saved", "result"):
                continue
            old, shaped = by_name[_node_of(group, buffer)], laid_like if buffer.role == "result" else shaped_like
            insertion.replaced.append((old, shaped(insertion, made[buffer.name], old)))


def _node_of(group: Group, buffer: Buffer) -> str:
    """The node whose value a buffer has."""
    if buffer.role == "saved":
        return group.members[buffer.member].node
    epilogue = group.epilogue_of(buffer.member) if buffer.role == "result" else None
    return epilogue.chain.results[buffer.at].node if epilogue else group.output_of(buffer.member).node


def _called(
    insertion: Insertion, group: Group, emitted: EmittedModule, module: ModuleType, lhs: fx.Node
) -> dict[str, fx.Node]:
    ends = {operand for epilogue in group.epilogues for operand in epilogue.operands}
    operands = _operands(insertion, group, emitted, lhs, ends)
    return _results(insertion, emitted, lhs, launcher(module), operands)


def _opaque(
    insertion: Insertion, group: Group, emitted: EmittedModule, module: ModuleType, lhs: fx.Node
) -> dict[str, fx.Node]:
    operands = list(_operands(insertion, group, emitted, lhs))
    columns = [buffer.shape[1] for buffer in emitted.buffers if buffer.kept]
    dtypes = [buffer.dtype for buffer in emitted.buffers if buffer.kept]
    return _results(insertion, emitted, lhs, OPAQUE, (operands, columns, dtypes, emitted.name, emitted.source))


def _operands(
    insertion: Insertion, group: Group, emitted: EmittedModule, lhs: fx.Node, ends: Collection[Operand] = ()
) -> tuple[fx.Node, ...]:
    """The tensors that the module's ``launch`` takes; those of ``ends``, which an op of eager may have made with other
    strides than its fake tensor has, behind a check of their strides."""

    def given(operand: Operand) -> fx.Node:
        node = insertion.by_name[operand.node]
        value = tensor(node)
        assert value is not None
        if operand in ends:
            node = insertion.call(with_strides, (node, strides_of(insertion, node)), value)
        return _as_operand(insertion, node, operand)

    return tuple(lhs if operand == group.lhs else given(operand) for operand in emitted.operands)


def _results(
    insertion: Insertion, emitted: EmittedModule, lhs: fx.Node, target: Callable[..., Any], args: tuple[Any, ...]
) -> dict[str, fx.Node]:
    """One call of ``target``, and each of the buffers that it returns."""
    x = tensor(lhs)
    assert x is not None
    kept = [buffer for buffer in emitted.buffers if buffer.kept]
    values = [x.new_empty(_shape(buffer, x.shape[0]), dtype=TORCH_DTYPES[buffer.dtype]) for buffer in kept]
    result = insertion.call(target, args, values, name=emitted.name)
    return {buffer.name: insertion.call(operator.getitem, (result, at), values[at]) for at, buffer in enumerate(kept)}


def _as_operand(insertion: Insertion, node: fx.Node, operand: Operand) -> fx.Node:
    """The tensor as the module's ``launch`` takes it: weights ``[K, N]``, whatever their memory layout."""
    value = tensor(node)
    assert value is not None
    if value.dim() == len(operand.shape) < 2:
        return node
    sizes, steps = sizes_of(value.shape), sizes_of(value.stride())
    if sizes == operand.shape and steps == operand.strides:
        return node
    if sizes[::-1] == operand.shape and steps[::-1] == operand.strides:
        return insertion.call(aten.permute.default, (node, [1, 0]), value.permute(1, 0))
    shape, strides = list(operand.shape), list(operand.strides)
    if all(map(is_static, value.shape)):
        return insertion.call(aten.as_strided.default, (node, shape, strides), value.as_strided(shape, strides))
    rows = rows_of(insertion, node, shape[1])
    laid = value.as_strided([rows.meta["val"], shape[1]], strides)
    return insertion.call(aten.as_strided.default, (node, [rows, shape[1]], strides), laid)


def _shape(buffer: Buffer, rows: Any) -> list[Any]:
    return [rows if size == M else size for size in buffer.shape]


def _visible(
    insertion: Insertion, group: Group, emitted: EmittedModule, module: ModuleType, lhs: fx.Node
) -> dict[str, fx.Node]:
    x = tensor(lhs)
    assert x is not None
    lhs = _in_memory(insertion, lhs) if len(emitted.launches) > 1 else lhs
    rows = x.shape[0]
    rows_node: Any = int(rows) if is_static(rows) else insertion.call(aten.sym_size.int, (lhs, 0), rows)
    holder: dict[str, fx.Node] = {}
    for buffer in emitted.buffers:
        value = x.new_empty(_shape(buffer, rows), dtype=TORCH_DTYPES[buffer.dtype])
        options: dict[str, Any] = {"dtype": value.dtype, "device": x.device}
        shape = _shape(buffer, rows_node)
        holder[buffer.name] = (
            insertion.call(aten.full.default, (shape, 0), value, **options)
            if buffer.role == "counters"
            else insertion.call(aten.empty.memory_format, (shape,), value, **options)
        )
    written: set[str] = set()

    def given(operand: Operand) -> fx.Node:
        return lhs if operand.node == group.lhs.node else insertion.by_name[operand.node]

    for launch in emitted.launches:
        launch_node(insertion, launch, module, given, rows, rows_node, holder, written)
    return holder


def _in_memory(insertion: Insertion, lhs: fx.Node) -> fx.Node:
    """X as one tensor in memory, with the strides that it has (numbers: the rule ``layout``). Inductor would write one
    for each kernel that reads what it has not computed yet, some between the launches; one that starts early reads X
    ahead of its wait."""
    from torch._inductor import inductor_prims

    x = tensor(lhs)
    assert x is not None
    if not is_dense(x):  # a view of an input, or the rule ``layout`` had refused it
        return lhs
    return insertion.call(inductor_prims.force_stride_order, (lhs, [int(stride) for stride in x.stride()]), x)


def _restore_order(graph: fx.Graph) -> None:
    """Sort the graph again when a new node was placed behind a user of what it replaces."""
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if any(arg not in seen for arg in node.all_input_nodes):
            from torch._inductor.pattern_matcher import stable_topological_sort

            stable_topological_sort(graph)
            return
        seen.add(node)
