"""Find chains: sets of elementwise nodes that one kernel can evaluate, as large as they get.

Nodes are taken in the order of the graph, and each joins the sets that make its inputs where that is legal: the graph
in which every set (and every fused group of GEMMs) is one node stays free of cycles, the shapes agree, and whole rows
fit where something is reduced along them. What one set makes for another need not be read again, so a larger set never
moves more bytes; a value that the rest of the graph reads is written out. Sets that only read the same stay apart.
"""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusioncc.chain import IN_ORDER, REDUCTIONS
from fusioncc.decision import Rejected
from fusioncc.graph import is_mutation, product, tensor
from fusioncc.passes.read_ops import ALIASES, COMPOSITES, is_fill, ops_of, origin_of, refusal
from fusioncc.passes.read_rotations import Rotation
from fusioncc.sizes import sizes_of

MAX_ROW = 16384
"""Elements of a row up to which one program holds it."""
MAX_TENSORS = 16
"""Tensors that a chain reads and writes, and"""
MAX_OPS = 96
"""ops: beyond, what a thread holds at once is not foreseen."""


@dataclass(eq=False)
class NodeSet:
    """Nodes that become one kernel, or stay one (``fixed``: a fused group of GEMMs, or any other node). ``first`` and
    ``last`` are the positions in the graph that it spans."""

    nodes: list[fx.Node]
    first: int
    last: int
    epoch: int
    shape: tuple[int, ...] = ()
    rows: int = 0
    """Elements of the rows that it reduces; 0: none."""
    ops: int = 0
    """How many ops it is read as."""
    fixed: bool = False


@dataclass(frozen=True)
class FoundChains:
    """The nodes of each chain, in graph order, and what ended one."""

    chains: tuple[tuple[fx.Node, ...], ...]
    rejections: tuple[Rejected, ...]


def find_chains(
    graph: fx.Graph,
    taken: Iterable[Collection[fx.Node]] = (),
    *,
    exact: bool = False,
    least: int = 2,
    symbolic: bool = False,
    rotated: Mapping[fx.Node, Rotation] | None = None,
) -> FoundChains:
    """The chains of a functional graph. ``taken`` are the nodes of each fused group, which no chain may contain;
    ``exact`` chains have the bits of eager, and so hold no sum along rows. A chain is what eager runs as ``least``
    kernels or more, of a ``symbolic`` number of rows where that is allowed; of ``rotated`` rotations (by their nodes)
    it has all nodes or none."""
    return _Search(graph, taken, exact, least, symbolic, rotated or {}).run()


@dataclass
class _Search:
    graph: fx.Graph
    taken: Iterable[Collection[fx.Node]]
    exact: bool
    least: int
    symbolic: bool
    rotated: Mapping[fx.Node, Rotation]
    of: dict[fx.Node, NodeSet] = field(default_factory=dict)
    wide: dict[NodeSet, None] = field(default_factory=dict)
    """Sets of several nodes."""
    refused: dict[fx.Node, str] = field(default_factory=dict)
    limits: list[Rejected] = field(default_factory=list)

    def run(self) -> FoundChains:
        nodes = list(self.graph.nodes)
        self._begin(nodes)
        for node in nodes:
            if not self.of[node].fixed:
                self._join_inputs(node)
        chains = [found for found in dict.fromkeys(self.of.values()) if not found.fixed and self._is_chain(found.nodes)]
        return FoundChains(tuple(tuple(found.nodes) for found in chains), (*self._ends(), *self.limits))

    def _is_chain(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether it is as much as is asked for, makes tensors alone and reads one."""
        inside = set(nodes)
        lists = (node for node in nodes if isinstance(node.meta["val"], tuple | list))
        whole = all(user in inside for node in lists for user in node.users)
        origins = {origin_of(node) for node in nodes if _list_of(node) is None}
        return whole and bool(inputs_of(nodes)) and len(origins) >= self.least

    def _begin(self, nodes: Sequence[fx.Node]) -> None:
        """A set for each node, and one for each fused group."""
        epoch = 0
        groups = [(group, NodeSet([], len(nodes), 0, 0, fixed=True)) for group in self.taken]
        group_of = {node: found for group, found in groups for node in group}
        for at, node in enumerate(nodes):
            epoch += is_mutation(node)
            source = self._set_of(node)
            part = source is not None and not self.of[source].fixed
            found = self.of[source] if source is not None and part else group_of.get(node) or NodeSet([], at, at, epoch)
            found.nodes.append(node)
            found.first, found.last = min(found.first, at), at
            self.of[node] = found
            if part:
                self.wide[found], self.refused[node] = None, ""
                found.ops += 1
            if found.fixed or part:
                continue
            if node in self.rotated:
                self.refused[node], found.shape, found.ops = "", _shape(self._whole(node)), 1
                continue
            reason = refusal(node, symbolic=self.symbolic) or _no_space(node)
            self.refused[node] = reason or (SUMMED if self.exact and _sums(node) else "")
            found.fixed = bool(self.refused[node])
            if not found.fixed:
                found.shape, found.rows = _space(node)
                found.ops = 1 if self.exact else ops_of(node)
        self.wide |= {found: None for _, found in groups if found.nodes}

    def _set_of(self, node: fx.Node) -> fx.Node | None:
        """A node in front whose set a node is in from the beginning: the composite that it takes apart, or the first
        one of its rotation."""
        first = self.rotated[node].nodes[0] if node in self.rotated else node
        return _list_of(node) if first is node else first

    def _whole(self, node: fx.Node) -> fx.Node:
        """The node whose shape a node is evaluated in: of a rotation the last one."""
        return self.rotated[node].node if node in self.rotated else node

    def _join_inputs(self, node: fx.Node) -> None:
        for before in node.all_input_nodes:
            ours, other = self.of[node], self.of[before]
            if other is ours or other.fixed:
                continue
            reason = self._apart(other, ours)
            if not reason:
                self._merge(other, ours)
            elif reason in LIMITS:
                self.limits.append(Rejected("chain_limits", node.name, reason))

    def _merge(self, first: NodeSet, second: NodeSet) -> None:
        first.nodes += second.nodes
        first.first, first.last = min(first.first, second.first), max(first.last, second.last)
        first.shape, first.rows = broadcast(first.shape, second.shape), max(first.rows, second.rows)
        first.ops += second.ops
        self.of |= dict.fromkeys(second.nodes, first)
        self.wide.pop(second, None)
        self.wide[first] = None

    def _apart(self, first: NodeSet, second: NodeSet) -> str:
        """Why two sets, of which the second reads the first, stay two; empty where they may become one."""
        shape = broadcast(first.shape, second.shape)
        rows = {each.rows for each in (first, second) if each.rows}
        nodes = [*first.nodes, *second.nodes]
        if first.epoch != second.epoch:
            return "something is written in place between them"
        if not all(_agrees(self._whole(node), shape) for node in nodes):
            return "their shapes do not agree"
        if len(rows) > 1 or (rows and shape[-1:] != tuple(rows)):
            return "they reduce rows of another length"
        results = results_of(nodes)
        if any(not _covers(node, shape, bool(rows)) for node in results):
            return "a smaller value that others read would be computed again and again"
        ends = (_shape(self._whole(node))[-1:] for node in nodes if rows)
        if any(size not in (1, shape[-1]) for end in ends for size in end):
            return "a value is no row of that length"
        if first.ops + second.ops > MAX_OPS:
            return LIMITS[0]
        inputs = inputs_of(nodes)
        if len(inputs) + len(results) > MAX_TENSORS:
            return LIMITS[1]
        return "another node between them reads one and is read by the other" if self._between(first, second) else ""

    def _between(self, first: NodeSet, second: NodeSet) -> bool:
        """Whether a path leads from the first set to the second through a third."""
        least = self._floor(first.first)
        inside = {*first.nodes, *second.nodes}
        waiting = [each for node in second.nodes for each in node.all_input_nodes if not _is_within(each, inside)]
        seen: set[NodeSet] = {second}
        while waiting:
            found = self.of[waiting.pop()]
            if found in seen or found is first or found.last < least:
                continue
            seen.add(found)
            inputs = [each for node in found.nodes for each in node.all_input_nodes]
            if any(self.of[each] is first for each in inputs):
                return True
            waiting += inputs
        return False

    def _floor(self, position: int) -> int:
        """The last position up to ``position`` that no set spans: nothing in front of it is reached from behind it."""
        spanning = True
        while spanning:
            spanning = False
            for each in self.wide:
                if each.first < position <= each.last:
                    position, spanning = each.first, True
        return position

    def _ends(self) -> Iterable[Rejected]:
        """The elementwise ops next to one that might be in a chain with them, and why they are in none."""
        free = (node for node, reason in self.refused.items() if not reason)
        beside = {near for node in free for near in (*node.all_input_nodes, *node.users)}
        for node, reason in self.refused.items():
            if reason and node in beside and _is_elementwise(node):
                yield Rejected("chain_op", node.name, f"{node.target} ends the chain: {reason}")


def inputs_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What a set of nodes reads, constants aside, each once in order."""
    inside = set(nodes)
    found = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside)
    return [each for each in found if not is_fill(each)]


def results_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes of a set that others read, in order."""
    inside = set(nodes)
    return [node for node in nodes if any(not _is_within(user, inside) for user in node.users)]


def _is_within(node: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Whether a set of nodes has a node, or makes it where it alone reads it: a constant, shaped like a member."""
    return node in inside or (is_fill(node) and all(user in inside for user in node.users))


SUMMED = "the tier 'eager' has no sum along rows, whose order would be another than eager's"
LIMITS = (
    f"a chain has at most {MAX_OPS} ops",
    f"a chain reads and writes at most {MAX_TENSORS} tensors",
)


def _list_of(node: fx.Node) -> fx.Node | None:
    """The composite of whose tensors a node is one; it stays in one set with it."""
    made = node.args[0] if node.target is operator.getitem else None
    return made if isinstance(made, fx.Node) and made.target in COMPOSITES else None


def _is_elementwise(node: fx.Node) -> bool:
    if node.target in ALIASES or is_fill(node):
        return False
    return is_reduction(node) or torch.Tag.pointwise in getattr(node.target, "tags", ())


def is_reduction(node: fx.Node) -> bool:
    """Whether a node reduces rows."""
    return node.target in COMPOSITES or str(node.target) in REDUCTIONS


def _sums(node: fx.Node) -> bool:
    """Whether a node adds up rows, or is one of several results of that."""
    made: Any = node.args[0] if node.target is operator.getitem else node
    return made.target in COMPOSITES or str(made.target) in IN_ORDER


def _space(node: fx.Node) -> tuple[tuple[int, ...], int]:
    """The shape over which a node is evaluated, and the length of the rows that it reduces."""
    if is_reduction(node):
        shape = _shape(node.args[0])  # type: ignore[arg-type]
        return shape, shape[-1]
    return _shape(node), 0


def _no_space(node: fx.Node) -> str:
    """Why a node cannot be evaluated element by element or row by row."""
    shape, rows = _space(node)
    if rows > MAX_ROW:
        return f"its rows have {rows} elements, one program holds {MAX_ROW} at most"
    value = tensor(node)
    sides = () if value is None else zip(sizes_of(value.stride()), sizes_of(value.shape), strict=True)
    if any(step == 0 and size != 1 for step, size in sides):
        return "its elements share memory"
    return "it has no element" if product(shape) == 0 else ""


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's value; of several that of the first."""
    value = node.meta["val"]
    return sizes_of((value[0] if isinstance(value, tuple | list) else value).shape)


def _agrees(node: fx.Node, shape: tuple[int, ...]) -> bool:
    """Whether a node's value broadcasts to ``shape``."""
    own = (1,) * (len(shape) - len(_shape(node))) + _shape(node)
    return all(size in (1, whole) for size, whole in zip(own, shape, strict=True))


def _covers(node: fx.Node, shape: tuple[int, ...], by_rows: bool) -> bool:
    """Whether a program that has elements of ``shape``, or rows of it, makes a value once."""
    own = (1,) * (len(shape) - len(_shape(node))) + _shape(node)
    return own == shape or (by_rows and own == (*shape[:-1], 1))


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which two shapes that agree broadcast; of two that do not, the larger sizes."""
    wide = max(len(one), len(other))
    pairs = zip((1,) * (wide - len(one)) + one, (1,) * (wide - len(other)) + other, strict=True)
    return tuple(max(pair) for pair in pairs)
