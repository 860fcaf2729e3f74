"""``rest="eager"`` hands an input on as it is: its kernels describe no X, whoever made the plan."""

import pytest

from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.errors import PlanError
from fusioncc.group import Group
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.plan import SCHEMA, GroupPlan, Plan
from tests.codegen.cases import Main, group

WIDE = group(2048, 4096, Main(14336))


def planned(value: Group, rest: str, given: Plan | None = None) -> GroupPlan:
    options = Options.of(rest=rest, schedule="split", on_error="raise")
    (found,), _ = plan_groups((value,), Setting(options, get_device("h200"), Accepted("runnable", ("cuda",)), given))
    return found


def through_descriptors(found: GroupPlan) -> bool:
    return any(pool.tile.tma for pool in found.schedule.pools)


def test_descriptors_are_chosen_only_where_inputs_are_aligned() -> None:
    assert through_descriptors(planned(WIDE, "inductor"))
    assert not through_descriptors(planned(WIDE, "eager"))


def test_a_plan_made_for_inductor_is_refused_where_x_may_be_misaligned() -> None:
    made = planned(WIDE, "inductor")
    given = Plan(SCHEMA, "h200", "0123456789abcdef", (made,), (), ())
    assert planned(WIDE, "inductor", given).schedule == made.schedule
    with pytest.raises(PlanError, match="illegal here: X is not known to be stored row by row"):
        planned(WIDE, "eager", given)
