"""Rules a low-rank branch must pass to be joined to a main product. Each answers for one reason.

A rule takes :class:`BranchFacts` and returns a decision; ``check_branch`` asks them in order and gives the first
refusal, so that the reason a user reads is the most basic one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import SUMS, is_random, product, same_size, tensor, users_outside
from fusioncc.passes.canonicalize import Gemm
from fusioncc.passes.find_branches import LowRankPair, Scale


@dataclass(frozen=True)
class BranchFacts:
    """A branch about to be joined: ``inner`` are the nodes the region would cover, ending at ``end``.

    ``written_out`` are the nodes that may have users outside: down products and what is made from them. ``taken`` are
    the products of branches that another main member has already.
    """

    main: Gemm
    branch: LowRankPair
    on_up: Scale
    inner: set[fx.Node]
    written_out: set[fx.Node]
    end: fx.Node
    taken: set[fx.Node]
    max_rank_fraction: float


def same_lhs(facts: BranchFacts) -> Decision:
    """Main and down product read the same value after views, exact casts and scales are peeled."""
    branch, main = facts.branch, facts.main
    if branch.lhs_key == main.lhs_key and same_size(branch.down.k, main.k):
        return Accepted("same_lhs")
    random = _random_between(branch.down.lhs, main.lhs)
    if random is not None:
        return Rejected(
            "same_lhs",
            branch.down.node.name,
            f"a random op ({random.name}) stands between X and the down product, so they read different values",
            "switch the model to eval() or set the adapter's dropout to 0",
        )
    return Rejected(
        "same_lhs",
        branch.down.node.name,
        f"the down product reads {branch.down.lhs.name}, the main product {main.lhs.name}: not the same value",
        "views, widening casts and scalings are looked through; any other op between is not",
    )


def _random_between(node: fx.Node, stop: fx.Node, limit: int = 12) -> fx.Node | None:
    """A random op within a few steps behind ``node``."""
    frontier, seen = [node], {stop}
    for _ in range(limit):
        frontier = [arg for n in frontier for arg in n.all_input_nodes if arg not in seen]
        seen.update(frontier)
        for candidate in frontier:
            if is_random(candidate):
                return candidate
    return None


def low_rank(facts: BranchFacts) -> Decision:
    """The rank is smaller than N and K, and at most ``max_rank_fraction`` of both."""
    rank, k, n = facts.branch.down.n, facts.main.k, facts.main.n
    if is_low_rank(rank, k, n, facts.max_rank_fraction):
        return Accepted("low_rank", (f"rank {rank}",))
    if isinstance(rank, int) and isinstance(k, int) and isinstance(n, int) and rank >= min(k, n):
        return Rejected(
            "low_rank", facts.branch.down.node.name, f"rank {rank} is not smaller than both K={k} and N={n}"
        )
    return Rejected(
        "low_rank",
        facts.branch.down.node.name,
        f"rank {rank} is more than {facts.max_rank_fraction:g} of K={k} or N={n}",
        "raise max_rank_fraction to treat it as a low-rank branch",
    )


def is_low_rank(rank: Any, k: Any, n: Any, max_rank_fraction: float) -> bool:
    """Whether a rank is small beside K and N; 1 always is, unless N or K is 1 itself."""
    if not all(isinstance(size, int) for size in (rank, k, n)):
        return False
    return bool(rank < min(k, n) and rank <= max(max_rank_fraction * min(k, n), 1))


def same_shape(facts: BranchFacts) -> Decision:
    """The up product has the shape of the main product: M, N and batch are provably equal."""
    main, up = facts.main, facts.branch.up
    pairs = (("M", main.m, up.m), ("N", main.n, up.n), ("M", main.m, facts.branch.down.m))
    for name, a, b in pairs:
        if not same_size(a, b):
            return Rejected(
                "same_shape", up.node.name, f"{name} of the branch ({b}) is not provably that of the main product ({a})"
            )
    if any(not same_size(gemm.batch, 1) for gemm in (main, up, facts.branch.down)):
        return Rejected("same_shape", up.node.name, "batched products (batch > 1) are not joined yet")
    for node in sorted(facts.inner, key=lambda n: n.name):
        value = tensor(node) if node.target in SUMS else None
        if value is not None and not same_size(product(value.shape), main.m * main.n):
            return Rejected(
                "same_shape",
                node.name,
                f"the sum broadcasts to {tuple(value.shape)}, more than the main product's {main.m} x {main.n}",
            )
    return Accepted("same_shape")


def single_user(facts: BranchFacts) -> Decision:
    """No value the fused kernel keeps to itself is read elsewhere; only a down product may be (it is written out)."""
    for node in sorted(facts.inner - facts.written_out - {facts.end}, key=lambda n: n.name):
        user = next(users_outside(node, facts.inner), None)
        if user is not None:
            return Rejected(
                "single_user",
                node.name,
                f"{node.name} is also read by {user.name}, so it has to exist in memory anyway",
            )
    return Accepted("single_user")


def scale_order(facts: BranchFacts) -> Decision:
    """A branch has a bias or a tensor scale, not both: no kernel is emitted that keeps them in order."""
    branch = facts.branch
    tensors = branch.on_lhs.tensors + branch.on_down.tensors + facts.on_up.tensors
    biased = next((gemm for gemm in (branch.down, branch.up) if gemm.bias is not None), None)
    if tensors and biased is not None:
        return Rejected(
            "scale_order",
            biased.node.name,
            f"the branch has a bias and the tensor scale {tensors[0].name}: no kernel keeps their order",
            "a number as scale is folded into the bias",
        )
    if branch.down.beta != 1 or branch.up.beta != 1 or 0 in (branch.down.alpha, branch.up.alpha):
        return Rejected("scale_order", branch.up.node.name, "beta of the branch's product is not 1, or its alpha is 0")
    return Accepted("scale_order")


def joined_once(facts: BranchFacts) -> Decision:
    """Neither product of the branch is part of a branch that another main member has."""
    for gemm in (facts.branch.down, facts.branch.up):
        if gemm.node in facts.taken:
            return Rejected(
                "joined_once", gemm.node.name, f"{gemm.node.name} is part of another main member's branch already"
            )
    return Accepted("joined_once")


BRANCH_RULES: tuple[Callable[[BranchFacts], Decision], ...] = (
    same_lhs,
    low_rank,
    same_shape,
    scale_order,
    joined_once,
    single_user,
)


def check_branch(facts: BranchFacts) -> Decision:
    """The first refusal, or acceptance with every fact."""
    proved: list[str] = []
    for rule in BRANCH_RULES:
        decision = rule(facts)
        if isinstance(decision, Rejected):
            return decision
        proved += decision.facts
    return Accepted("branch", tuple(proved))
