"""Choose groups: of planned groups that exclude each other, those that save most together.

A group that is left out is a rejection, which names what was preferred and by how much. Without an exclusion nothing is
done, and networkx is not loaded.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from torch import fx

from fusioncc.decision import Rejected
from fusioncc.errors import PlanError
from fusioncc.group import Group
from fusioncc.passes.best_total import best_total
from fusioncc.passes.exclusions import claimed_twice, cycle_among, dependencies, is_acyclic
from fusioncc.plan import GroupPlan


def choose_groups(
    graph: fx.Graph, planned: Sequence[GroupPlan], covered: Mapping[str, frozenset[fx.Node]], *, given: bool = False
) -> tuple[tuple[GroupPlan, ...], tuple[Rejected, ...]]:
    """The groups to carry out, in order, and a rejection for each other one.

    Args:
        covered: the nodes that each group covers, by its name.
        given: the groups are those of a plan made elsewhere: all of them are wanted.

    Raises:
        PlanError: ``given``, and some of the groups exclude each other.
    """
    exclusions = claimed_twice([covered[each.name] for each in planned])
    fused = [covered[each.name] if each.schedule.kind != "library" else frozenset() for each in planned]
    if not exclusions and is_acyclic(graph, fused):
        return tuple(planned), ()
    feeds = dependencies(graph, fused)
    gains = [gain_us(each) for each in planned]
    chosen = best_total(gains, exclusions)
    while (cycle := cycle_among(feeds, chosen)) is not None:
        exclusions.add(cycle)
        chosen = best_total(gains, exclusions)
    rejections = []
    for at, left_out in enumerate(planned):
        if at in chosen:
            continue
        rivals = sorted(set(chain(*(each - {at} for each in exclusions if at in each and each - {at} <= chosen))))
        more = sum(gains[rival] for rival in rivals) - gains[at]
        rejections.append(_rejected(left_out, [planned[rival] for rival in rivals], more))
    if given and rejections:
        raise PlanError(f"groups of the plan exclude each other: {rejections[0].reason}")
    return tuple(planned[at] for at in sorted(chosen)), tuple(rejections)


def gain_us(planned: GroupPlan) -> float:
    """What a group is predicted to save against the library, us; 0 where nothing is predicted, or it would lose."""
    times = {each.kind: each.predicted_us for each in planned.candidates if each.legal}
    before, after = times.get("library"), times.get(planned.schedule.kind)
    return 0.0 if before is None or after is None else max(before - after, 0.0)


def _rejected(left_out: GroupPlan, rivals: Sequence[GroupPlan], more: float) -> Rejected:
    """Why a group is left out for those that were preferred."""
    names = " and ".join(rival.name for rival in rivals)
    preferred = f"{names} {'are' if len(rivals) > 1 else 'is'} preferred, predicted to save {more:.1f} us more"
    for rival in rivals:
        node = _contested(left_out, rival)
        if node is not None:
            why = f"{left_out.name} ({_products(left_out)}) and {rival.name} both need {node}"
            return Rejected("joined_once", node, f"{why}; {preferred}")
    why = (
        f"{left_out.name} ({_products(left_out)}) and {names} cannot all be fused, as they are computed from each other"
    )
    return Rejected("independent", left_out.members[0].node, f"{why}; {preferred}")


def _contested(one: Group, other: Group) -> str | None:
    """A product that is part of a branch in one group and not of that branch in the other, or that both have where one
    group is a part of the other."""
    first, second = _mains(one), _mains(other)
    contested = (node for node, main in first.items() if second.get(node, main) != main)
    nested = first.keys() <= second.keys() or second.keys() <= first.keys()
    return next(contested, next(iter(node for node in first if node in second and nested), None))


def _mains(group: Group) -> dict[str, str]:
    """By product the main product that it belongs to."""
    mains = {group.members[main].node: group.members[main].node for main in group.mains}
    joined = {
        group.members[half].node: group.members[branch.main].node
        for branch in group.branches
        for half in (branch.down, branch.up)
    }
    return mains | joined


def _products(group: Group) -> str:
    """``mm + mm_1·mm_2, mm_3``: the main products, with their branches."""
    return ", ".join(
        " + ".join(
            [
                group.members[main].node,
                *(f"{group.members[b.down].node}·{group.members[b.up].node}" for b in group.branches_of(main)),
            ]
        )
        for main in group.mains
    )
