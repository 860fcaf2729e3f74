"""Plan groups: rank the schedules of each group, apply the user's wishes, and state the decision in words.

What was found becomes what will run: a :class:`~fusioncc.plan.GroupPlan` for each group. The choice is the legal
candidate with the lowest predicted time, a schedule forced by name, one that was measured for this card, or that of a
plan made elsewhere.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fusioncc.autotune.choose import rank
from fusioncc.autotune.pick import ON_REQUEST, margin, pick
from fusioncc.codegen import check
from fusioncc.config import Options
from fusioncc.cost_models import footprint
from fusioncc.decision import Decision, Rejected
from fusioncc.descriptors import TMA_CAPABILITY
from fusioncc.device import DEPENDENT_CAPABILITY, Device
from fusioncc.errors import EmissionError, FusionError, IllegalScheduleError, PlanError
from fusioncc.group import Group
from fusioncc.packing import PACKED, laid_out_alike
from fusioncc.passes.cap_streams import Caps, cap_streams
from fusioncc.passes.tuned_choice import Entries, tuned_choice
from fusioncc.plan import GroupPlan, Plan
from fusioncc.schedule import SCHEDULES, Candidate, Schedule
from fusioncc.seam import translated

if TYPE_CHECKING:
    from fusioncc.passes.tune_groups import Tuning

LIBRARY = Schedule("library")
WITHOUT_KERNEL = ("library", "packed", "merged")
"""Kinds that run on the vendor's kernels alone: nothing is emitted for them."""
AS_EAGER = ("library", "packed")
"""Kinds that round where eager does."""
TIERS = ("eager", "fp32", "relaxed")
"""Rounding tiers, strictest first."""


@dataclass(frozen=True)
class Setting:
    """What a graph is planned for: options, device profile, whether kernels can run, a plan made elsewhere, the name of
    the card as its driver has it (empty where none is meant), and who measures on it."""

    options: Options
    device: Device
    runnable: Decision
    given: Plan | None = None
    card: str = ""
    tuning: "Tuning | None" = None
    measured: Entries | None = field(default_factory=dict)
    """Entries that go before those of the database; None: no entry at all is taken."""


Refusals = Mapping[str, tuple[Rejected, ...]]
"""By kind of schedule, what the weights of a group say against it."""
UNKNOWN = "nothing is known of the graph that holds the weights"


Known = dict[Hashable, dict[str, Any]]
"""What was decided of groups under one setting, for those that are equal but for their names."""


def plan_groups(
    groups: tuple[Group, ...],
    setting: Setting,
    refusals: Mapping[str, Refusals] | None = None,
    known: Known | None = None,
) -> tuple[tuple[GroupPlan, ...], tuple[Rejected, ...]]:
    """A decision for every group, and a rejection for every wish that could not be met.

    Args:
        refusals: by group name. None: nothing is known of the weights, and nothing is merged or packed.
        known: is read and added to. Of calls with one, only ``on_error`` of the setting may differ.

    Raises:
        IllegalScheduleError: a forced schedule is illegal, or a cap cannot be had, and ``on_error="raise"``.
        PlanError: a schedule of the given plan is not legal for its group.
        FusionError: planning a group failed in another way; the message names the group and the cause.
    """
    given = setting.given
    if given is not None and groups and not is_made_for(given, groups, setting.options.pack_weights):
        raise PlanError("the groups of the plan are not those of this graph, in this order")
    planned, rejections = [], []
    known = {} if known is None else known
    for position, group in enumerate(groups):
        unknown = (Rejected("checkable", group.name, UNKNOWN),)
        refused_kinds = (
            dict.fromkeys((*PACKED, "merged"), unknown) if refusals is None else refusals.get(group.name, {})
        )
        alike = _alike(group, refused_kinds) if given is None else None
        if alike in known:
            planned.append(GroupPlan(**_fields(group), **known[alike]))
            continue
        action = partial(_plan, group, position, setting, refused_kinds)
        decided, refused = translated(f"planning {group.name} failed", action, FusionError)
        planned.append(GroupPlan(**_fields(group), **decided))
        rejections += refused
        if not refused and alike is not None:
            known[alike] = decided
    return tuple(planned), tuple(rejections)


def is_made_for(plan: Plan, groups: tuple[Group, ...], packs: bool) -> bool:
    """Whether a plan was made for these groups, with whatever end or norm. Where weights are packed, they may lie in
    another layout by now than the plan knows."""
    alike = laid_out_alike if packs else Group.signature

    def seen(group: Group) -> Group:
        return alike(group.bare).signature()

    return [seen(each.group) for each in plan.groups] == [seen(each) for each in groups]


def _alike(group: Group, refusals: Refusals) -> Hashable:
    """Equal for groups of which the same is decided under one setting: they differ in names only, of which the same
    are equal."""
    said = ((kind, found[0].rule, found[0].reason) for kind, found in refusals.items() if found)
    nodes = [operand.node for operand in group.operands]
    return group.signature(), tuple(map(nodes.index, nodes)), tuple(said)


def _fields(group: Group) -> dict[str, Any]:
    return {field.name: getattr(group, field.name) for field in fields(Group)}


def _plan(group: Group, position: int, setting: Setting, refusals: Refusals) -> tuple[dict[str, Any], list[Rejected]]:
    """What a plan adds to a group, and the wishes that could not be met."""
    candidates = _candidates(group, setting, refusals, _kinds(setting, position))
    chosen, why, refused = _choose(group, candidates, setting, position)
    if chosen.kind != setting.options.schedule:
        refused += refusals.get(setting.options.schedule, ())
    caps = Caps.asked(setting.options) if setting.given is None else Caps.of(chosen)
    chosen, uncapped = cap_streams(chosen, caps, group.name, setting.device, setting.runnable)
    if uncapped and setting.options.on_error == "raise":
        raise IllegalScheduleError(f"{group.name}: {uncapped[0].reason}")
    if setting.given is None:
        tier = tier_of(chosen, setting.options)
    else:
        tier = _tier_of_plan(chosen, setting.given.groups[position], setting)
    return _decided(group, chosen, why, candidates, tier), refused + uncapped


def as_library(planned: GroupPlan, why: str) -> GroupPlan:
    """The group left as it was, because of ``why``, and so what stands behind it and in front."""
    before = footprint(planned.group.bare, LIBRARY)
    left = replace(planned.bare, schedule=LIBRARY, why=why, tier="eager", kernel="", insertion="")
    return replace(left, before=before, after=before)


def tier_of(schedule: Schedule, options: Options) -> str:
    """Rounding tier of a schedule under the user's ceiling: vendor GEMMs round as eager does."""
    return "eager" if schedule.kind in AS_EAGER else options.numerics


def as_run(group: Group, options: Options) -> Group:
    """The group as its kernels find it: ``rest="eager"`` does not copy an input that is not aligned, as Inductor
    does."""
    return replace(group, lhs=replace(group.lhs, aligned=False)) if options.rest == "eager" else group


def is_measured(planned: GroupPlan, setting: Setting) -> bool:
    """Whether what a group runs was measured for it, and not predicted."""
    return tuned_choice(as_run(planned.group, setting.options), planned.candidates, setting) is not None


def _kinds(setting: Setting, position: int) -> tuple[str, ...]:
    """Kinds to consider: those that pack weights are, where the user packs weights or names one."""
    named = {setting.options.schedule, setting.given.groups[position].schedule.kind if setting.given else ""}
    return tuple(kind for kind in SCHEDULES if kind not in PACKED or setting.options.pack_weights or kind in named)


def _candidates(group: Group, setting: Setting, unfit: Refusals, kinds: tuple[str, ...]) -> tuple[Candidate, ...]:
    ranked = rank(as_run(group, setting.options), setting.device, kinds, setting.options.numerics)
    refusal = _blanket_refusal(setting)
    refusals = {kind: refusal for kind in SCHEDULES if refusal and kind not in WITHOUT_KERNEL}
    legal = {each.kind for each in ranked if each.legal}
    refusals |= {
        kind: f"{found[0].rule}: {found[0].reason}" for kind, found in unfit.items() if found and kind in legal
    }
    judged = (
        replace(each, legal=False, reason=refusals[each.kind]) if each.kind in refusals else each for each in ranked
    )
    limit = setting.options.max_peak_increase
    if limit is not None:
        peak = footprint(group, LIBRARY).peak_bytes
        judged = (_within_memory(group, each, peak, limit) for each in judged)
    return tuple(sorted(judged, key=lambda each: not each.legal))


def _within_memory(group: Group, candidate: Candidate, peak: int, limit: int) -> Candidate:
    """The candidate, ruled out where it raises the ``peak`` of what its group holds by more than ``limit`` bytes."""
    if not candidate.legal or candidate.kind == "library" or candidate.schedule is None:
        return candidate
    more = footprint(group, candidate.schedule).peak_bytes - peak
    if more <= limit:
        return candidate
    reason = f"raises the peak of the group by {more} bytes, max_peak_increase={limit} allows less"
    return replace(candidate, legal=False, reason=reason)


def _blanket_refusal(setting: Setting) -> str:
    """A reason that no emitted kernel may be used at all; empty when there is none."""
    if isinstance(setting.runnable, Rejected):
        return f"{setting.runnable.rule}: {setting.runnable.reason}"
    if setting.options.numerics == "eager":
        return "rounding_tier: fused kernels keep fp32 where eager rounds; numerics='eager' allows vendor GEMMs only"
    return ""


def _choose(
    group: Group, candidates: tuple[Candidate, ...], setting: Setting, position: int
) -> tuple[Schedule, str, list[Rejected]]:
    if setting.given is not None:
        return _given(as_run(group, setting.options), candidates, setting.given.groups[position], setting.device)
    measured = tuned_choice(as_run(group, setting.options), candidates, setting)
    if measured is not None:
        return *measured, []
    forced = setting.options.schedule
    if forced != "auto":
        candidate = next((c for c in candidates if c.kind == forced and c.legal and c.schedule), None)
        if candidate is not None and candidate.schedule is not None:
            return candidate.schedule, "forced by schedule=", []
        reason = next((c.reason for c in candidates if c.kind == forced), "no such candidate")
        if setting.options.on_error == "raise":
            raise IllegalScheduleError(f"{group.name}: schedule {forced!r} is illegal: {reason}")
        return (
            LIBRARY,
            f"{forced} was forced but is illegal",
            [Rejected("forced_schedule", group.name, f"{forced}: {reason}")],
        )
    best = pick(candidates, group)
    return best.schedule or LIBRARY, why_chosen(best, candidates, group), []


def why_chosen(best: Candidate, candidates: tuple[Candidate, ...], group: Group) -> str:
    """Why a candidate runs: its time beside the next best, and what that lacks where it is faster."""
    legal = [each for each in candidates if each.legal and each is not best and each.predicted_us is not None]
    timed = [(each.predicted_us or 0.0, each.kind, each) for each in legal]
    timed.sort(key=lambda each: each[:2])
    others = [other for other in timed if other[1] not in ON_REQUEST]
    asked = [f"; on request, {kind} is predicted {us:.1f} us" for us, kind, _ in timed if kind in ON_REQUEST]
    faster = asked[0] if asked and timed[0][1] in ON_REQUEST and timed[0][0] < (best.predicted_us or 0.0) else ""
    if not others or best.predicted_us is None:
        return f"the only legal schedule{faster}"
    us, kind, other = others[0]
    every = " of every other kind" * (kind == "two_pool")
    lacks = f" (would have to be {margin(other, best.kind, group):.1%} ahead{every})" if us < best.predicted_us else ""
    binds = f", bound by {best.estimate.binds}" if best.estimate is not None and best.estimate.binds else ""
    return f"predicted {best.predicted_us:.1f} us against {us:.1f} us for {kind}{lacks}{binds}{faster}"


def beyond(schedule: Schedule, device: Device) -> str:
    """What a schedule needs that ``device`` is too old for; empty if nothing."""
    for what, least, used in (
        ("TMA", TMA_CAPABILITY, any(pool.tile.tma for pool in schedule.pools)),
        ("a launch that starts early", DEPENDENT_CAPABILITY, any(pool.dependent for pool in schedule.pools)),
    ):
        if used and device.capability < least:
            return f"{what} needs compute capability {least}, {device.name} has {device.capability}"
    return ""


def _given(
    group: Group, candidates: tuple[Candidate, ...], wanted: GroupPlan, device: Device
) -> tuple[Schedule, str, list[Rejected]]:
    kind = wanted.schedule.kind
    candidate = next((c for c in candidates if c.kind == kind), None)
    if candidate is None or not candidate.legal:
        reason = candidate.reason if candidate is not None else f"unknown kind {kind!r}"
        if kind == "library":
            return LIBRARY, "as planned", []
        raise PlanError(f"{group.name}: the plan's schedule {kind!r} is illegal here: {reason}")
    too_new = beyond(wanted.schedule, device)
    if too_new:
        raise PlanError(f"{group.name}: the plan's schedule is illegal here: {too_new}")
    if kind in WITHOUT_KERNEL:
        if wanted.schedule.pools:
            raise PlanError(f"{group.name}: the plan gives pools to {kind!r}, which has none")
    else:
        try:
            check(group, wanted.schedule, wanted.tier)
        except EmissionError as error:
            raise PlanError(f"{group.name}: the plan's schedule is illegal here: {error}") from error
    return wanted.schedule, "as planned", []


def _tier_of_plan(chosen: Schedule, wanted: GroupPlan, setting: Setting) -> str:
    """The tier a plan asks for, under the user's ceiling."""
    if wanted.tier not in TIERS or TIERS.index(wanted.tier) > TIERS.index(setting.options.numerics):
        raise PlanError(
            f"{wanted.name}: the plan's tier {wanted.tier!r} is not allowed under numerics={setting.options.numerics!r}"
        )
    if chosen.kind == "merged" and wanted.tier != "relaxed":
        raise PlanError(f"{wanted.name}: merging is of the tier 'relaxed', not {wanted.tier!r} as the plan says")
    return "eager" if chosen.kind in AS_EAGER else wanted.tier


def _decided(group: Group, chosen: Schedule, why: str, candidates: tuple[Candidate, ...], tier: str) -> dict[str, Any]:
    return {
        "schedule": chosen,
        "why": why,
        "tier": tier,
        "candidates": candidates,
        "before": footprint(group, LIBRARY),
        "after": footprint(group, chosen),
    }
