"""The estimate of a schedule: the costs of its launches, added up."""

from fusioncc.cost_models.cost import ADDED, OVERLAPPING, Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.overlap import exposed_us, hides, overlapped, started_early
from fusioncc.cost_models.tiles import grid_cost
from fusioncc.cost_models.traffic import warm_names
from fusioncc.cost_models.two_pool import pool_launch, pooled, with_wait
from fusioncc.cost_models.vendor import pointwise_cost, vendor_cost
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Estimate, Schedule


def launch_cost(launch: Launch, warm: frozenset[str], device: Device) -> Cost | None:
    """Cost of one launch that finds the tensors named ``warm`` in the L2, without a simulation of its workers; None:
    cannot be estimated."""
    if launch.body == "pointwise":
        return pointwise_cost(launch, warm, device)
    if launch.body == "vendor":
        return vendor_cost(launch, warm, device)
    cost = grid_cost(launch, warm, device)
    return with_wait(cost, launch, device) if cost is not None and launch.waits else cost


def estimate(group: Group, schedule: Schedule, device: Device, tier: str = "fp32") -> Estimate | None:
    """Predicted cost of one execution of ``group``, or None when it cannot be estimated (a dtype without a known
    rate, a tile that does not fit).

    ``dram``, ``l2`` and ``mma`` overlap inside a launch (the largest counts) and are summed over launches; ``latency``,
    ``launch`` and ``tail`` come on top. Launches on streams of their own count as one, and so do a launch and the one
    that starts early beside it. ``binds`` is the term that costs most.
    """
    sequence = launches(group, schedule, tier)
    costs: list[Cost] = []
    beside: list[Cost] = []
    before: Launch | None = None
    for launch, warm in zip(sequence, warm_names(sequence, device), strict=True):
        cost = launch_cost(launch, warm, device)
        if cost is None:
            return None
        if launch.pool is not None and launch.pool.dependent and costs:
            first = costs.pop()
            hidden = (
                exposed_us(before, first, launch, cost, device) if before and hides(before, launch, device) else None
            )
            cost = started_early(first, cost, hidden)
        if launch.waits:
            cost = pooled(cost, pool_launch(launch, cost, device))
        before = launch
        (beside if launch.beside else costs).append(cost)
    costs += [overlapped(beside, device)] if beside else []
    terms = tuple((name, sum(getattr(cost, name) for cost in costs)) for name in (*OVERLAPPING, *ADDED))
    return Estimate(
        us=sum(cost.us for cost in costs),
        bytes=sum(cost.dram_bytes for cost in costs),
        flops=sum(2 * member.batch * member.m * member.n * member.k for member in group.members),
        launches=len(sequence),
        tiles=sum(cost.tiles for cost in costs),
        waves=sum(cost.waves for cost in costs),
        terms=terms,
        binds=max(terms, key=lambda term: term[1])[0],
    )
