"""What ``fusioncc traffic`` prints: the bytes of the chosen schedule and its runner-up in closed form, and crossovers.

Imports sympy, which planning does without.
"""

from typing import Any

from fusioncc.autotune.choose import best
from fusioncc.autotune.pick import ON_REQUEST
from fusioncc.cost_models.closed_form import ClosedForm, by_dtype, by_launch, closed_form
from fusioncc.cost_models.crossovers import LIBRARY, MOST_ROWS, free_rank, merged_pays, second_user
from fusioncc.cost_models.letters import lettered
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.plan import GroupPlan, Plan
from fusioncc.report import MIB, alike, mib, names, summary
from fusioncc.schedule import Schedule

HOLDS = "A form holds while what fits into the L2 still fits, and vendor GEMMs keep their tiles."


def traffic_report(plan: Plan, device: Device) -> str:
    """A paragraph for each kind of group of a plan for ``device``. What has no size to count with is listed with its
    reason."""
    lines = [summary(plan), HOLDS]
    for groups in alike(plan.groups, lambda group: (group.signature(), group.schedule)):
        lines += ["", f"{names(groups)}: {sizes(groups[0])}", *group_lines(groups[0], device)]
    unknown = [each for each in plan.rejections if each.rule == "sizes"]
    lines += ["", *(f"cannot count {each.node}: {each.reason}" for each in unknown)] if unknown else []
    return "\n".join(lines) + "\n"


def sizes(group: GroupPlan) -> str:
    """Every letter with its number; of a symbolic M, the hint."""
    letters = lettered(group.group)
    used = [f"{symbol} = {size}" for symbol, size in letters.sizes.items()]
    used[0] += f" (planned for, {group.m_symbol} in the graph)" if group.m_symbol else ""
    widths = [f"{symbol} = {size}" for size, symbol in sorted(letters.elements.items())]
    return f"{', '.join(used)}; bytes of an element {', '.join(widths)}"


def group_lines(group: GroupPlan, device: Device) -> list[str]:
    """Forms of the chosen schedule and the runner-up, then crossovers."""
    timed = [each.schedule for each in group.candidates if each.legal and each.schedule and each.predicted_us]
    others = [each for each in timed if each.kind not in (group.schedule.kind, *ON_REQUEST)]
    lines = form_lines(group, group.schedule, "chosen", device)
    lines += form_lines(group, others[0], "runner-up", device) if others else []
    if not group.branches or group.epilogues:  # merged products end with nothing
        return lines
    against = {each.kind: each for each in (group.schedule, LIBRARY) if each.kind != "merged"}
    for each in against.values():
        lines += merged_lines(group, each, device)
    inline = next((each for each in (group.schedule, *others) if each.kind == "inline"), None)
    lines += [] if inline is None else [free_line(group, inline, device)]
    return lines + ([] if group.schedule.kind in ("library", "merged") else second_lines(group, device))


def form_lines(group: GroupPlan, schedule: Schedule, role: str, device: Device) -> list[str]:
    """What a schedule moves through memory and L2."""
    form = closed_form(group.group, schedule, device, group.tier)
    if form is None:
        return [f"    {schedule.kind} ({role}) cannot be counted: no rate is known for its products"]
    return [
        f"    {schedule.kind} ({role})",
        f"        memory  {counted(form, form.dram)}",
        f"        L2      {by_launch(form.l2)} = {amount(form, form.l2)}",
    ]


def merged_lines(group: GroupPlan, against: Schedule, device: Device) -> list[str]:
    """From which call on ``merged`` pays, and at which M in a single one."""

    def planned(sized: Group) -> Schedule | None:
        """The same at this M, and what would be planned at another."""
        found = best(sized, device, against.kind, group.tier)
        return against if sized.m == group.m else found and found[0]

    form = closed_form(group.group, against, device, group.tier)
    pays = merged_pays(group.group, planned, device, group.tier)
    if form is None or pays is None:
        return [f"    merged against {against.kind} cannot be counted"]
    call = "never" if pays.call is None else f"from call {pays.call} on"
    rows = f"at no M up to {MOST_ROWS}" if pays.rows is None else f"it begins to at M = {pays.rows}"
    return [
        f"    merged pays against {against.kind} {call}; in a single call {rows}",
        f"        once    {counted(form, pays.once)}",
        f"        saved   {counted(form, pays.saved)} a call",
    ]


def free_line(group: GroupPlan, inline: Schedule, device: Device) -> str:
    """Up to which rank X @ A in every tile hides behind the memory."""
    rank = free_rank(group.group, inline, device, group.tier)
    if rank == 0:
        return "    inline is free at no rank: X·A in every tile takes L2 or MMA longer than the memory"
    return f"    inline is free {'at every rank' if rank is None else f'up to rank {rank}'}: the memory takes longer"


def second_lines(group: GroupPlan, device: Device) -> list[str]:
    """What second readers of the down products take."""
    form = closed_form(group.group, group.schedule, device, group.tier)
    second = second_user(group.group, group.schedule, device, group.tier)
    if form is None or second is None:
        return ["    X·A read elsewhere as well cannot be counted"]
    turns = "something" if second.turns is None else f"nothing from rank {second.turns} on"
    return [
        f"    X·A read elsewhere as well is written, and leaves {turns} of what is saved over library",
        f"        takes   {counted(form, second.taken)}",
    ]


def counted(form: ClosedForm, expression: Any) -> str:
    """A form and its bytes."""
    return f"{by_dtype(expression, form.letters)} = {amount(form, expression)}"


def amount(form: ClosedForm, expression: Any) -> str:
    """Bytes at the group's own sizes."""
    count = int(form.number(expression))
    return mib(count) if count >= MIB else f"{count / 1024:.1f} KiB"
