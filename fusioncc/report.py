"""What a plan says to a reader: ``render`` for a terminal, ``decisions`` as Markdown for ``decisions.md``.

Pure functions of the plan. Groups that differ in names only share a row, and so do rejections that differ in the node
only: a model of eighty equal layers still reads in a minute.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from fusioncc.chain_report import CHAIN_COLUMNS, chain_lines, chain_rows, ops_of
from fusioncc.cost_models.cost import ADDED, OVERLAPPING
from fusioncc.decision import Rejected
from fusioncc.group import Branch, Epilogue, Member
from fusioncc.in_words import counted, describe_pools, describe_schedule
from fusioncc.plan import GroupPlan, Plan
from fusioncc.schedule import Candidate

T = TypeVar("T")
DECISION_COLUMNS = ("group", "members", "shapes", "schedule", "why", "estimate", "before → after", "runners-up")
MIB = 1 << 20


def render(plan: Plan) -> str:
    """The plan as text: a summary, one paragraph for each kind of group, then what was rejected and why."""
    lines = [summary(plan), *(text for text in [memory_of(plan)] if text)]
    for groups in alike(plan.groups, group_key):
        group = groups[0]
        lines += [
            "",
            f"{names(groups)}: {describe_schedule(group.schedule)}, tier {group.tier}{runs_as(group)}",
            *(f"    {line}" for line in member_lines(group)),
            f"    estimate    {estimate_of(group)}",
            *(f"    terms       {terms}" for terms in [terms_of(group)] if terms),
            f"    runners-up  {runners_up(group) or 'none'}",
            f"    why         {group.why}",
            *(f"    ruled out   {candidate.kind}: {candidate.reason}" for candidate in illegal(group)),
        ]
    lines += chain_lines(plan.chains)
    if plan.rejections:
        lines += ["", "rejected:"]
    for rejections in alike(plan.rejections, rejection_key):
        first = rejections[0]
        hint = f"; nearest miss: {first.hint}" if first.hint else ""
        lines.append(f"    [{first.rule}] {', '.join(r.node for r in rejections if r.node)}: {first.reason}{hint}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines) + "\n"


def decisions(plan: Plan) -> str:
    """The plan as Markdown: one table of groups, then every schedule ruled out and every rejection with its reason."""
    lines = ["# Decisions", "", summary(plan), "", *(line for text in [memory_of(plan)] if text for line in (text, ""))]
    lines += [f"- {note}" for note in plan.notes] + [""] * bool(plan.notes)
    rows = [decision_row(groups) for groups in alike(plan.groups, group_key)]
    lines += ["## Groups", "", *(table(DECISION_COLUMNS, rows) if rows else ["No group of GEMMs was found."]), ""]
    if plan.chains:
        lines += ["## Chains", "", *table(CHAIN_COLUMNS, chain_rows(plan.chains)), ""]
    ruled_out = [
        (names(groups), candidate.kind, candidate.reason)
        for groups in alike(plan.groups, group_key)
        for candidate in illegal(groups[0])
    ]
    if ruled_out:
        lines += ["## Schedules ruled out", "", *table(("group", "schedule", "reason"), ruled_out), ""]
    rejected = [
        (first.rule, ", ".join(f"`{r.node}`" for r in rejections if r.node), first.reason, first.hint or "none")
        for rejections in alike(plan.rejections, rejection_key)
        for first in rejections[:1]
    ]
    lines += ["## Rejections", ""]
    lines += table(("rule", "node", "reason", "nearest miss"), rejected) if rejected else ["Nothing was rejected."]
    return "\n".join(lines) + "\n"


def summary(plan: Plan) -> str:
    """One line: device, counts, or why the whole graph was kept as it was."""
    if plan.fallback:
        return f"Plan for {plan.device}: the original graph runs unchanged, because {plan.fallback}"
    fused = sum(1 for group in plan.groups if group.schedule.kind != "library")
    before = sum(group.before.kernels for group in plan.groups)
    after = sum(group.after.kernels for group in plan.groups)
    return (
        f"Plan for {plan.device}: {counted(len(plan.groups), 'group')}, {fused} fused, "
        f"{counted(len(plan.rejections), 'rejection')}; {counted(before, 'kernel')} before, {after} after."
        + chains_of(plan)
    )


def chains_of(plan: Plan) -> str:
    """A sentence on the chains, where there are any."""
    if not plan.chains:
        return ""
    claimed = sum(chain.claimed for chain in plan.chains)
    return f" {counted(len(plan.chains), 'chain')} of elementwise ops, {claimed} with a kernel of their own."


def memory_of(plan: Plan) -> str:
    """One line: the peak of the whole graph before and after, and what is held beside it; empty where it is unknown."""
    before, after = plan.before, plan.after
    if before is None or after is None:
        return ""
    held = mib(before.held_bytes)
    held += f" → {mib(after.held_bytes)}" if after.held_bytes != before.held_bytes else ""
    peak = f"{mib(before.peak_bytes)} → {mib(after.peak_bytes)}"
    return f"Peak live bytes of the graph {peak}, beside {held} of inputs and parameters."


def decision_row(groups: list[GroupPlan]) -> tuple[str, ...]:
    """The cells of ``DECISION_COLUMNS`` for groups that differ in names only."""
    group = groups[0]
    before, after = group.before, group.after
    return (
        names(groups),
        "<br>".join(member_names(group)),
        "<br>".join(member_shapes(group)),
        f"**{group.schedule.kind}**, tier {group.tier}{runs_as(group)}<br>{describe_pools(group.schedule)}",
        group.why,
        "<br>".join(text for text in (estimate_of(group), terms_of(group)) if text),
        f"kernels {before.kernels} → {after.kernels}, moved {mib(before.bytes)} → {mib(after.bytes)}, "
        f"peak {mib(before.peak_bytes)} → {mib(after.peak_bytes)}",
        runners_up(group) or "none",
    )


def member_names(group: GroupPlan) -> list[str]:
    """For each main member its node, module path and branches; then what tiles end with."""
    lines = []
    for index in group.mains:
        member = group.members[index]
        text = f"`{member.node}`" + (f" ({member.source})" if member.source else "")
        for branch in group.branches_of(index):
            text += f" + `{group.members[branch.down].node}`·`{group.members[branch.up].node}`"
        lines.append(text)
    for epilogue in group.epilogues:
        lines.append(f"behind {listed(group, epilogue.mains)}")
    return lines


def listed(group: GroupPlan, mains: tuple[int, ...]) -> str:
    return ", ".join(f"`{group.members[main].node}`" for main in mains)


def member_shapes(group: GroupPlan) -> list[str]:
    """The shared LHS, for each main member its weight, bias and branches, with dtypes, and what tiles end with."""
    rows = f"{group.m_symbol} (planned for {group.m})" if group.m_symbol else str(group.m)
    lines = [f"X [{rows}, {group.k}] {group.lhs.dtype}{norm_of(group)}"]
    for index in group.mains:
        lines.append(
            " + ".join([weight_shape(group.members[index]), *(rank(group, b) for b in group.branches_of(index))])
        )
    return [*lines, *(f"{ops_of(each.chain)}: {ends_of(group, each)}" for each in group.epilogues)]


def norm_of(group: GroupPlan) -> str:
    """The norm that tiles carry out, behind the X that they read."""
    norm = group.norm
    if norm is None:
        return ""
    weight = "without a weight" if norm.weight is None else f"weight {norm.weight.dtype}"
    return f", normed by the tiles (epsilon {norm.epsilon:g}, {weight})"


def ends_of(group: GroupPlan, epilogue: Epilogue) -> str:
    """What an epilogue reads beside the products, and what is written."""
    chain = epilogue.chain
    reads = [f"{each.dtype} {list(each.shape)}" for each in epilogue.operands]
    writes = [f"{chain.dtype_of(each.value)} {list(chain.shape_of(each.value))}" for each in chain.results]
    writes += [listed(group, epilogue.kept)] * bool(epilogue.kept)
    return (f"reads {', '.join(reads)}, " if reads else "") + f"writes {', '.join(writes)}"


def member_lines(group: GroupPlan) -> list[str]:
    """Names and shapes together, without Markdown, for ``render``."""
    lhs, *shapes = member_shapes(group)
    pairs = zip(member_names(group), shapes, strict=True)
    return [lhs, *(f"{name.replace('`', '')}: {shape}" for name, shape in pairs)]


def weight_shape(member: Member) -> str:
    batch = f"{member.batch} x " if member.batch > 1 else ""
    return f"{batch}W [{member.k}, {member.n}] {member.weight.dtype}" + (" + bias" if member.bias else "")


def rank(group: GroupPlan, branch: Branch) -> str:
    up = group.members[branch.up]
    saved = ", down product written out" if branch.saved else ""
    return f"r={up.k} {up.weight.dtype}{saved}"


def chosen_candidate(group: GroupPlan) -> Candidate | None:
    """The candidate that was chosen, or the best of its kind where a plan made elsewhere brought another schedule."""
    same_kind = [
        candidate for candidate in group.candidates if candidate.kind == group.schedule.kind and candidate.legal
    ]
    chosen = next((candidate for candidate in same_kind if candidate.schedule == group.schedule), None)
    return chosen or next(iter(same_kind), None)


def estimate_of(group: GroupPlan) -> str:
    """Predicted time, traffic, launches and what binds, of the candidate that was chosen."""
    candidate = chosen_candidate(group)
    if candidate is None or candidate.predicted_us is None:
        return "no estimate"
    estimate = candidate.estimate
    if estimate is None:
        return f"{candidate.predicted_us:.1f} us"
    binds = f", bound by {estimate.binds}" if estimate.binds else ""
    launches = counted(estimate.launches, "launch", "launches")
    return f"{candidate.predicted_us:.1f} us, {mib(estimate.bytes)}, {launches}{binds}"


def terms_of(group: GroupPlan) -> str:
    """What the estimate is made of, us: of those that overlap, the largest counts in each launch; others are added."""
    candidate = chosen_candidate(group)
    if candidate is None or candidate.estimate is None:
        return ""
    terms = {name: f"{name} {us:.1f}" for name, us in candidate.estimate.terms}
    overlapping = ", ".join(terms[name] for name in OVERLAPPING if name in terms)
    return " + ".join([f"{overlapping} at once", *(terms[name] for name in ADDED if name in terms)]) + " us"


def runners_up(group: GroupPlan) -> str:
    """The best candidate of every other legal kind, fastest first, and how much slower the first is; those that cannot
    be estimated come last."""
    best: dict[str, Candidate] = {}
    for candidate in group.candidates:
        if candidate.legal and candidate.kind != group.schedule.kind:
            best[candidate.kind] = min(best.get(candidate.kind, candidate), candidate, key=predicted)
    ranked = sorted(best.values(), key=lambda candidate: (predicted(candidate), candidate.kind))
    texts = [
        f"{c.kind} (no estimate)" if c.predicted_us is None else f"{c.kind} {c.predicted_us:.1f} us" for c in ranked
    ]
    chosen = chosen_candidate(group)
    if ranked and chosen is not None and chosen.predicted_us and ranked[0].predicted_us is not None:
        more = 100 * (ranked[0].predicted_us / chosen.predicted_us - 1)
        texts[0] += f" ({more:+.{0 if more > 1.5 else 1}f} %)"
    return ", ".join(texts)


def predicted(candidate: Candidate) -> float:
    return float("inf") if candidate.predicted_us is None else candidate.predicted_us


def illegal(group: GroupPlan) -> list[Candidate]:
    """Candidates that were ruled out, each kind and reason once."""
    seen = {(c.kind, c.reason): c for c in group.candidates if not c.legal}
    return list(seen.values())


def runs_as(group: GroupPlan) -> str:
    """The emitted kernel, and how it entered the graph, where that is known."""
    if not group.kernel:
        return ""
    return f", kernel {group.kernel}" + (f", inserted as {group.insertion}" if group.insertion else "")


def group_key(group: GroupPlan) -> Hashable:
    return group.signature(), describe_schedule(group.schedule), group.why, estimate_of(group), runs_as(group)


def rejection_key(rejection: Rejected) -> Hashable:
    return rejection.rule, rejection.reason, rejection.hint


def alike(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items with equal keys together, in the order in which each key first appears."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def names(groups: list[GroupPlan]) -> str:
    return ", ".join(group.name for group in groups)


def mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table; bars and line ends inside cells are escaped."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return ["| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in lines]
