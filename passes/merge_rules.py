"""Rules under which a main product may be merged with its adapter: ``X @ (W + s * A @ B)``, with the sum in a buffer.

A rule takes :class:`MergeFacts` and answers for one reason. Merging copies what weights hold, so most rules are about
weights: each must be an input of the graph, whose pointer and version can be looked at on every call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.group import EMITTED_DTYPES, Group, Operand
from fusioncc.passes.weight_rules import WeightFacts, Weights, checkable, frozen, unaliased, unquantised, unshared


@dataclass(frozen=True)
class MergeFacts(WeightFacts):
    """A main member (its index) of a group, what its graph says, and the ceiling of the rounding tier."""

    main: int
    numerics: str

    @property
    def node(self) -> str:
        """Name of the main product."""
        return self.group.members[self.main].node

    def products(self) -> frozenset[str]:
        """The main product, and those of its branches."""
        lows = (index for branch in self.group.branches_of(self.main) for index in (branch.down, branch.up))
        return frozenset({self.node, *(self.group.members[index].node for index in lows)})

    def matrices(self) -> tuple[Operand, ...]:
        """W, then A and B of every branch."""
        members, branches = self.group.members, self.group.branches_of(self.main)
        lows = (members[index].weight for branch in branches for index in (branch.down, branch.up))
        return (members[self.main].weight, *lows)

    def scales(self) -> tuple[Operand, ...]:
        return tuple(scale for branch in self.group.branches_of(self.main) for scale in branch.scale_tensors)


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


def finite_scale(facts: MergeFacts) -> Decision:
    """The constant scale is a number: an infinite one times a zero of ``A @ B`` is none, where eager may have one."""
    for branch in facts.group.branches_of(facts.main):
        if not math.isfinite(branch.scale):
            node = facts.group.members[branch.down].node
            return Rejected("finite_scale", node, f"the scale of the branch through {node} is not finite")
    return Accepted("finite_scale")


def one_dtype(facts: MergeFacts) -> Decision:
    """X, W and their product have one floating dtype: the merged product is computed in it."""
    member = facts.group.members[facts.main]
    dtypes = dict.fromkeys((facts.group.lhs.dtype, member.weight.dtype, member.dtype))
    if len(dtypes) == 1 and member.dtype in EMITTED_DTYPES:
        return Accepted("one_dtype")
    return Rejected("one_dtype", facts.node, f"X, W and their product are not of one dtype ({', '.join(dtypes)})")


MERGE_RULES: tuple[Callable[[MergeFacts], Decision], ...] = (
    rounding_tier,
    single_adapter,
    plain_branch,
    finite_scale,
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
    all_facts = [MergeFacts(group, weights, main, numerics) for main in group.mains if group.branches_of(main)]
    early = [decision for facts in all_facts[:1] if isinstance(decision := rounding_tier(facts), Rejected)]
    return tuple(early) or tuple(
        decision for facts in all_facts for rule in MERGE_RULES[1:] if isinstance(decision := rule(facts), Rejected)
    )
