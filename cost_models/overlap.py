"""Time of launches that run at the same time, on streams of their own, from a fork to a join."""

from collections.abc import Sequence

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost


def overlapped(costs: Sequence[Cost]) -> Cost:
    """The cost of all of them together: what they share (memory, L2, MMA) is busy for the sum of their needs; whatever
    else one waits for, the longest hides. At least the longest, then, and the events between the streams."""
    longest = max(costs, key=lambda cost: cost.us)
    return Cost(
        dram=sum(cost.dram for cost in costs),
        l2=sum(cost.l2 for cost in costs),
        mma=sum(cost.mma for cost in costs),
        latency=longest.latency,
        launch=longest.launch + c.EVENTS_US,
        tail=longest.tail,
        dram_bytes=sum(cost.dram_bytes for cost in costs),
        tiles=sum(cost.tiles for cost in costs),
        waves=sum(cost.waves for cost in costs),
    )
