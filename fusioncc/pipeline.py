"""The pipeline: from an FX graph to a plan, and from a plan to a rewritten graph, as a list of named steps."""

import hashlib
from dataclasses import dataclass, replace

import msgspec
from torch import fx

from fusioncc.codegen.launch import EmittedModule
from fusioncc.config import Options
from fusioncc.cost_models.launches import merged_weight
from fusioncc.decision import Rejected
from fusioncc.errors import PlanError
from fusioncc.graph import is_backward
from fusioncc.group import DTYPE_BYTES, Group
from fusioncc.packing import PACKED, buffer_shape, places
from fusioncc.passes.build_chains import build_chains
from fusioncc.passes.build_groups import build_groups
from fusioncc.passes.canonicalize import canonicalize
from fusioncc.passes.choose_groups import choose_groups
from fusioncc.passes.compile_kernels import compile_kernels
from fusioncc.passes.emit_groups import emit_groups
from fusioncc.passes.end_groups import EndedGroups, end_groups
from fusioncc.passes.erase_checks import erase_checks
from fusioncc.passes.find_alternatives import find_alternatives
from fusioncc.passes.find_branches import find_branches
from fusioncc.passes.find_groups import Found, find_groups
from fusioncc.passes.find_regions import find_regions
from fusioncc.passes.graph_memory import graph_memory
from fusioncc.passes.insert_kernels import HOLDING, HeldBy, insert_kernels, insertion_of
from fusioncc.passes.merge_rules import check_merge
from fusioncc.passes.norm_groups import norm_groups
from fusioncc.passes.pack_rules import check_packs
from fusioncc.passes.plan_chains import plan_chains
from fusioncc.passes.plan_groups import Known, Setting, is_made_for, is_measured, plan_groups
from fusioncc.passes.tune_groups import deadline_of, one_meter, tune_groups, tunes, why_untuned
from fusioncc.passes.tuned_choice import Entries
from fusioncc.passes.weight_rules import Weights
from fusioncc.plan import SCHEMA, GroupPlan, Plan


@dataclass(frozen=True)
class Drafted:
    """A plan, the emitted module of each of its groups (by group name) and of its chains (by kernel), not inserted
    yet; what had been measured for it, and the groups that were to end with nothing."""

    plan: Plan
    modules: dict[str, EmittedModule]
    chain_modules: dict[str, EmittedModule]
    measured: Entries | None
    apart: frozenset[str] = frozenset()


ROUNDS = 4
"""In so many rounds of tuning a group with two ends has been measured with both, with either and with none."""


def find(graph: fx.Graph, options: Options) -> Found:
    """Groups of a functional ATen graph, of which some may exclude each other, and every refusal. Backward graphs give
    nothing."""
    if is_backward(graph):
        return Found((), (Rejected("forward_only", "graph", "backward graphs are left as they are for now"),))
    gemms = canonicalize(graph)
    branches = find_branches(gemms)
    regions, refused = find_regions(gemms, branches, options.max_rank_fraction)
    alternatives = find_alternatives(gemms, branches, regions, options.max_rank_fraction)
    found = find_groups(graph, regions, alternatives)
    offered = {node.name for chosen in alternatives for region in chosen for node in region.halves}
    settled = tuple(each for each in refused if each.rule != "joined_once" or each.node not in offered)
    return replace(found, rejections=settled + found.rejections)


def draft(graph: fx.Graph, setting: Setting, form: str = "") -> Drafted:
    """Decide everything for a graph and emit its modules; the graph is only read. Where groups are tuned, the graph is
    planned again with what was measured. A group that is better off without its end is another one, so that goes on
    until nothing new is measured: each key is searched once, and all have one deadline where a time was named. Of n
    ends there are 2^n choices, so from round ``ROUNDS`` on a group that loses an end loses all of them.

    Args:
        form: how kernels will enter it, where that is known.

    Raises:
        PlanError: ``setting.given`` belongs to another graph.
        IllegalScheduleError: a forced schedule is illegal under ``on_error="raise"``.
    """
    found = find(graph, setting.options)
    if not tunes(setting):
        return _draft(graph, found, setting, form)
    with one_meter(setting, found.groups) as measuring:
        return _tuned(graph, found, measuring, form)


def _tuned(graph: fx.Graph, found: Found, setting: Setting, form: str) -> Drafted:
    """Drafted, and planned again with what is measured for its groups now."""
    drafted = _draft(graph, found, setting, form)
    deadline = deadline_of(setting)
    searched, rounds = True, 0
    while searched and tunes(setting):
        measured, searched = tune_groups(drafted.plan.groups, setting, deadline)
        rounds += 1
        if measured != setting:
            setting, before = measured, drafted
            drafted = _draft(graph, found, setting, form, before.apart)
            losing = _otherwise_ended(before.plan, drafted.plan) if rounds >= ROUNDS else frozenset()
            if losing:
                drafted = _draft(graph, found, setting, form, before.apart | losing)
    return drafted


def _otherwise_ended(one: Plan, other: Plan) -> frozenset[str]:
    """The groups of both plans that do not begin and end alike."""
    before = {each.name: (each.norm, each.epilogues) for each in one.groups}
    alike = {each.name: (each.norm, each.epilogues) for each in other.groups}
    return frozenset(name for name, what in alike.items() if before.get(name, what) != what)


def _draft(graph: fx.Graph, found: Found, setting: Setting, form: str, apart: frozenset[str] = frozenset()) -> Drafted:
    """One plan for what was found; tiles of groups that are named in ``apart`` begin and end with nothing."""
    mark = fingerprint(found)
    given, packs = setting.given, setting.options.pack_weights
    wanted = {each.name for each in (found.groups if given is None else given.groups)}
    groups = tuple(each for each in found.groups if each.name in wanted)
    elsewhere = given is not None and found.groups and given.fingerprint != mark
    if given is not None and elsewhere and not (packs and is_made_for(given, groups, packs)):
        marks = f"fingerprint {given.fingerprint}, this graph has {mark}"
        hint = "; one that keeps down products for a backward differs from one under no_grad"
        raise PlanError(f"the plan was made for another graph ({marks}){hint}")
    weights = Weights(graph)
    rest = "inductor" if form == "visible" else setting.options.rest
    unpacked = {kind: check_packs(groups, weights, packs, kind, rest) for kind in PACKED}
    refusals = {
        group.name: {
            **{kind: unpacked[kind][group.name] for kind in PACKED},
            "merged": check_merge(group, weights, setting.options.numerics),
        }
        for group in groups
    }
    tried = replace(setting, options=replace(setting.options, on_error="fallback"))
    known: Known = {}
    planned, unmet = plan_groups(groups, tried, refusals, known)
    planned, left_out = choose_groups(graph, planned, found.covered, given=given is not None)
    if left_out or unmet:  # wishes count for what was chosen
        planned, unmet = plan_groups(tuple(each.group for each in planned), setting, refusals, known)
    ended = end_groups(graph, planned, found.covered, setting, refusals, apart)
    ended = norm_groups(graph, ended, setting, refusals, apart)
    unsure = _unsure(planned, ended, setting)
    if unsure:
        return _draft(graph, found, setting, form, apart | unsure)
    emitted = emit_groups(ended.groups, setting.options.on_error, setting.options.trace)
    rejections = found.rejections + left_out + unmet + ended.rejections + emitted.rejections
    notes = _notes(emitted.groups, setting)
    before, after = graph_memory(graph, (), emitted.groups)
    taken = [ended.covered[each.name] for each in emitted.groups if each.schedule.kind != "library"]
    chains = plan_chains(graph, setting, taken)
    plan = Plan(
        SCHEMA,
        setting.device.name,
        mark,
        emitted.groups,
        rejections + chains.rejections,
        notes,
        before=before,
        after=after,
        chains=chains.chains,
    )
    return Drafted(plan, emitted.modules, chains.modules, setting.measured, apart)


def _unsure(bare: tuple[GroupPlan, ...], ended: EndedGroups, setting: Setting) -> frozenset[str]:
    """The groups that were measured with more than they begin and end with now, and lost; of which nobody has measured
    what is left, but the ``bare`` ones have been: they go without, so that what runs was measured."""
    alone = {each.name: each for each in bare}
    partly = [each for each in ended.groups if each.name in ended.lost and (each.epilogues or each.norm)]
    return frozenset(
        each.name for each in partly if not is_measured(each, setting) and is_measured(alone[each.name], setting)
    )


def rewrite(graph: fx.Graph, setting: Setting, form: str, held_by: HeldBy | None = None) -> Plan:
    """Plan a graph, build its kernels and insert them; returns the plan as carried out. ``held_by`` names what will
    hold the weights that are merged or packed; without it such products run one by one.

    A group whose kernel does not build keeps its original nodes: the plan says so, and one warning names group and
    cause (under ``on_error="raise"`` the error is raised). One whose tiles were to end with a chain is planned again
    without it first, with what is measured by then.
    """
    erase_checks(graph)
    drafted = draft(graph, setting, form)
    compile_kernels(drafted.plan.groups, drafted.modules, drafted.plan.chains, drafted.chain_modules, setting)
    built = build_groups(drafted.plan.groups, drafted.modules, setting)
    if built.endless and setting.given is None:
        failed = built.rejections
        setting = replace(setting, measured=drafted.measured)  # nothing is tuned here: other ranks may have built all
        drafted = _draft(graph, find(graph, setting.options), setting, form, drafted.apart | built.endless)
        built = build_groups(drafted.plan.groups, drafted.modules, setting)
        built = replace(built, rejections=failed + built.rejections)
    after = drafted.plan.after if built.groups == drafted.plan.groups else graph_memory(graph, built.groups)[0]
    ready = [(each.planned.group, each.emitted, each.module) for each in built.ready]
    chains = build_chains(drafted.plan.chains, drafted.chain_modules, setting)
    running = [(each.planned, each.emitted, each.module) for each in chains.ready]
    insert_kernels(graph, ready, form, holding_groups(built.groups), held_by, running)
    insertion = {each.planned.name: insertion_of(each.emitted, form) for each in built.ready}
    insertion |= {group.name: "call" for _, group in holding_groups(built.groups)}
    groups = tuple(replace(group, insertion=insertion.get(group.name, "")) for group in built.groups)
    inserted = {each.planned.name for each in chains.ready}
    planned = tuple(replace(each, insertion=form if each.name in inserted else "") for each in chains.chains)
    rejections = drafted.plan.rejections + built.rejections + chains.rejections
    return replace(drafted.plan, groups=groups, rejections=rejections, after=after, chains=planned)


def holds_weights(planned: GroupPlan) -> bool:
    """Whether a group runs over merged or packed weights, which a holder has to keep."""
    return planned.schedule.kind in ("merged", *PACKED)


def holding_groups(groups: tuple[GroupPlan, ...]) -> list[tuple[str, Group]]:
    """The groups whose products are calls alone, over merged or packed weights, each behind its kind of schedule."""
    return [(planned.schedule.kind, planned.group) for planned in groups if planned.schedule.kind in HOLDING]


def fingerprint(found: Found) -> str:
    """Identifies the groups of a graph by shapes, dtypes, layouts and order, without names."""
    signatures = [group.signature() for group in found.groups]
    return hashlib.sha256(msgspec.json.encode(signatures)).hexdigest()[:16]


def _held(kind: str, group: Group) -> str:
    """What becomes of the weights of a group, for a note."""
    if kind == "merged":
        held = sum(merged_weight(group, main).bytes for main in group.joined)
        return f"merged weights hold {held} bytes beside the weights; a write through .data needs refresh()"
    rows, columns = buffer_shape(group, kind)
    size = f"[{rows}, {columns}], {rows * columns * DTYPE_BYTES[group.lhs.dtype]} bytes,"
    return f"{len(places(group, kind))} parameters move into one buffer {size} in the first call, until unpack()"


def _notes(groups: tuple[GroupPlan, ...], setting: Setting) -> tuple[str, ...]:
    notes = []
    if isinstance(setting.runnable, Rejected):
        notes.append(f"{setting.runnable.reason}; {setting.runnable.hint}".rstrip("; "))
    untuned = why_untuned(setting) if setting.options.autotune != "none" else ""
    notes += [f"autotune: nothing is measured: {untuned}"] if untuned else []
    notes += [f"{each.name}: {_held(each.schedule.kind, each.group)}" for each in groups if holds_weights(each)]
    return tuple(notes)
