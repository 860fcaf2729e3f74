"""Rules under which the weights of a group may be packed: moved into one buffer, where they live on.

A rule takes :class:`PackFacts` and answers for one reason. What shapes and layouts of the group say is asked before, by
:func:`fusioncc.packing.refusal`; what only a tensor shows, by the call that packs it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import tensor
from fusioncc.group import Group, Operand
from fusioncc.passes import weight_rules
from fusioncc.passes.weight_rules import WeightFacts, Weights, checkable, unaliased, unquantised


@dataclass(frozen=True)
class PackFacts(WeightFacts):
    """A group, what its graph says, whether packing was asked for, and how many products of any group read a weight."""

    asked: bool
    readers: Counter[str]
    kind: str = "packed"
    rest: str = "eager"
    """What runs the rest of the graph."""

    def matrices(self) -> tuple[Operand, ...]:
        """The weights of the main members; for ``k_concat`` also those of the up members."""
        roles = ("main", "up") if self.kind == "k_concat" else ("main",)
        return tuple(member.weight for member in self.group.members if member.role in roles)


def asked_for(facts: PackFacts) -> Decision:
    """Packing moves the memory of parameters, so it has to be asked for."""
    if facts.asked:
        return Accepted("asked_for")
    return Rejected("asked_for", facts.group.name, "packing moves weights into one buffer", "pack_weights=True does so")


def own_matrix(facts: PackFacts) -> Decision:
    """Each weight is held as the matrix ``[N, K]`` that the product reads, not as a part or another view of it; for
    ``k_concat`` also as ``[K, N]``."""
    for operand in facts.matrices():
        value = tensor(facts.holder(operand))
        assert value is not None
        held = (tuple(value.shape), value.stride())
        if held == (operand.shape[::-1], operand.strides[::-1]):
            continue
        if facts.kind == "packed" or held != (operand.shape, operand.strides):
            return Rejected("own_matrix", operand.node, f"{operand.node} is held as {list(value.shape)}, not as [N, K]")
    return Accepted("own_matrix")


def in_one_group(facts: PackFacts) -> Decision:
    """No other product of this graph reads one of the weights: it can lie beside one set of others only."""
    for operand in facts.matrices():
        count = facts.readers[operand.node]
        if count > 1:
            return Rejected("in_one_group", operand.node, f"{operand.node} is shared: {count} products read it")
    return Accepted("in_one_group")


def unshared(facts: PackFacts) -> Decision:
    """``k_concat`` spreads the rows of weights in memory, while the graph that it stands in was compiled for their
    strides: nothing else in it may read them. ``packed`` leaves strides as they are."""
    return weight_rules.unshared(facts) if facts.kind == "k_concat" else Accepted("unshared")


def frozen(facts: PackFacts) -> Decision:
    """The rows of what ``k_concat`` packs lie apart, and fused optimizers take a parameter for dense: none of them is
    trainable. ``packed`` leaves weights dense."""
    return weight_rules.frozen(facts) if facts.kind == "k_concat" else Accepted("frozen")


def strides_are_free(facts: PackFacts) -> Decision:
    """``k_concat`` spreads the rows of W, and Inductor's code has the strides of every weight in it. Dynamo guards
    them, but may take a module whose parameters are the same objects as unchanged (seen with torch 2.11)."""
    if facts.kind == "k_concat" and facts.rest == "inductor":
        reason = "Inductor's code has the strides that W had when it was compiled, and packing changes them"
        return Rejected("strides_are_free", facts.group.name, reason, 'rest="eager" leaves them free')
    return Accepted("strides_are_free")


PACK_RULES: tuple[Callable[[PackFacts], Decision], ...] = (
    asked_for,
    unquantised,
    checkable,
    own_matrix,
    in_one_group,
    unshared,
    unaliased,
    frozen,
    strides_are_free,
)


def readers_of(groups: Sequence[Group]) -> Counter[str]:
    """How many products of these groups read each weight, by its node."""
    products = {(member.node, member.weight.node) for group in groups for member in group.members}
    return Counter(weight for _, weight in products)


def check_packs(
    groups: Sequence[Group], weights: Weights, asked: bool, kind: str = "packed", rest: str = "eager"
) -> dict[str, tuple[Rejected, ...]]:
    """By group name every rule that refuses to pack its weights as ``kind`` does; nothing is asked of them before the
    user asked."""
    readers = readers_of(groups)
    answers: dict[str, tuple[Rejected, ...]] = {}
    for group in groups:
        facts = PackFacts(group, weights, asked, readers, kind, rest)
        first = asked_for(facts)
        rules = PACK_RULES[1:] if isinstance(first, Accepted) else ()
        refused = [decision for rule in rules if isinstance(decision := rule(facts), Rejected)]
        answers[group.name] = (first,) if isinstance(first, Rejected) else tuple(refused)
    return answers
