"""Find regions: a main product and the sums that join low-rank branches to it.

From each product the pass walks forward along single-user views, casts and additions while the other addend is made of
low-rank branches that read the same LHS. The region ends at the last such sum (and takes in the one cast right behind
it); a branch that does not qualify ends the walk and leaves a rejection that names the rule and the node. A bias that
a sum of its own adds to the product, on the way to a branch, becomes the product's bias.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import fx

from fusioncc.decision import Rejected
from fusioncc.graph import (
    COPIES,
    SUMS,
    aten,
    dtype_of,
    is_exact_cast,
    is_rounding,
    keeps_order,
    same_size,
    tensor,
    users_outside,
)
from fusioncc.group import EMITTED_DTYPES
from fusioncc.passes.branch_rules import BranchFacts, check_branch
from fusioncc.passes.canonicalize import Gemm, product_nodes, read_added
from fusioncc.passes.find_branches import LowRankPair, Scale, peel_scales
from fusioncc.passes.find_near_misses import find_near_misses


@dataclass(frozen=True)
class Joined:
    """A branch in its region, with the scale behind B's product."""

    branch: LowRankPair
    on_up: Scale
    saved: bool = False


@dataclass(frozen=True)
class Region:
    """A main product, its branches in order of joining, the node the kernel's output replaces, the nodes it covers.

    ``main`` may have a bias that a sum on the way to a branch adds; ``product`` is the main product as it stands.
    """

    main: Gemm
    branches: tuple[Joined, ...]
    output: fx.Node
    inner: frozenset[fx.Node]
    product: Gemm

    def alone(self) -> "Region":
        """The main product without the branches, and without what a sum behind it adds."""
        return Region(self.product, (), self.product.result, frozenset(product_nodes(self.product)), self.product)

    @property
    def halves(self) -> set[fx.Node]:
        """The products of its branches."""
        return {node for joined in self.branches for node in (joined.branch.up.node, joined.branch.down.node)}


def find_regions(
    gemms: tuple[Gemm, ...], branches: dict[fx.Node, LowRankPair], max_rank_fraction: float
) -> tuple[tuple[Region, ...], tuple[Rejected, ...]]:
    """One region for each product that is no half of a branch joined elsewhere; and why branches were turned away.

    A branch that two mains could have goes to the first; :mod:`fusioncc.passes.find_alternatives` has the others.
    """
    kept = grow(in_order(gemms, branches), branches, max_rank_fraction)
    taken = {node for region, _ in kept for node in region.halves}
    rejections = [rejection for _, refused in kept for rejection in refused.values()]
    settled = taken.union(*(refused for _, refused in kept))
    joined = {region.main.node: region.inner for region, _ in kept if region.branches}
    rejections += find_near_misses(gemms, settled, joined, max_rank_fraction)
    return tuple(region for region, _ in kept), tuple(dict.fromkeys(rejections))


def in_order(gemms: Iterable[Gemm], branches: dict[fx.Node, LowRankPair]) -> list[Gemm]:
    """Products as they are asked for branches: those that may be part of one come last."""
    halves = {node for branch in branches.values() for node in (branch.up.node, branch.down.node)}
    return sorted(gemms, key=lambda gemm: gemm.node in halves)


def grow(
    mains: Iterable[Gemm],
    branches: dict[fx.Node, LowRankPair],
    max_rank_fraction: float,
    reserved: frozenset[fx.Node] = frozenset(),
) -> list[tuple[Region, dict[fx.Node, Rejected]]]:
    """The regions of ``mains``, of which the first takes the branches that it can have, then the next; no branch has a
    product that is ``reserved``. With each region, by up product, why a branch beside it is not part of it."""
    ups = {branch.up.result: branch for branch in branches.values()}
    taken = set(reserved)
    grown: list[tuple[Region, dict[fx.Node, Rejected]]] = []
    for main in mains:
        if main.node in taken and main.node not in reserved:
            continue
        region, refused = _grow(main, branches, ups, taken, max_rank_fraction)
        grown.append((region, refused))
        taken |= region.halves
    return [(region, refused) for region, refused in grown if region.main.node not in taken - reserved]


def _grow(
    main: Gemm,
    branches: dict[fx.Node, LowRankPair],
    ups: dict[fx.Node, LowRankPair],
    taken: set[fx.Node],
    max_rank_fraction: float,
) -> tuple[Region, dict[fx.Node, Rejected]]:
    """The region of ``main``, and by up product why a branch beside it is not part of it. ``ups`` are the branches by
    the result of their up product."""
    joined: list[Joined] = []
    product = main
    inner: set[fx.Node] = product_nodes(main)
    output = here = main.result
    refused: dict[fx.Node, Rejected] = {}
    passed: list[fx.Node] = []
    biased = main
    while len(here.users) == 1:
        (user,) = here.users
        if keeps_order(user) or user.target in COPIES or is_rounding(user):
            passed.append(user)
            here = user
            continue
        found = [
            (replace(join, branch=join.branch.reading(main.lhs_key)), nodes)
            for join, nodes in _addends(user, here, branches, ups)
        ]
        if not found:
            bias = _added_bias(user, here, biased)
            if bias is None:
                break
            biased = replace(biased, bias=bias)
            passed.append(user)
            here = user
            continue
        region_nodes = inner.union(passed, {user, _end_of(user, branches)}, *(nodes for _, nodes in found))
        end = _end_of(user, branches)
        downs = {node for join in (*joined, *(join for join, _ in found)) for node in _down_values(join.branch)}
        for join, _ in found:
            facts = BranchFacts(main, join.branch, join.on_up, region_nodes, downs, end, taken, max_rank_fraction)
            decision = check_branch(facts)
            if isinstance(decision, Rejected):
                refused[join.branch.up.node] = decision
        if refused:  # branches of one sum stay out together
            reason = next(iter(refused.values()))
            refused.update({join.branch.up.node: reason for join, _ in found if join.branch.up.node not in refused})
            break
        main, inner, passed = biased, region_nodes, []
        joined += [join for join, _ in found]
        output = here = end
    output = _absorb_cast(output, inner) if joined else output
    joined = [replace(join, saved=_is_saved(join.branch, inner)) for join in joined]
    return Region(main, tuple(joined), output, frozenset(inner), product), refused


def _added_bias(user: fx.Node, here: fx.Node, main: Gemm) -> fx.Node | None:
    """The vector ``[N]`` that a sum adds to a product without bias."""
    value = tensor(here)
    if main.bias is not None or main.addend is not None or second_factor(user) != 1 or value is None:
        return None
    other = user.args[1] if user.args[0] is here else user.args[0]
    if not isinstance(other, fx.Node) or other is here or not same_size(value.shape[-1], main.n):
        return None
    return read_added(other, here, 1.0)[0]


def _end_of(user: fx.Node, branches: dict[fx.Node, LowRankPair]) -> fx.Node:
    """The value that holds the sum: the addition, or the result of a product that adds (``addmm``)."""
    return branches[user].up.result if user in branches else user


def _is_saved(branch: LowRankPair, inside: set[fx.Node]) -> bool:
    """Whether the down product, or a value made from it inside the branch, has a user outside the region."""
    return any(next(users_outside(node, inside), None) for node in _down_values(branch))


def _down_values(branch: LowRankPair) -> tuple[fx.Node, ...]:
    """The down product and what the branch makes of it before B."""
    return (branch.down.result, *branch.inner)


def _addends(
    user: fx.Node, here: fx.Node, branches: dict[fx.Node, LowRankPair], ups: dict[fx.Node, LowRankPair]
) -> Iterator[tuple[Joined, set[fx.Node]]]:
    """Branches that ``user`` adds to ``here`` (or subtracts), each with its nodes; nothing for any other sum."""
    if user in branches and branches[user].up.addend is here and branches[user].up.beta == 1:
        branch = branches[user]
        yield Joined(branch, Scale(branch.up.alpha)), _covered(branch)
        return
    factor = second_factor(user)
    if factor is None:
        return
    first, second = user.args[:2]
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or first is second:
        return
    if first is here:
        yield from _terms(second, Scale(factor), ups) or ()
    elif factor == 1:
        yield from _terms(first, Scale(), ups) or ()


def second_factor(node: fx.Node) -> float | None:
    """What a sum multiplies its second addend by, -1 for a difference; None for anything but a sum of two."""
    alpha = node.kwargs.get("alpha", 1)
    if node.target not in SUMS or len(node.args) < 2 or not isinstance(alpha, int | float):
        return None
    return float(alpha) if node.target is aten.add.Tensor else -float(alpha)


def _terms(node: fx.Node, scale: Scale, ups: dict[fx.Node, LowRankPair]) -> list[tuple[Joined, set[fx.Node]]] | None:
    """A value read as a sum of branches, with the scale in front of each; None when some part is no branch."""
    source, factor, passed = peel_scales(node, ups)
    scale = scale.times(factor)
    up = ups.get(source)
    if up is not None and up.up.addend is None:
        return [(Joined(up, scale.times(Scale(up.up.alpha))), _covered(up).union(passed))]
    second = second_factor(source)
    if second is None:
        return None
    found: list[tuple[Joined, set[fx.Node]]] = []
    for part, weight in zip(source.args[:2], (1.0, second), strict=True):
        terms = _terms(part, scale.times(Scale(weight)), ups) if isinstance(part, fx.Node) else None
        if terms is None:
            return None
        found += [(join, nodes.union(passed, {source})) for join, nodes in terms]
    return found


def _covered(branch: LowRankPair) -> set[fx.Node]:
    return {*product_nodes(branch.down), *product_nodes(branch.up), *branch.inner}


def _absorb_cast(output: fx.Node, inner: set[fx.Node]) -> fx.Node:
    """Take in a narrowing cast right behind the sum, through views, when nothing else reads the sum."""
    here = output
    passed: list[fx.Node] = []
    while len(here.users) == 1:
        (user,) = here.users
        if is_rounding(user) and dtype_of(user) in EMITTED_DTYPES and not is_exact_cast(user):
            inner |= {*passed, user}
            return user
        if not keeps_order(user):
            break
        passed.append(user)
        here = user
    return output
