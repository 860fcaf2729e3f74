"""A persistent launch as its workers see it: tiles and their times for the simulation, and the cost that it gives back.

A tile takes what the grid model says of it, with the L2 port and the arithmetic units shared by the programs of a
multiprocessor. Down tiles beside main tiles wait for each of their loads.
"""

from dataclasses import replace
from math import ceil, hypot
from operator import mul

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.overlap import beside_us
from fusioncc.cost_models.pools import MainTiles, PoolLaunch, makespan_and_tail
from fusioncc.cost_models.resources import occupancy
from fusioncc.cost_models.tiles import grid_cost, grid_tiles, join_us, program_us
from fusioncc.cost_models.traffic import warm_names
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Schedule


def pool_launch(launch: Launch, cost: Cost, device: Device, memory: float = 0.0) -> PoolLaunch:
    """The workers and tiles of a persistent launch of the given cost by :func:`~fusioncc.cost_models.tiles.grid_cost`;
    one that is no ``two_pool`` has stripes without down workers. ``memory``: how much of the memory's time is in
    that of the tiles, 0 where it is counted for the launch as a whole, 1 for tiles as they are seen on the card.

    Raises:
        ValueError: the launch is not persistent.
    """
    if launch.pool is None or launch.pool.workers is None:
        raise ValueError("a launch with one program a tile has no workers")
    workers, parts = launch.pool.workers, launch.parts
    mains = [part for part in parts if part.body != "down"] if launch.waits else list(parts)
    members = tuple(_main_tiles(part) for part in mains)
    tiles = [main.tiles for main in members]
    programs = min(workers, sum(tiles))
    sharing = min(occupancy(launch, device), ceil(programs / device.multiprocessors))
    drawn = memory * cost.dram / cost.l2 * programs / (sharing * device.multiprocessors)
    main_us = sum(map(mul, tiles, (program_us(part, drawn, sharing, device) for part in mains))) / sum(tiles)
    join = max(join_us(part) if part.body == "join" else 0.0 for part in mains) / sharing
    if not launch.waits:
        return PoolLaunch(workers, 0, members, 0, 0.0, main_us + join)
    down = next(part for part in launch.parts if part.body == "down")
    assert down.pool is not None
    return PoolLaunch(
        workers=workers,
        down_workers=down.pool.workers or 0,
        mains=members,
        down_tiles=grid_tiles(down),
        down_us=max(program_us(down, drawn, sharing, device), beside_us(down, launch)),
        main_us=main_us,
        join_us=join,
        atomic_us=device.flag_us,
        k_split=down.pool.k_split,
        late=down.pool.late,
        chunk=launch.pool.chunk,
    )


def persistent_launches(group: Group, schedule: Schedule, device: Device, tier: str = "fp32") -> tuple[PoolLaunch, ...]:
    """The persistent launches of ``schedule`` as they are seen on the card, in order; none that cannot be estimated."""
    sequence = launches(group, schedule, tier)
    found = []
    for launch, warm in zip(sequence, warm_names(sequence, device), strict=True):
        cost = grid_cost(launch, warm, device) if launch.pool is not None and launch.pool.workers is not None else None
        if cost is not None:
            found.append(pool_launch(launch, cost, device, memory=1.0))
    return tuple(found)


def pooled(cost: Cost, pools: PoolLaunch) -> Cost:
    """The cost of a ``two_pool`` launch with the makespan of ``pools`` in place of even shares: as in the grid model it
    hides the memory, and the memory hides it, in part."""
    makespan, tail = makespan_and_tail(pools)
    rest = max(c.EMITTED_RAMP_US + hypot(cost.dram, makespan) - max(cost.dram, cost.l2, cost.mma), 0.0)
    return replace(cost, latency=rest - min(tail, rest), tail=min(tail, rest))


def with_wait(cost: Cost, launch: Launch, device: Device) -> Cost:
    """The cost of a ``two_pool`` launch without a simulation: its first main tiles wait for the last flag, and each
    tile of a worker joins (the last one does so in the model of a grid)."""
    pools = pool_launch(launch, cost, device)
    joins = (ceil(pools.tiles / pools.programs) - 1) * (pools.tile_us - pools.main_us)
    return replace(cost, latency=cost.latency + joins + max(pools.flags_us - pools.main_us, 0.0))


def _main_tiles(part: Launch) -> MainTiles:
    assert part.pool is not None
    rows = ceil(part.m / part.pool.tile.block_m)
    joins = part.waits_inside and part.body == "join"
    return MainTiles(rows, grid_tiles(part) // rows, part.pool.group_m, joins)
