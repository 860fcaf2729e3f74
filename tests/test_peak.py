"""``max_peak_increase``: a schedule that needs more memory at its peak is ruled out, with how much more."""

from functools import cache

import pytest
import torch

import fusioncc
from fusioncc.errors import OptionError
from fusioncc.plan import Plan
from tests.lora_models import Lora, rows


@cache
def plan(**options: object) -> Plan:
    return fusioncc.plan(Lora(dtype=torch.bfloat16), (rows(16, dtype=torch.bfloat16),), device="h200", **options)


def increases(of: Plan) -> dict[str, int]:
    """By kind that was ruled out, the bytes in its reason."""
    (group,) = of.groups
    found = {}
    for each in group.candidates:
        if "max_peak_increase" in each.reason:
            assert not each.legal
            found[each.kind] = int(each.reason.split("by ")[1].split(" bytes")[0])
    return found


def test_without_a_limit_nothing_is_ruled_out() -> None:
    assert increases(plan()) == {}


def test_the_limit_is_the_last_that_is_allowed() -> None:
    """Slices of partial sums, and products that go through memory, live beside what the library needs."""
    ruled_out = increases(plan(max_peak_increase=0))
    assert "library" not in ruled_out and min(ruled_out.values()) > 0
    kind, bytes_ = max(ruled_out.items(), key=lambda each: each[1])
    assert kind in increases(plan(max_peak_increase=bytes_ - 1))
    assert kind not in increases(plan(max_peak_increase=bytes_))


def test_a_kind_that_is_ruled_out_does_not_run_by_name() -> None:
    kind = next(iter(increases(plan(max_peak_increase=0))))
    refused = plan(max_peak_increase=0, schedule=kind)
    assert refused.groups[0].schedule.kind == "library"
    assert refused.rejections[-1].rule == "forced_schedule" and "max_peak_increase=0" in refused.rejections[-1].reason


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_only_bytes_are_a_limit(value: object) -> None:
    with pytest.raises(OptionError, match="is not a number of bytes"):
        plan(max_peak_increase=value)
