"""Time of launches that run at the same time: on streams of their own, or the next one started early."""

from collections.abc import Sequence
from math import ceil

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch


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


def exposed_us(down: Launch, cost: Cost) -> float:
    """What remains to be seen of a down pass beside main tiles that join last, us: they wait first when those of one
    wave are through with their K loops."""
    assert down.pool is not None
    steps = ceil(ceil(down.k / down.pool.k_split) / down.pool.tile.block_k)
    tiles = 1 + len(down.ranks)
    window = (cost.us - cost.launch) / max(cost.waves, 1.0)
    return max(c.BESIDE_TILE_US * tiles * steps - c.EARLY_START_US - window, 0.0)


def started_early(before: Cost, cost: Cost, hidden: Launch | None) -> Cost:
    """A launch and the dependent one behind it. Main tiles that join last hide a down pass, which runs beside them:
    that is ``hidden``. Others wait first, and save most of the gap between launches."""
    if hidden is not None:
        us = before.launch + c.EARLY_START_US + cost.us - cost.launch + exposed_us(hidden, cost)
    else:
        us = before.us + max(cost.us - c.EARLY_SAVES_US, 0.0)
    dram, l2, mma = before.dram + cost.dram, before.l2 + cost.l2, before.mma + cost.mma
    rest = max(us - before.launch - max(dram, l2, mma), 0.0)
    tail = min(before.tail + cost.tail, rest)
    return Cost(
        dram=dram,
        l2=l2,
        mma=mma,
        latency=rest - tail,
        launch=before.launch,
        tail=tail,
        dram_bytes=before.dram_bytes + cost.dram_bytes,
        tiles=before.tiles + cost.tiles,
        waves=before.waves + cost.waves,
    )


def hides(before: Launch | None, launch: Launch) -> bool:
    """Whether a launch is one of main tiles that start beside a down pass and join last."""
    early = launch.joins_last and launch.pool is not None and launch.pool.dependent
    return early and before is not None and before.body == "down"
