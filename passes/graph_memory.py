"""Graph memory: the most bytes of a whole graph that live at once, without and with the groups that were planned.

Every op is a launch that reads and writes storages, in graph order, and a fused group has the launches of its schedule
in the place of the ops that it replaces. The peak is read off that list as it is for one group, by
:mod:`fusioncc.cost_models.memory`. A view has the storage of what it views; what nothing reads is not there. What
Inductor saves by fusing elementwise ops is not foreseen, before or after.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import fx

from fusioncc.cost_models import launches, peak_bytes
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.graph import CASTS, HOLDERS, VIEWS, copies, is_mutation, size_hint
from fusioncc.plan import GroupPlan, Memory

Storages = dict[fx.Node, tuple[Tensor, ...]]
"""For each node the storages of its values, one a value; those from outside the graph are of kind ``weight``."""


def graph_memory(graph: fx.Graph, *plans: Iterable[GroupPlan]) -> tuple[Memory | None, ...]:
    """What lives in the graph with the groups of each of ``plans``; without any group, as it is. None where a size
    depends on data."""
    storages = _storages(graph)
    nodes = list(graph.nodes)
    return tuple(None if storages is None else _memory(nodes, storages, groups) for groups in plans)


class Step(NamedTuple):
    """An op, or a launch of a group; ``pinned`` where it is there for more than its results."""

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    pinned: bool = False


def _memory(nodes: Sequence[fx.Node], storages: Storages, groups: Iterable[GroupPlan]) -> Memory:
    order = {node.name: at for at, node in enumerate(nodes)}
    of = {node.name: storages[node][0] for node in nodes if storages[node]}
    held = {tensor.name: tensor.bytes for node in nodes if node.op in HOLDERS for tensor in storages[node]}
    fused: dict[fx.Node, list[Step]] = {}
    replaced: set[str] = set()
    for group in groups:
        if group.schedule.kind == "library":
            continue
        sequence = launches(group.group, group.schedule, group.tier)
        copies = (tensor for launch in sequence for tensor in launch.reads if tensor.kind == "held")
        held |= {f"{group.name} {copy.name}": copy.bytes for copy in copies}
        steps = _in_graph(sequence, group, of)
        replaced.update(tensor.name for step in steps for tensor in step.writes)
        first = min(order[member.node] for member in group.members)
        place = nodes[max(first, *(order[operand.node] for operand in group.operands))]
        fused.setdefault(place, []).extend(steps)
    steps = []
    for node in nodes:
        writes = () if node.op in HOLDERS or _is_view(node) else storages[node]
        if replaced.isdisjoint(tensor.name for tensor in writes):
            reads = tuple(tensor for arg in node.all_input_nodes for tensor in storages[arg])
            steps.append(Step(reads, writes, node.op == "output" or is_mutation(node)))
        steps += fused.get(node, ())
    return Memory(peak_bytes(_needed(steps)), sum(held.values()))


def _in_graph(sequence: Sequence[Launch], group: GroupPlan, of: Mapping[str, Tensor]) -> list[Step]:
    """The launches of a group with the storages of the graph (``of`` a node, by its name) in the place of its X, its
    operands and its results."""
    ours = {"x": of[group.lhs.node]}
    ours |= {f"out{output.main}": of[output.node] for output in group.outputs}
    ours |= {f"y{branch.down}": of[group.members[branch.down].node] for branch in group.branches if branch.saved}
    for epilogue in group.epilogues:
        first, chain = epilogue.mains[0], epilogue.chain
        ours |= {f"h{first}.{at}": of[result.node] for at, result in enumerate(chain.results)}
        ours |= {f"z{first}.{at}": of[operand.node] for at, operand in enumerate(epilogue.operands)}
    weights = tuple(of[operand.node] for operand in group.operands if operand != group.lhs)

    def found(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        counted = (tensor for tensor in tensors if tensor.kind not in ("weight", "held"))
        return tuple(ours.get(each.name) or replace(each, name=f"{group.name} {each.name}") for each in counted)

    return [Step(found(launch.reads) + weights, found(launch.writes)) for launch in sequence]


def _storages(graph: fx.Graph) -> Storages | None:
    """None where a size depends on data."""
    storages: Storages = {}
    for node in graph.nodes:
        if node.target is operator.getitem:
            source, at = node.args
            made = tuple(each for each in storages[source] if each.name == f"{source.name}:{at}")
            storages[node] = made or storages[source]
        elif _is_view(node):
            storages[node] = storages[node.all_input_nodes[0]]
        else:
            values = _values(node)
            sizes = {f"{node.name}:{at}": _bytes(value) for at, value in values}
            kind: Literal["weight", "intermediate"] = "weight" if node.op in HOLDERS else "intermediate"
            storages[node] = tuple(Tensor(name, size, kind) for name, size in sizes.items() if size is not None)
            if len(storages[node]) < len(sizes):
                return None
    return storages


def _values(node: fx.Node) -> Iterable[tuple[Any, Any]]:
    """What a node stands for, each value with what gets it out of the node."""
    value = node.meta.get("val")
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value if isinstance(value, list | tuple) else (value,))


def _bytes(value: Any) -> int | None:
    """Bytes of a tensor, none of anything else; None where they depend on data."""
    if not isinstance(value, torch.Tensor):
        return 0
    count = size_hint(value.numel())
    return None if count is None else count * value.element_size()


def _is_view(node: fx.Node) -> bool:
    """Whether the results of an op lie in the storage of its first argument."""
    return node.op == "call_function" and _returns_argument(node.target) and not copies(node)


@cache
def _returns_argument(target: Any) -> bool:
    if target in VIEWS:
        return True
    if target in CASTS or not isinstance(target, torch._ops.OpOverload):
        return False
    return any(returned.alias_info is not None for returned in target._schema.returns)


def _needed(steps: Sequence[Step]) -> list[Step]:
    """The steps whose results are read, or that are there for more."""
    needed: set[str] = set()
    kept = []
    for step in reversed(steps):
        if step.pinned or any(tensor.name in needed for tensor in step.writes):
            needed.update(tensor.name for tensor in step.reads)
            kept.append(step)
    return kept[::-1]
