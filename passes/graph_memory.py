"""Graph memory: the most bytes of a whole graph that live at once, without and with the groups that were planned.

Every op is a launch that reads and writes storages, in graph order, and a fused group has the launches of its schedule
in the place of the ops that it replaces. The peak is read off that list as it is for one group, by
:mod:`fusioncc.cost_models.memory`. A view has the storage of what it views; what nothing reads is not there. What
Inductor saves by fusing elementwise ops is not foreseen, before or after.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import fx

from fusioncc.cost_models import launches, peak_bytes
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.graph import CASTS, HOLDERS, VIEWS, is_mutation, size_hint
from fusioncc.plan import GroupPlan, Memory

Storages = dict[fx.Node, tuple[Tensor, ...]]
"""For each node the storages of its values, one a value; those from outside the graph are of kind ``weight``."""


def graph_memory(graph: fx.Graph, *plans: Iterable[GroupPlan]) -> tuple[Memory | None, ...]:
    """What lives in the graph with the groups of each of ``plans``; without any group, as it is. None where a size
    depends on data."""
    storages = _storages(graph)
    nodes = list(graph.nodes)
    return tuple(None if storages is None else _memory(nodes, storages, groups) for groups in plans)


def _memory(nodes: Sequence[fx.Node], storages: Storages, groups: Iterable[GroupPlan]) -> Memory:
    order = {node.name: at for at, node in enumerate(nodes)}
    fused: dict[fx.Node, list[Launch]] = {}
    for group in groups:
        if group.schedule.kind != "library":
            first = min(order[member.node] for member in group.members)
            place = nodes[max(first, *(order[operand.node] for operand in group.operands))]
            fused.setdefault(place, []).extend(_launches_of(group, nodes, order, storages))
    of_groups = [launch for sequence in fused.values() for launch in sequence]
    replaced = {tensor for launch in of_groups for tensor in launch.writes}
    steps: list[tuple[Launch, bool]] = []
    for node in nodes:
        writes = () if node.op in HOLDERS or _is_view(node) else storages[node]
        if replaced.isdisjoint(writes):
            reads = tuple(tensor for arg in node.all_input_nodes for tensor in storages[arg])
            steps.append((Launch("pointwise", reads, writes), node.op == "output" or is_mutation(node)))
        steps += [(launch, False) for launch in fused.get(node, ())]
    held = {tensor for node in nodes if node.op in HOLDERS for tensor in storages[node]}
    held |= {tensor for launch in of_groups for tensor in launch.reads if tensor.name.endswith(HELD)}
    return Memory(peak_bytes(_needed(steps)), sum(tensor.bytes for tensor in held))


HELD = " (held)"
"""Ends the name of what a group holds beside the weights."""


def _launches_of(group: GroupPlan, nodes: Sequence[fx.Node], order: dict[str, int], storages: Storages) -> list[Launch]:
    """The launches of a group with the storages of the graph in the place of its X, its operands and its results."""

    def of(name: str) -> Tensor:
        return storages[nodes[order[name]]][0]

    ours = {"x": of(group.lhs.node)}
    ours |= {f"out{output.main}": of(output.node) for output in group.outputs}
    ours |= {f"y{branch.down}": of(group.members[branch.down].node) for branch in group.branches if branch.saved}
    weights = tuple(of(operand.node) for operand in group.operands if operand != group.lhs)

    def in_graph(tensor: Tensor) -> Tensor:
        if tensor.kind == "held":
            return replace(tensor, name=f"{group.name} {tensor.name}{HELD}", kind="weight")
        return ours.get(tensor.name) or replace(tensor, name=f"{group.name} {tensor.name}")

    return [
        Launch(
            launch.body,
            (*(in_graph(tensor) for tensor in launch.reads if tensor.kind != "weight"), *weights),
            tuple(map(in_graph, launch.writes)),
        )
        for launch in launches(group.group, group.schedule, group.tier)
    ]


def _storages(graph: fx.Graph) -> Storages | None:
    """None where a size depends on data."""
    storages: Storages = {}
    for node in graph.nodes:
        if node.target is operator.getitem:
            source, at = node.args
            values = storages[source]
            storages[node] = values if _is_view(source) else (values[at],)
        elif _is_view(node):
            storages[node] = storages[node.all_input_nodes[0]]
        else:
            value = node.meta.get("val")
            made = []
            for at, each in enumerate(value if isinstance(value, list | tuple) else (value,)):
                size = _bytes(each)
                if size is None:
                    return None
                made.append(Tensor(f"{node.name}:{at}", size, "weight" if node.op in HOLDERS else "intermediate"))
            storages[node] = tuple(made)
    return storages


def _bytes(value: Any) -> int | None:
    """Bytes of a tensor, none of anything else; None where they depend on data."""
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = [known for size in value.shape if (known := size_hint(size)) is not None]
    return prod(sizes) * value.element_size() if len(sizes) == value.dim() else None


def _is_view(node: fx.Node) -> bool:
    """Whether the results of an op lie in the storage of its first argument."""
    return node.op == "call_function" and node.all_input_nodes != [] and _returns_argument(node.target)


@cache
def _returns_argument(target: Any) -> bool:
    if target in VIEWS:
        return True
    if target in CASTS or not isinstance(target, torch._ops.OpOverload):
        return False
    return any(returned.alias_info is not None for returned in target._schema.returns)


def _needed(steps: Sequence[tuple[Launch, bool]]) -> list[Launch]:
    """The launches whose results are read, or that are there for another reason."""
    needed: set[Tensor] = set()
    kept = []
    for launch, pinned in reversed(steps):
        if pinned or not needed.isdisjoint(launch.writes):
            needed.update(launch.reads)
            kept.append(launch)
    return kept[::-1]
