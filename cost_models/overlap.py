"""Time of launches that run at the same time: on streams of their own, or the next one started early."""

from collections.abc import Sequence
from math import ceil, sqrt

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.resources import RESERVED_BYTES, carved_out, expected_bytes, occupancy, step_bytes
from fusioncc.cost_models.tiles import cut_us, grid_tiles, k_steps
from fusioncc.device import Device


def overlapped(costs: Sequence[Cost], device: Device) -> Cost:
    """The cost of all of them together: what they share (memory, L2, MMA) is busy for the sum of their needs; whatever
    else one waits for, the longest hides. At least the longest, then, and the events between the streams."""
    longest = max(costs, key=lambda cost: cost.us)
    return Cost(
        dram=sum(cost.dram for cost in costs),
        l2=sum(cost.l2 for cost in costs),
        mma=sum(cost.mma for cost in costs),
        latency=longest.latency,
        launch=longest.launch + device.events_us,
        tail=longest.tail,
        dram_bytes=sum(cost.dram_bytes for cost in costs),
        tiles=sum(cost.tiles for cost in costs),
        waves=sum(cost.waves for cost in costs),
    )


def exposed_us(down: Launch, before: Cost, launch: Launch, cost: Cost, device: Device) -> float:
    """What remains to be seen of a down pass (which costs ``before`` alone) beside main tiles that join last, us: they
    wait first when those of one wave are through with their K loops; where both run on one multiprocessor, its down
    tiles slow them, all the more where they cut fp32 adapters; and what it reads from memory adds to what they read,
    which other terms hide in part. Never more than the pass alone."""
    busy = cost.us - cost.launch
    waited = max(beside_us(down, launch) - c.EARLY_START_US - busy / max(cost.waves, 1.0), 0.0)
    read = sqrt(busy**2 + (before.dram + cost.dram) ** 2 - cost.dram**2) - busy
    return min(waited + _taken_us(down, launch, cost.waves, device) + read, before.us)


def _taken_us(down: Launch, launch: Launch, waves: float, device: Device) -> float:
    """What down tiles take from main tiles on the same multiprocessors, us. Their cutting counts by the mean of all of
    these where main tiles go to whichever is free, and by the slowest in a single wave or where they are dealt out."""
    assert launch.pool is not None
    if _elsewhere(down, launch, device):
        return 0.0
    mean = all_steps(down) / device.multiprocessors
    dealt = launch.pool.workers is not None or waves <= 1
    most = ceil(grid_tiles(down) / device.multiprocessors) * k_steps(down) if dealt else mean
    return c.BESIDE_TAKES_US * mean + cut_us(down) * most


def all_steps(launch: Launch) -> int:
    """K steps of all programs of a launch of one part."""
    return grid_tiles(launch) * k_steps(launch)


def beside_us(down: Launch, launch: Launch) -> float:
    """Time of a down tile beside the main tiles of ``launch``, us."""
    assert down.pool is not None and launch.pool is not None
    tiles = max(1 + len(down.ranks), step_bytes(down) / c.BESIDE_TILE_BYTES)
    step = max(c.BESIDE_TILE_US * tiles, c.BESIDE_TMA_US if launch.pool.tile.tma else 0.0)
    return (step + cut_us(down)) * k_steps(down)


def started_early(before: Cost, cost: Cost, exposed: float | None) -> Cost:
    """A launch and the dependent one behind it. Main tiles that join last hide a down pass, which runs beside them, but
    for what is ``exposed`` of it, us; others (None) wait first, and save most of the gap between launches."""
    if exposed is not None:
        us = before.launch + c.EARLY_START_US + cost.us - cost.launch + exposed
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


def hides(before: Launch, launch: Launch, device: Device) -> bool:
    """Whether a launch is one of main tiles that run beside a down pass and join last.

    They find room beside it: on the same multiprocessors, or on others. Where neither is so, those of a launch that
    never leave their multiprocessor, or of a single wave, come as late as if they had waited.
    """
    if before.body != "down" or not launch.joins_last or launch.pool is None:
        return False
    return launch.pool.dependent and (_together(before, launch, device) or _apart(before, launch, device))


def _together(down: Launch, launch: Launch, device: Device) -> bool:
    """Whether a multiprocessor that runs down tiles has shared memory left for a program of ``launch``; of registers
    the largest tiles leave enough for a down tile."""
    shared = sum(expected_bytes(each, device) + RESERVED_BYTES for each in (down, launch))
    return shared <= carved_out(down, device)


def _apart(down: Launch, launch: Launch, device: Device) -> bool:
    """Whether multiprocessors that the down pass leaves free, over which its programs spread first, hold all the main
    tiles; or, for tiles of several waves, enough of them in time."""
    assert launch.pool is not None
    several = launch.pool.workers is None and _needed(launch, device) > device.multiprocessors
    return several or _elsewhere(down, launch, device)


def _elsewhere(down: Launch, launch: Launch, device: Device) -> bool:
    """Whether the programs of both launches, spread out, have multiprocessors of their own."""
    assert launch.pool is not None
    needed = _needed(launch, device)
    return grid_tiles(down) + min(needed, launch.pool.workers or needed) <= device.multiprocessors


def _needed(launch: Launch, device: Device) -> int:
    """Multiprocessors that hold all tiles of a launch at once as they are dealt out: a second on one comes when each
    has a first."""
    tiles = grid_tiles(launch)
    return tiles if tiles <= device.multiprocessors else ceil(tiles / occupancy(launch, device))
