"""Rules under which a main product may be merged with its adapter: ``X @ (W + s * A @ B)``, with the sum in a buffer.

A rule takes :class:`MergeFacts` and answers for one reason. Merging copies what weights hold, so most rules are about
weights: each must be an input of the graph, whose pointer and version can be looked at on every call.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import (
    CASTS,
    COPIES,
    PADS,
    PERMUTES,
    VIEWS,
    aten,
    dtype_of,
    is_mutation,
    is_static,
    tensor,
    trainable_inputs,
)
from fusioncc.group import EMITTED_DTYPES, Group, Operand

_WEIGHTS = ("placeholder", "get_attr")
_LOOKED_THROUGH = VIEWS | PERMUTES | CASTS | COPIES | PADS | {aten.expand.default}


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
            value = tensor(node) if node.op in _WEIGHTS else None
            if value is not None:
                found[value.untyped_storage()._cdata].append(node)
        return found

    @cached_property
    def trainable(self) -> frozenset[fx.Node]:
        return trainable_inputs(self.graph)


@dataclass(frozen=True)
class MergeFacts:
    """A main member (its index) of a group, what its graph says, and the ceiling of the rounding tier."""

    group: Group
    main: int
    weights: Weights
    numerics: str

    @property
    def node(self) -> str:
        """Name of the main product."""
        return self.group.members[self.main].node

    def matrices(self) -> tuple[Operand, ...]:
        """W, then A and B of every branch."""
        members, branches = self.group.members, self.group.branches_of(self.main)
        lows = (members[index].weight for branch in branches for index in (branch.down, branch.up))
        return (members[self.main].weight, *lows)

    def scales(self) -> tuple[Operand, ...]:
        return tuple(scale for branch in self.group.branches_of(self.main) for scale in branch.scale_tensors)

    def holder(self, operand: Operand) -> fx.Node:
        """The node that holds an operand."""
        return self.weights.by_name[operand.node]


def rounding_tier(facts: MergeFacts) -> Decision:
    """Merging rounds W + s*A@B to the dtype of W, which only ``relaxed`` allows."""
    if facts.numerics == "relaxed":
        return Accepted("rounding_tier")
    return Rejected(
        "rounding_tier",
        facts.node,
        f"merging rounds the sum to the dtype of W, which numerics={facts.numerics!r} does not allow",
        "numerics='relaxed' does",
    )


def single_adapter(facts: MergeFacts) -> Decision:
    """One branch: with several adapters in use there is not one matrix to merge into."""
    count = len(facts.group.branches_of(facts.main))
    if count == 1:
        return Accepted("single_adapter")
    return Rejected("single_adapter", facts.node, f"{count} adapters are added to it; one can be merged")


def plain_branch(facts: MergeFacts) -> Decision:
    """The branch is ``s * (X @ A) @ B`` and nothing else reads its down product."""
    for branch in facts.group.branches_of(facts.main):
        down, up = facts.group.members[branch.down], facts.group.members[branch.up]
        biased = next((member for member in (down, up) if member.bias is not None), None)
        if biased is not None:
            return Rejected("plain_branch", biased.node, "a bias inside the adapter is no part of a merged matrix")
        if branch.saved:
            return Rejected("plain_branch", down.node, "the down product is read elsewhere, and merging never makes it")
    return Accepted("plain_branch")


def unquantised(facts: MergeFacts) -> Decision:
    """Neither W nor the adapter is held in 8 bits, or computed from what is."""
    for operand in facts.matrices():
        for node in _sources(facts.holder(operand)):
            value = tensor(node)
            if value is not None and value.dtype is not torch.bool and value.element_size() == 1:
                made = "" if node.name == operand.node else f", computed from {node.name},"
                return Rejected(
                    "unquantised",
                    operand.node,
                    f"{operand.node}{made} is quantised ({dtype_of(node)}): a merged copy would undo that",
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


def checkable(facts: MergeFacts) -> Decision:
    """Every weight and tensor scale is an input of the graph, so that a call can see whether it is still the same."""
    for operand in (*facts.matrices(), *facts.scales()):
        node = facts.holder(operand)
        if node.op not in _WEIGHTS:
            return Rejected(
                "checkable",
                node.name,
                f"{node.name} is computed in the graph ({node.target}): whether it changed cannot be seen from outside",
            )
    return Accepted("checkable")


def one_dtype(facts: MergeFacts) -> Decision:
    """X, W and their product have one floating dtype: the merged product is computed in it."""
    member = facts.group.members[facts.main]
    dtypes = dict.fromkeys((facts.group.lhs.dtype, member.weight.dtype, member.dtype))
    if len(dtypes) == 1 and member.dtype in EMITTED_DTYPES:
        return Accepted("one_dtype")
    return Rejected("one_dtype", facts.node, f"X, W and their product are not of one dtype ({', '.join(dtypes)})")


def frozen(facts: MergeFacts) -> Decision:
    """No weight and no tensor scale requires a gradient (also under ``no_grad``), and the graph writes to none."""
    for operand in (*facts.matrices(), *facts.scales()):
        node = facts.holder(operand)
        if node in facts.weights.trainable:
            return Rejected("frozen", node.name, f"{node.name} is trainable", "requires_grad_(False) freezes it")
        writer = next(filter(is_mutation, node.users), None)
        if writer is not None:
            return Rejected("frozen", node.name, f"{node.name} is written by {writer.name}")
    return Accepted("frozen")


def unshared(facts: MergeFacts) -> Decision:
    """Nothing but the products of the region reads W, A or B."""
    branches = facts.group.branches_of(facts.main)
    own = {facts.node, *(facts.group.members[i].node for branch in branches for i in (branch.down, branch.up))}
    for operand in facts.matrices():
        reader = next((node for node in _readers(facts.holder(operand)) if node.name not in own), None)
        if reader is not None:
            what = "what follows the graph (a backward, the caller)" if reader.op == "output" else reader.name
            return Rejected(
                "unshared", operand.node, f"{operand.node} is shared: {what} reads it too, and needs it unmerged"
            )
    return Accepted("unshared")


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a tensor, through views and casts of it."""
    for user in node.users:
        if user.target in _LOOKED_THROUGH:
            yield from _readers(user)
        else:
            yield user


def unaliased(facts: MergeFacts) -> Decision:
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


MERGE_RULES: tuple[Callable[[MergeFacts], Decision], ...] = (
    rounding_tier,
    single_adapter,
    plain_branch,
    unquantised,
    checkable,
    one_dtype,
    frozen,
    unshared,
    unaliased,
)


def check_merge(group: Group, weights: Weights, numerics: str) -> tuple[Rejected, ...]:
    """For each main member with a branch every rule that refuses to merge it; empty when the group may be merged.

    Nothing is asked of the weights before the rounding tier allows it.
    """
    all_facts = [MergeFacts(group, main, weights, numerics) for main in group.mains if group.branches_of(main)]
    early = [decision for facts in all_facts[:1] if isinstance(decision := rounding_tier(facts), Rejected)]
    return tuple(early) or tuple(
        decision for facts in all_facts for rule in MERGE_RULES[1:] if isinstance(decision := rule(facts), Rejected)
    )
