"""End groups: chains behind the products of a group become epilogues of its tiles, where that is predicted to win.

Each chain is tried with the group whose products it reads. The group is planned again, with what its tiles end with,
and the chain's kernel is saved; where nothing is gained, or the graph would get a cycle, both stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

from torch import fx

from fusioncc.chain import Chain
from fusioncc.decision import Rejected
from fusioncc.errors import FusionError, PlanError
from fusioncc.graph import CASTS, is_mutation, tensor
from fusioncc.group import Epilogue
from fusioncc.passes.attempt import attempted
from fusioncc.passes.chain_head import head_of
from fusioncc.passes.epilogue_form import Behind, as_epilogue, first_refusal, views_of
from fusioncc.passes.exclusions import Contraction
from fusioncc.passes.find_chains import find_chains, inputs_of
from fusioncc.passes.find_rotations import Rotations, find_rotations, read_by
from fusioncc.passes.plan_chains import chain_refusal, relaid
from fusioncc.passes.plan_groups import WITHOUT_KERNEL, Known, Refusals, Setting, is_measured, plan_groups
from fusioncc.passes.predicted import Taking, part_us, taken_in
from fusioncc.passes.read_chains import read_chain
from fusioncc.passes.read_ops import is_fill
from fusioncc.passes.read_rotations import Rotation
from fusioncc.plan import GroupPlan
from fusioncc.seam import translated, warn
from fusioncc.sizes import sizes_of

Covered = dict[str, frozenset[fx.Node]]
"""By group the nodes that it covers."""


@dataclass(frozen=True)
class EndedGroups:
    """The groups with what their tiles end with, the nodes that each covers now, why chains stay apart, and the groups
    that were measured with one more and are no faster so than ``library``."""

    groups: tuple[GroupPlan, ...]
    covered: Covered
    rejections: tuple[Rejected, ...]
    lost: frozenset[str] = frozenset()


def end_groups(
    graph: fx.Graph,
    groups: Sequence[GroupPlan],
    covered: Mapping[str, frozenset[fx.Node]],
    setting: Setting,
    refusals: Mapping[str, Refusals],
    apart: frozenset[str] = frozenset(),
) -> EndedGroups:
    """Take chains into the groups that make their inputs, but for those ``apart``.

    Raises:
        PlanError: ``setting.given`` ends tiles with a chain that is not there, and ``on_error`` is ``raise``.
    """
    options, given = setting.options, setting.given
    wanted = options.epilogues != "never" if given is None else any(each.epilogues for each in given.groups)
    runs = options.numerics != "eager" and not isinstance(setting.runnable, Rejected)
    if not (wanted and runs and groups) or options.schedule in WITHOUT_KERNEL:
        return EndedGroups(tuple(groups), {each.name: covered[each.name] for each in groups}, ())
    ending = _Ending(graph, setting, refusals, list(groups), {each.name: covered[each.name] for each in groups})
    return ending.run(apart)


@dataclass
class _Ending:
    graph: fx.Graph
    setting: Setting
    refusals: Mapping[str, Refusals]
    groups: list[GroupPlan]
    covered: Covered
    rejections: list[Rejected] = field(default_factory=list)
    known: Known = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def run(self, apart: frozenset[str]) -> EndedGroups:
        before, covered = tuple(self.groups), dict(self.covered)
        made = {
            self.by_name[output.node]: (at, output.main)
            for at, group in enumerate(self.groups)
            if group.name not in apart
            for output in group.outputs
        }

        def products(nodes: Sequence[fx.Node]) -> dict[fx.Node, tuple[int, int]]:
            return {each: made[views_of(each)[-1]] for each in inputs_of(nodes) if views_of(each)[-1] in made}

        self.rejections += [why for each, why in self.rotations.refused if any(node in made for node in read_by(each))]
        taken = self.covered.values()
        for found in find_chains(self.graph, taken, least=1, symbolic=True, rotated=self.rotated).chains:
            chain = sorted(found, key=self.order.__getitem__)
            nodes = head_of(chain, products(chain), self.rotated)
            sources = products(nodes)
            owners = [at for at, _ in sources.values()]
            if owners:
                at = max(owners, key=owners.count)
                mains = {node: main for node, (owner, main) in sources.items() if owner == at}
                self._guarded(at, partial(self._try, at, nodes, mains, chain))
        self._check_given(before, covered)
        return EndedGroups(tuple(self.groups), self.covered, tuple(self.rejections), frozenset(self.lost))

    @cached_property
    def by_name(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def order(self) -> dict[fx.Node, int]:
        return {node: at for at, node in enumerate(self.graph.nodes)}

    @cached_property
    def contraction(self) -> Contraction:
        """The groups that are fused."""
        made = Contraction(self.order)
        for each in self.groups:
            if each.schedule.kind != "library":
                made.contract(self.covered[each.name])
        return made

    @cached_property
    def tried(self) -> Setting:
        """The setting under which an attempt is no error."""
        return replace(self.setting, options=replace(self.setting.options, on_error="fallback"))

    @cached_property
    def writes(self) -> list[int]:
        """Where the graph writes in place."""
        return [at for node, at in self.order.items() if is_mutation(node)]

    @cached_property
    def rotations(self) -> Rotations:
        return find_rotations(self.graph)

    @cached_property
    def rotated(self) -> dict[fx.Node, Rotation]:
        """The rotations that may be in a chain, by their nodes."""
        taken = frozenset[fx.Node]().union(*self.covered.values())
        return {node: each for node, each in self.rotations.of.items() if taken.isdisjoint(each.nodes)}

    def _written_between(self, nodes: Sequence[fx.Node]) -> bool:
        places = [self.order[node] for node in nodes]
        return any(min(places) < at < max(places) for at in self.writes)

    def _apart_us(self, whole: Sequence[fx.Node], nodes: Sequence[fx.Node], head: Chain) -> float:
        """What a chain takes in a kernel of its own more than the rest of it would without its ``head``, which are the
        ``nodes`` of it, us. Inductor casts in whatever reads the value."""
        if self.setting.options.rest == "inductor" and all(node.target in CASTS for node in nodes):
            return 0.0
        return part_us(head, nodes, whole, self.order, self.setting, self.rotated)

    def _guarded(self, at: int, attempt: Callable[[], None]) -> None:
        """An ``attempt`` to end the tiles of a group; where it fails the group goes without."""
        name = self.groups[at].name
        ending = partial(translated, f"ending {name} failed", attempt, FusionError)
        failed = attempted(ending, self.setting, ("ends_tiles", name), "the chain stays apart")
        self.rejections += [] if failed is None else [failed]

    def _try(self, at: int, nodes: tuple[fx.Node, ...], mains: Mapping[fx.Node, int], whole: Sequence[fx.Node]) -> None:
        """End the tiles of a group with the head of a chain, of whose inputs ``mains`` are products, or say why not."""
        group = self.groups[at]
        chain = read_chain(nodes, self.order, f"{group.name}_end{len(group.epilogues)}", self.rotated)
        number = {operand.node: number for number, operand in enumerate(chain.inputs)}
        members = [self.by_name[member.node] for member in group.members]
        written = self._written_between([*members, *nodes])
        made = {number[node.name]: main for node, main in mains.items()}
        behind = Behind(group.group, chain, made, _rows_of(self.by_name[group.lhs.node]), written)
        views = {main: views_of(node) for node, main in mains.items()}
        inside = {*self.covered[group.name], *nodes, *(view for each in views.values() for view in each)}
        fills = [each for node in nodes for each in node.all_input_nodes if is_fill(each)]
        inside |= {each for each in fills if all(user in inside for user in each.users)}
        refused = self._refusal(behind, frozenset(inside))
        if refused is not None:
            self.rejections.append(refused)
            return
        kept = (main for main, each in views.items() if any(user not in inside for view in each for user in view.users))
        planned = self._planned(at, as_epilogue(behind, tuple(kept)), self._apart_us(whole, nodes, chain))
        if isinstance(planned, GroupPlan):
            self.contraction.contract(frozenset(inside), self.covered[group.name])
            self.groups[at], self.covered[group.name] = planned, frozenset(inside)
        elif self.setting.options.epilogues == "auto" and self.setting.given is None:  # a choice, and no refusal
            reason = f"; ends with nothing: {planned.reason}"
            self.groups[at] = replace(group, why=group.why.removesuffix(reason) + reason)
        else:
            self.rejections.append(planned)

    def _refusal(self, behind: Behind, inside: frozenset[fx.Node]) -> Rejected | None:
        """Why a chain and its group do not become one node of the graph, with what is ``inside``."""
        refused = first_refusal(behind)
        if refused is not None:
            return refused
        first = behind.chain.ops[0].node
        beside = [operand for at, operand in enumerate(behind.chain.inputs) if at not in behind.mains]
        moved = relaid(beside, self.by_name) if self.setting.options.rest == "inductor" else ""
        if moved:
            return Rejected("laid_out", first, moved)
        made = {view for operand in beside for view in views_of(self.by_name[operand.node])}
        if made & self.covered[behind.group.name] or self.contraction.leads_back(inside):
            why = "what the chain reads beside the products is computed from one of them, or with them"
            return Rejected("independent", first, why)
        return chain_refusal(behind.chain, self.setting, "fp32")

    def _planned(self, at: int, epilogue: Epilogue, apart_us: float) -> GroupPlan | Rejected:
        """The group planned with the epilogue, or why it goes without."""
        before, given, first = self.groups[at], self.setting.given, epilogue.chain.ops[0].node
        group = replace(before.group, epilogues=(*before.epilogues, epilogue))
        setting = self.tried
        if given is not None:
            wanted = [each.signature() for each in given.groups[at].epilogues]
            if epilogue.signature() not in wanted:
                return Rejected("ends_tiles", first, "the plan ends no tiles with it")
            if len(group.epilogues) < len(wanted):  # planned when the last one is there
                return replace(before, epilogues=group.epilogues)
            setting = replace(setting, given=replace(given, groups=(given.groups[at],)))
        ((planned,), _) = plan_groups((group,), setting, self.refusals, self.known)
        if planned.schedule.kind in WITHOUT_KERNEL and is_measured(planned, setting):
            self.lost.add(planned.name)
        taking = Taking("ends_tiles", first, "chain", "ends with what follows", setting.options.epilogues == "auto")
        return taken_in(planned, before, taking, apart_us, self.setting)

    def _check_given(self, before: Sequence[GroupPlan], covered: Covered) -> None:
        """Groups whose ends are not those of the given plan are what they were ``before``, or the plan is refused."""
        if self.setting.given is None:
            return
        for at, (ours, theirs) in enumerate(zip(self.groups, self.setting.given.groups, strict=True)):
            if theirs.epilogues and theirs.schedule.kind in WITHOUT_KERNEL:
                kind = theirs.schedule.kind
                raise PlanError(f"{ours.name}: {kind!r} has no tiles that end: its epilogues have to go")
            if len(ours.epilogues) == len(theirs.epilogues):
                continue
            reason = "the plan ends its tiles with ops that do not follow it in this graph"
            if self.setting.options.on_error == "raise":
                raise PlanError(f"{ours.name}: {reason}")
            warn(f"{ours.name}: {reason}; they stay apart")
            self.rejections.append(Rejected("ends_tiles", ours.name, reason))
            self.groups[at], self.covered[ours.name] = before[at], covered[ours.name]


def _rows_of(lhs: fx.Node) -> int:
    """The number of rows of X."""
    value = tensor(lhs)
    assert value is not None
    return prod(sizes_of(value.shape[:-1]))
