"""The launches of ``streams`` that are ours to choose: the down products, and what joins them to the vendor's mains."""

from fusioncc.autotune.side_by_side import joins
from fusioncc.autotune.step import Step, down_pass
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.vendor import refusal


def streams_illegal(group: Group) -> str:
    """Why a vendor GEMM does not make one of the main products; empty when each has one."""
    return next(filter(None, (refusal(group, main) for main in group.mains)), "")


def streams_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    """One way where there are branches; without one there is nothing to choose."""
    return ((down_pass(group, consumers=1), joins(group.joined)),) if group.joined else ()
