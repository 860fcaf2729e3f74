"""Norm groups: the RMSNorm that makes the X of a group is carried out by its tiles, where that is predicted to win.

The group is planned again, over what the norm reads, and the norm's kernel is saved; where nothing is gained, both stay
as they are. What the norm reads was there before the norm, so the graph gets no cycle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from torch import fx

from fusioncc.cost_models.products import norm_launch
from fusioncc.cost_models.vendor import pointwise_cost
from fusioncc.decision import Rejected
from fusioncc.errors import FusionError, PlanError
from fusioncc.group import Group
from fusioncc.passes.attempt import attempted
from fusioncc.passes.end_groups import Covered, EndedGroups
from fusioncc.passes.find_chains import find_chains
from fusioncc.passes.find_norms import FoundNorm, find_norm
from fusioncc.passes.norm_rules import InFront, first_refusal
from fusioncc.passes.plan_chains import relaid
from fusioncc.passes.plan_groups import WITHOUT_KERNEL, Known, Refusals, Setting, is_measured, plan_groups
from fusioncc.passes.predicted import Taking, part_us, taken_in
from fusioncc.passes.read_chains import read_chain
from fusioncc.plan import GroupPlan
from fusioncc.seam import translated, warn


def norm_groups(
    graph: fx.Graph,
    ended: EndedGroups,
    setting: Setting,
    refusals: Mapping[str, Refusals],
    apart: frozenset[str] = frozenset(),
) -> EndedGroups:
    """Take norms into the groups that read what they make, but for those ``apart``.

    Raises:
        PlanError: ``setting.given`` norms the X of a group with what is not there, and ``on_error`` is ``raise``.
    """
    options, given = setting.options, setting.given
    wanted = options.norms != "never" if given is None else any(each.norm for each in given.groups)
    if not (wanted and ended.groups) or isinstance(setting.runnable, Rejected) or options.schedule in WITHOUT_KERNEL:
        return ended
    rejections, lost = list(ended.rejections), set(ended.lost)
    norming = _Norming(graph, setting, refusals, list(ended.groups), dict(ended.covered), rejections, lost)
    return norming.run(apart)


@dataclass
class _Norming:
    graph: fx.Graph
    setting: Setting
    refusals: Mapping[str, Refusals]
    groups: list[GroupPlan]
    covered: Covered
    rejections: list[Rejected]
    lost: set[str]
    known: Known = field(default_factory=dict)

    def run(self, apart: frozenset[str]) -> EndedGroups:
        for at, group in enumerate(self.groups):
            if group.name not in apart:
                self._guarded(at)
        self._check_given()
        return EndedGroups(tuple(self.groups), self.covered, tuple(self.rejections), frozenset(self.lost))

    @cached_property
    def by_name(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def order(self) -> dict[fx.Node, int]:
        return {node: at for at, node in enumerate(self.graph.nodes)}

    @cached_property
    def chains(self) -> dict[fx.Node, tuple[fx.Node, ...]]:
        """By node the chain that it is in, as long as norms are apart."""
        taken = [self.covered[each.name] for each in self.groups if each.schedule.kind != "library"]
        found = find_chains(self.graph, taken, least=1, symbolic=True)
        return {node: chain for chain in found.chains for node in chain}

    def _guarded(self, at: int) -> None:
        """An attempt to norm the X of a group in its tiles; where it fails the group goes without."""
        name = self.groups[at].name
        attempt = partial(translated, f"norming {name} failed", partial(self._try, at), FusionError)
        failed = attempted(attempt, self.setting, ("normed_tiles", name), "the norm stays apart")
        self.rejections += [] if failed is None else [failed]

    def _try(self, at: int) -> None:
        """Take the norm in front of a group into it, where there is one, or say why not."""
        group = self.groups[at]
        found = find_norm(self.by_name[group.lhs.node])
        if not isinstance(found, FoundNorm):
            self.rejections += [] if found is None else [found]
            return
        front = self._front(group, found)
        refused = first_refusal(front)
        if refused is not None:
            self.rejections.append(refused)
            return
        assert front.x is not None
        planned = self._planned(at, replace(group.group, lhs=front.x, norm=front.norm), found)
        if isinstance(planned, GroupPlan):
            self.groups[at] = planned
            self.covered[group.name] |= found.covered
        elif self.setting.options.norms == "auto" and self.setting.given is None:  # a choice, and no refusal
            self.groups[at] = replace(group, why=f"{group.why}; its norm stays apart: {planned.reason}")
        else:
            self.rejections.append(planned)

    def _front(self, group: GroupPlan, found: FoundNorm) -> InFront:
        options = self.setting.options
        front = InFront(group.group, found, self.covered[group.name], options.numerics)
        read = [each for each in (front.x, front.weight) if each is not None]
        return replace(front, relaid=relaid(read, self.by_name) if options.rest == "inductor" else "")

    def _planned(self, at: int, group: Group, found: FoundNorm) -> GroupPlan | Rejected:
        """The group planned behind its norm, or why it goes without."""
        before, given, name = self.groups[at], self.setting.given, found.node.name
        setting = replace(self.setting, options=replace(self.setting.options, on_error="fallback"))
        if given is not None:
            if not _same_norm(group, given.groups[at].group):
                return Rejected("normed_tiles", name, "the plan leaves it apart")
            setting = replace(setting, given=replace(given, groups=(given.groups[at],)))
        ((planned,), _) = plan_groups((group,), setting, self.refusals, self.known)
        if planned.schedule.kind in WITHOUT_KERNEL and is_measured(planned, setting):
            self.lost.add(planned.name)
        taking = Taking("normed_tiles", name, "norm", "norms its X", setting.options.norms == "auto")
        return taken_in(planned, before, taking, self._apart_us(group, found), self.setting)

    def _apart_us(self, group: Group, found: FoundNorm) -> float:
        """What the norm takes in a kernel of its own, or more than the rest of its chain takes without it."""
        nodes = sorted(found.covered, key=self.order.__getitem__)
        whole: Sequence[fx.Node] = self.chains.get(found.node, ())
        if not set(nodes) <= set(whole):
            return pointwise_cost(norm_launch(group), frozenset(), self.setting.device).us
        return part_us(read_chain(nodes, self.order, ""), nodes, whole, self.order, self.setting)

    def _check_given(self) -> None:
        """Groups whose norms are not those of the given plan go without, or the plan is refused."""
        if self.setting.given is None:
            return
        for ours, theirs in zip(self.groups, self.setting.given.groups, strict=True):
            if theirs.norm is None or ours.norm is not None:
                continue
            if theirs.schedule.kind in WITHOUT_KERNEL:
                raise PlanError(f"{ours.name}: {theirs.schedule.kind!r} has no tiles that norm X: its norm has to go")
            reason = "the plan norms its X with what is not in front of it in this graph"
            if self.setting.options.on_error == "raise":
                raise PlanError(f"{ours.name}: {reason}")
            warn(f"{ours.name}: {reason}; the norm stays apart")
            self.rejections.append(Rejected("normed_tiles", ours.name, reason))


def _same_norm(ours: Group, theirs: Group) -> bool:
    """Whether two groups read the same behind the same norm."""
    one, other = ours.signature(), theirs.signature()
    return (one.lhs, one.norm) == (other.lhs, other.norm)
