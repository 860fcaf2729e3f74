"""What is predicted of a group beside the kernels that it may take in, us."""

from collections.abc import Mapping, Sequence

from torch import fx

from fusioncc.autotune.pick import pick
from fusioncc.chain import Chain
from fusioncc.cost_models.chain_cost import chain_costs
from fusioncc.passes.plan_groups import Setting
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


def compared(saved: float) -> str:
    """A saving in words."""
    return f"{abs(saved):.1f} us {'less' if saved > 0 else 'more'} than apart"
