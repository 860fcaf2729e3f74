"""Find groups: regions whose main products read one LHS, described in the vocabulary of :mod:`fusioncc.group`.

A region that a rule refuses loses its branches, and its main member stays in the group where the rules accept it by
itself; every refusal is kept. Two or more products make a group. Where regions have alternatives, or members of a group
depend on each other, groups are found that exclude each other; :mod:`fusioncc.passes.choose_groups` chooses among them
once they are planned.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from fusioncc.decision import Rejected
from fusioncc.graph import (
    CASTS,
    HOLDERS,
    SLICES,
    VIEWS,
    dtype_of,
    is_aligned,
    matrix_strides,
    module_path,
    same_size,
    size_hint,
    size_symbol,
    storage_of,
    tensor,
)
from fusioncc.group import DTYPE_BYTES, Branch, Group, Member, Operand, Output, Role
from fusioncc.passes.canonicalize import Gemm
from fusioncc.passes.find_regions import Joined, Region
from fusioncc.passes.region_rules import RegionFacts, barriers_of, check_region


@dataclass(frozen=True)
class Found:
    """The groups of a graph and every refusal on the way. Some of the groups may exclude each other.

    ``covered`` are the nodes of each group by its name: its products, what joins them, and what makes their inputs of
    X for them alone.
    """

    groups: tuple[Group, ...]
    rejections: tuple[Rejected, ...]
    covered: Mapping[str, frozenset[fx.Node]] = field(default_factory=dict)


def find_groups(
    graph: fx.Graph, regions: tuple[Region, ...], alternatives: tuple[tuple[Region, ...], ...] = ()
) -> Found:
    """Groups of ``graph`` in graph order, named ``g0``, ``g1``, ...; those of ``alternatives`` behind the groups of
    ``regions`` that have the same first product."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    barriers = barriers_of(graph)
    candidates: dict[Hashable, tuple[fx.Node, list[Region]]] = {}
    rejections: dict[Rejected, None] = {}
    for chosen in (regions, *alternatives):
        for members in _sharing(chosen, order):
            lhs = _lhs_node(members)
            legal: list[Region] = []
            for region in members:
                for kept in (region, *([region.alone()] if region.branches else ())):
                    refused = check_region(RegionFacts(kept, lhs, order, barriers))
                    rejections |= dict.fromkeys(refused)
                    if not refused:
                        legal.append(kept)
                        break
            independent, dependent = _independent(legal, order)
            rejections |= dict.fromkeys(dependent)
            for each in independent:
                candidates.setdefault(frozenset((region.main.node, region.inner) for region in each), (lhs, each))
    groups: list[Group] = []
    covered: dict[str, frozenset[fx.Node]] = {}
    for lhs, legal in sorted(candidates.values(), key=lambda candidate: order[candidate[1][0].main.node]):
        groups.append(_describe(f"g{len(groups)}", lhs, legal))
        inner = frozenset(node for region in legal for node in region.inner)
        covered[groups[-1].name] = _with_front(lhs, legal, inner)
    return Found(tuple(groups), tuple(rejections), covered)


def _sharing(regions: tuple[Region, ...], order: dict[fx.Node, int]) -> list[list[Region]]:
    """Regions by what their main products read, in graph order."""
    shared: dict[Any, list[Region]] = defaultdict(list)
    for region in sorted(regions, key=lambda region: order[region.main.node]):
        main = region.main
        shared[main.lhs_key, size_symbol(main.batch) or int(main.batch)].append(region)
    return [members for members in shared.values() if _is_group(members)]


def _is_group(members: list[Region]) -> bool:
    return len(members) + sum(len(region.branches) for region in members) >= 2


def _independent(regions: list[Region], order: dict[fx.Node, int]) -> tuple[list[list[Region]], list[Rejected]]:
    """Groups whose members are independent: one of all ``regions``, or where some depend on others one without the
    later of them, and one with each of these. And why members are in none."""
    first, left_out = _independent_members(regions, order)
    groups, rejections = [first], []
    for region, rejection in left_out:
        beside, _ = _independent_members([region, *(other for other in regions if other is not region)], order)
        groups.append(sorted(beside, key=lambda each: order[each.main.node]))
        rejections += [] if _is_group(beside) else [rejection]
    return [group for group in groups if _is_group(group)], rejections


def _lhs_node(regions: list[Region]) -> fx.Node:
    """The narrowest tensor that holds X: casts in front of a product widen it without changing a value."""
    products = [region.main for region in regions]
    products += [joined.branch.down for region in regions for joined in region.branches if not _is_scaled(joined)]
    return min((gemm.lhs for gemm in products), key=lambda node: DTYPE_BYTES.get(dtype_of(node), 16))


def _with_front(lhs: fx.Node, regions: list[Region], inner: frozenset[fx.Node]) -> frozenset[fx.Node]:
    """What a group covers: the nodes of its regions, and casts and views of X (a cast for fp32 adapters) that nothing
    else reads."""
    covered = set(inner)
    products = [region.main for region in regions]
    products += [joined.branch.down for region in regions for joined in region.branches]
    waiting = [gemm.lhs for gemm in products]
    while waiting:
        node = waiting.pop()
        if node is not lhs and node.target in CASTS | VIEWS and all(user in covered for user in node.users):
            covered.add(node)
            waiting += node.all_input_nodes
    return frozenset(covered)


def _is_scaled(joined: Joined) -> bool:
    return bool(joined.branch.on_lhs.tensors) or joined.branch.on_lhs.value != 1


def _independent_members(
    regions: list[Region], order: dict[fx.Node, int]
) -> tuple[list[Region], list[tuple[Region, Rejected]]]:
    """Leave out a member with an operand that is computed from an earlier member's product, or the other way round."""
    kept: list[Region] = []
    left_out = []
    first = min((order[node] for region in regions for node in region.inner), default=0)
    for region in regions:
        pairs = [pair for other in kept for pair in ((region, other), (other, region))]
        found = next(((user, node) for user, maker in pairs if (node := _reached(user, maker, order, first))), None)
        if found is None:
            kept.append(region)
            continue
        dependent, maker = found[0].main.node.name, found[1].name
        why = f"an operand of {dependent} is computed from {maker}, a product of the same input"
        left_out.append((region, Rejected("independent", region.main.node.name, why)))
    return kept, left_out


def _reached(user: Region, maker: Region, order: dict[fx.Node, int], first: int) -> fx.Node | None:
    """A node of ``maker`` that an operand of ``user`` is computed from."""
    frontier = list(_operands(user))
    seen = set(frontier)
    while frontier:
        node = frontier.pop()
        if node in maker.inner:
            return node
        later = [arg for arg in node.all_input_nodes if arg not in seen and order[arg] >= first]
        seen.update(later)
        frontier += later
    return None


def _operands(region: Region) -> Iterator[fx.Node]:
    if region.main.addend is not None:
        yield region.main.addend
    yield from RegionFacts(region, region.main.lhs, {}, ()).operands()


def _describe(name: str, lhs: fx.Node, regions: list[Region]) -> Group:
    value = tensor(lhs)
    assert value is not None
    main = regions[0].main
    rows, k = size_hint(main.m), int(main.k)
    strides = matrix_strides(value)
    assert rows is not None and strides is not None
    members: list[Member] = []
    branches: list[Branch] = []
    outputs: list[Output] = []
    for region in regions:
        at = len(members)
        members.append(_member("main", region.main, rows))
        outputs.append(Output(at, region.output.name, dtype_of(region.output)))
        for joined in region.branches:
            branches.append(_branch(joined, at, len(members)))
            members += _low_rank_members(joined, rows)
    operand = Operand(lhs.name, (rows, k), strides, dtype_of(lhs), is_aligned(lhs))
    return Group(name, operand, tuple(members), tuple(branches), tuple(outputs), size_symbol(main.m), _precision(main))


def _member(role: Role, gemm: Gemm, rows: int, bias_scale: float = 1.0) -> Member:
    n, k = int(gemm.n), int(gemm.k)
    bias = None
    if gemm.bias is not None:
        stride = int(tensor(gemm.bias).stride(-1))  # type: ignore[union-attr]
        bias = Operand(gemm.bias.name, (n,), (stride,), dtype_of(gemm.bias))
    weight = _weight(gemm, k, n)
    batch, source = int(gemm.batch), module_path(gemm.node)
    return Member(role, gemm.node.name, rows, n, k, weight, dtype_of(gemm.node), bias, bias_scale, batch, source)


def _weight(gemm: Gemm, k: int, n: int) -> Operand:
    storage = storage_of(gemm.weight)
    assert storage is not None
    strides = storage.strides[::-1] if gemm.transposed else storage.strides
    node = storage.node
    return Operand(node.name, (k, n), strides[-2:], dtype_of(node), is_aligned(node), _is_made(node))


def _is_made(node: fx.Node) -> bool:
    """Whether the graph computes this tensor: it is none from outside, nor a slice or view of one."""
    while node.target in SLICES:
        storage = storage_of(node.args[0])  # type: ignore[arg-type]
        if storage is None:
            return True
        node = storage.node
    return node.op not in HOLDERS


def _low_rank_members(joined: Joined, rows: int) -> tuple[Member, Member]:
    """Both products of a branch; ``bias_scale`` is what multiplies a bias between its product and the sum.

    ``joined.on_up`` includes the up product's alpha, which multiplies ``y @ B`` but not the up product's own bias.
    """
    branch = joined.branch
    behind_down = branch.on_down.value * joined.on_up.value
    down = _member("down", branch.down, rows, behind_down)
    up = _member("up", branch.up, rows, joined.on_up.value / branch.up.alpha)
    return down, up


def _branch(joined: Joined, main: int, at: int) -> Branch:
    branch = joined.branch
    scale = branch.on_lhs.value * branch.down.alpha * branch.on_down.value * joined.on_up.value
    nodes = branch.on_lhs.tensors + branch.on_down.tensors + joined.on_up.tensors
    tensors = tuple(Operand(node.name, (), (), dtype_of(node)) for node in nodes)
    return Branch(main, at, at + 1, scale, tensors, joined.saved)


def _precision(main: Gemm) -> Literal["ieee", "tf32"]:
    """How fp32 products multiply; torch runs a single row as a matrix-vector product, which never rounds to tf32."""
    return "ieee" if same_size(main.m, 1) else fp32_precision()


def fp32_precision() -> Literal["ieee", "tf32"]:
    """torch's setting for float32 matrix products, as Triton's ``input_precision`` names it."""
    if torch.backends.cuda.matmul.fp32_precision == "tf32":
        return "tf32"
    try:
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    except RuntimeError:  # the user speaks torch's newer settings, which the older function refuses to mix with
        return "ieee"
