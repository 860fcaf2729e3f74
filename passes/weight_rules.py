"""What a graph says of the weights of a group, and the rules that every schedule which moves or copies weights asks.

A rule takes :class:`WeightFacts` and answers for one reason.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import HOLDERS, dtype_of, is_mutation, is_static, readers, tensor, trainable_inputs
from fusioncc.group import Group, Operand


@dataclass(frozen=True)
class Weights:
    """What a graph says of its inputs."""

    graph: fx.Graph

    @cached_property
    def by_name(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def by_storage(self) -> dict[int, list[fx.Node]]:
        """Inputs and attributes that are tensors, those of one storage together."""
        found: dict[int, list[fx.Node]] = defaultdict(list)
        for node in self.graph.nodes:
            value = tensor(node) if node.op in HOLDERS else None
            if value is not None:
                found[value.untyped_storage()._cdata].append(node)
        return found

    @cached_property
    def trainable(self) -> frozenset[fx.Node]:
        return trainable_inputs(self.graph)


@dataclass(frozen=True)
class WeightFacts:
    """A group, and what its graph says; a subclass names the tensors that its schedule touches."""

    group: Group
    weights: Weights

    def matrices(self) -> tuple[Operand, ...]:
        """The matrices that are moved or copied."""
        raise NotImplementedError

    def products(self) -> frozenset[str]:
        """Names of the products that take part: all of the group, unless a subclass names fewer."""
        return frozenset(member.node for member in self.group.members)

    def scales(self) -> tuple[Operand, ...]:
        """The tensor scales that are multiplied into them."""
        return ()

    def holder(self, operand: Operand) -> fx.Node:
        """The node that holds an operand."""
        return self.weights.by_name[operand.node]


def unquantised(facts: WeightFacts) -> Decision:
    """Neither W nor the adapter is held in 8 bits, or computed from what is."""
    for operand in facts.matrices():
        for node in _sources(facts.holder(operand)):
            value = tensor(node)
            if value is not None and value.dtype is not torch.bool and value.element_size() == 1:
                made = "" if node.name == operand.node else f", computed from {node.name},"
                return Rejected(
                    "unquantised",
                    operand.node,
                    f"{operand.node}{made} is quantised ({dtype_of(node)})",
                )
    return Accepted("unquantised")


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """A node and everything it is computed from, each once."""
    waiting, seen = [node], {node}
    while waiting:
        here = waiting.pop()
        yield here
        fresh = [arg for arg in here.all_input_nodes if arg not in seen]
        seen.update(fresh)
        waiting += fresh


def checkable(facts: WeightFacts) -> Decision:
    """Every weight and tensor scale is an input of the graph, so that a call can see whether it is still the same."""
    for operand in (*facts.matrices(), *facts.scales()):
        node = facts.holder(operand)
        if node.op not in HOLDERS:
            return Rejected(
                "checkable",
                node.name,
                f"{node.name} is computed in the graph ({node.target}): whether it changed cannot be seen from outside",
            )
    return Accepted("checkable")


def frozen(facts: WeightFacts) -> Decision:
    """No weight and no tensor scale requires a gradient (also under ``no_grad``), and the graph writes to none."""
    for operand in (*facts.matrices(), *facts.scales()):
        node = facts.holder(operand)
        if node in facts.weights.trainable:
            return Rejected("frozen", node.name, f"{node.name} is trainable", "requires_grad_(False) freezes it")
        writer = next(filter(is_mutation, node.users), None)
        if writer is not None:
            return Rejected("frozen", node.name, f"{node.name} is written by {writer.name}")
    return Accepted("frozen")


def unshared(facts: WeightFacts) -> Decision:
    """Nothing but the products that take part reads one of the matrices."""
    for operand in facts.matrices():
        own = facts.products()
        reader = next((node for node in readers(facts.holder(operand)) if node.name not in own), None)
        if reader is not None:
            what = "what follows the graph (a backward, the caller)" if reader.op == "output" else reader.name
            return Rejected(
                "unshared", operand.node, f"{operand.node} is shared: {what} reads it too, and needs it as it is"
            )
    return Accepted("unshared")


def unaliased(facts: WeightFacts) -> Decision:
    """The memory of W, A and B overlaps with that of no other input."""
    for operand in facts.matrices():
        node = facts.holder(operand)
        value = tensor(node)
        assert value is not None
        beside = facts.weights.by_storage.get(value.untyped_storage()._cdata, [])
        other = next((each for each in beside if each is not node and _overlap(node, each)), None)
        if other is not None:
            return Rejected("unaliased", node.name, f"{node.name} is aliased: it overlaps in memory with {other.name}")
    return Accepted("unaliased")


def _overlap(a: fx.Node, b: fx.Node) -> bool:
    """Whether two tensors of one storage may have a byte in common; yes where sizes are symbolic."""
    one, two = _span(a), _span(b)
    return one is None or two is None or (one[0] < two[1] and two[0] < one[1])


def _span(node: fx.Node) -> tuple[int, int] | None:
    """First byte in the storage and the one behind the last; None where that is symbolic."""
    value = tensor(node)
    assert value is not None
    facts = (value.storage_offset(), *value.shape, *value.stride())
    if not all(map(is_static, facts)):
        return None
    extent = sum((int(size) - 1) * int(stride) for size, stride in zip(value.shape, value.stride(), strict=True))
    begin = int(value.storage_offset())
    return begin * value.element_size(), (begin + extent + 1) * value.element_size()
