"""What is predicted of a group beside the kernels that it may take in, us."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from fusioncc.autotune.pick import pick
from fusioncc.chain import Chain
from fusioncc.cost_models.chain_cost import chain_costs
from fusioncc.decision import Rejected
from fusioncc.passes.plan_groups import WITHOUT_KERNEL, Setting
from fusioncc.passes.read_chains import read_chain
from fusioncc.passes.read_rotations import Rotation
from fusioncc.plan import GroupPlan

LEAST_GAIN = 0.02
"""Part of the group's time that what it takes in has to save: predictions are no closer."""


def group_us(planned: GroupPlan, setting: Setting) -> float | None:
    """Predicted time of what was chosen; where that was measured, of what the model would have chosen."""
    chosen = planned.schedule.kind
    if setting.options.schedule == "auto" and setting.given is None:
        chosen = pick(planned.candidates, planned.group).kind
    return {each.kind: each.predicted_us for each in planned.candidates}.get(chosen)


def part_us(
    part: Chain,
    nodes: Sequence[fx.Node],
    whole: Sequence[fx.Node],
    order: dict[fx.Node, int],
    setting: Setting,
    rotated: Mapping[fx.Node, Rotation] | None = None,
) -> float:
    """What a chain (``whole``) takes in a kernel of its own more than the rest of it would without a ``part``, which
    are the ``nodes`` of it."""

    def us(chain: Chain) -> float:
        return chain_costs(chain, setting.device)[1].us

    rest = [node for node in whole if node not in nodes]
    if not rest:
        return us(part)
    chain, without = (read_chain(each, order, "", rotated) for each in (whole, rest))
    return us(chain) - us(without)


@dataclass(frozen=True)
class Taking:
    """What a group may take in, as its plan says it: a ``chain`` or a ``norm``, at ``node``; what the group ``does``
    with it; the ``rule`` by which it stays apart. ``auto``: it does where that is predicted to pay."""

    rule: str
    node: str
    what: str
    does: str
    auto: bool


def taken_in(
    planned: GroupPlan, before: GroupPlan, taking: Taking, apart_us: float, setting: Setting
) -> GroupPlan | Rejected:
    """The group ``planned`` with what it takes in, or why it stays as ``before``, beside a kernel of ``apart_us``."""
    if planned.schedule.kind in WITHOUT_KERNEL:
        return Rejected(taking.rule, taking.node, f"products stay the vendor's, {planned.why}")
    us, us_before = (group_us(each, setting) for each in (planned, before))
    if us is None or us_before is None:
        return Rejected(taking.rule, taking.node, f"nothing is predicted of {planned.name}")
    saved = us_before + apart_us - us
    compared = f"{abs(saved):.1f} us {'less' if saved > 0 else 'more'} than apart"
    if saved < LEAST_GAIN * us and taking.auto and setting.given is None:
        return Rejected(taking.rule, taking.node, f"products and {taking.what} are predicted to take {compared}")
    return replace(planned, why=f"{planned.why}; {taking.does}, {compared}")
