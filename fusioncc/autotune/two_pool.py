"""The one launch of ``two_pool``, and the pools it may take: main tiles and slices of K.

How many workers there are follows from what is resident at once. How many of them begin with down tiles, and whether
main tiles come from stripes or from a queue, is settled last, by the simulated makespan of a few such divisions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, inf

from fusioncc.autotune import knobs
from fusioncc.autotune.step import Step, down_side, row_bytes, tma_workers
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.pools import PoolLaunch
from fusioncc.cost_models.resources import occupancy
from fusioncc.cost_models.tiles import grid_cost, tile_count
from fusioncc.cost_models.two_pool import pool_launch, pooled
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule, padded_rank

Pools = tuple[Pool, ...]
CHUNKS = (2, 4)
"""Main tiles that a queue hands out at once. One is a queue that all workers stand in all the time."""
FEWER = 4
"""Down tiles of a down worker where there are fewer of those than down tiles."""
SIMULATED = 2
"""Choices of tiles and slices of K, the best by the model of a grid, of which the divisions are simulated."""


def two_pool_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    """One way: all main members and their downs in one launch."""
    downs = group.downs
    columns, row = max(padded_rank(group.members[down].n) for down in downs), row_bytes(group)
    saved = any(branch.saved for branch in group.branches)
    alone = [tile for tile, programs in knobs.TMA_TILES.items() if programs == 1]  # no other was measured so
    tiles = [*(alone if tma_workers(group, group.mains, device) else ()), *knobs.SIDE_TILES]

    def pools() -> Iterator[Pools]:
        for tile in tiles:
            down = replace(tile, block_n=columns, block_k=knobs.down_step(tile, row), tma=False, epilogue_subtiles=1)
            whole = (Pool("down", downs, down_side(group, downs, down), 0), Pool("main", group.mains, tile, 0))
            resident = _resident(group, whole, device)
            for k_split in (1,) if saved else knobs.K_SPLIT:
                yield with_workers(group, (replace(whole[0], k_split=k_split), whole[1]), device, resident)

    return ((Step((*group.mains, *downs), pools),),)


def with_workers(group: Group, pools: Pools, device: Device, resident: int) -> Pools:
    """The pools with ``resident`` workers a multiprocessor, or as many as there are main tiles for, which a symbolic M
    does not say; a down worker for each down tile, and main tiles in stripes."""
    tiles = sum(_tiles(group, pool) for pool in pools if pool.role == "main")
    wanted = resident if group.m_symbol else min(resident, ceil(tiles / device.multiprocessors))
    workers = device.multiprocessors * max(1, wanted)

    def of(pool: Pool) -> int:
        if pool.role == "main":
            return workers
        down_tiles = ceil(group.m / pool.tile.block_m) * pool.k_split
        return min(down_tiles, workers)

    return tuple(replace(pool, workers=of(pool), late=0, chunk=None) for pool in pools)


def settled(group: Group, device: Device, ranked: Sequence[Pools], tier: str) -> tuple[Pools, ...]:
    """The ranking with the fastest division of its first few choices in front, in the place of that choice."""
    tried = [(*divided(group, pools, device, tier), at) for at, pools in enumerate(ranked[:SIMULATED])]
    _, best, at = min(tried, key=lambda each: each[0])
    return (best, *ranked[:at], *ranked[at + 1 :])


def divided(group: Group, pools: Pools, device: Device, tier: str = "fp32") -> tuple[float, Pools]:
    """The pools with the down workers, and the turns that those sit out or the chunks of a queue, that are simulated to
    take the least time; and that time, us."""
    timed = [(pooled(cost, how).us, each) for cost, how, each in _divided(group, pools, device, tier)]
    return min(timed, key=lambda each: each[0], default=(inf, pools))


def every_division(group: Group, pools: Pools, device: Device, tier: str = "fp32") -> tuple[Pools, ...]:
    """The pools in each of their :func:`divisions`; none where they cannot be estimated."""
    return tuple(each for _, _, each in _divided(group, pools, device, tier))


def is_division(group: Group, pools: Pools, device: Device, resident: int) -> bool:
    """Whether the pools are divided as for ``resident`` programs a multiprocessor: a down worker for each down tile or
    for a few of them, which are late or not, or a queue."""
    for pool, whole in zip(pools, with_workers(group, pools, device, resident), strict=True):
        most = whole.workers or 1
        if pool.workers not in ((most, ceil(most / FEWER)) if pool.role == "down" else (most,)):
            return False
        if pool.chunk not in ((None,) if pool.role == "down" else (None, *CHUNKS)):
            return False
    return True


def undivided(pools: Pools) -> Pools:
    """The tiles and slices of K alone."""
    return tuple(replace(pool, workers=None, late=0, chunk=None) for pool in pools)


def _divided(group: Group, pools: Pools, device: Device, tier: str) -> Iterator[tuple[Cost, PoolLaunch, Pools]]:
    launch = _launch(group, pools, tier)
    cost = grid_cost(launch, frozenset(), device)
    if cost is not None:
        for division in divisions(pool_launch(launch, cost, device)):
            yield cost, division, tuple(_so_divided(pool, division) for pool in pools)


def _so_divided(pool: Pool, division: PoolLaunch) -> Pool:
    if pool.role == "down":
        return replace(pool, workers=division.down_workers, late=division.late, chunk=None)
    return replace(pool, late=0, chunk=division.chunk)


def divisions(launch: PoolLaunch) -> Iterator[PoolLaunch]:
    """Ways to divide such tiles among as many workers: stripes in which down workers sit out as many turns as the down
    pass takes, rounded either way, and queues."""
    most = min(launch.down_tiles, launch.programs)
    for down_workers in dict.fromkeys((most, ceil(most / FEWER))):
        stripes = replace(launch, down_workers=down_workers, late=0, chunk=None)
        turns = int(stripes.flags_us / stripes.tile_us)
        yield from (replace(stripes, late=late) for late in sorted({0, turns, turns + 1}))
        yield from (replace(stripes, chunk=chunk) for chunk in CHUNKS)


def _tiles(group: Group, pool: Pool) -> int:
    """Tiles of a main pool."""
    shape = (pool.tile.block_m, pool.tile.block_n)
    return sum(tile_count(group.m, group.members[mains[0]].n, *shape) for mains in group.together(pool.members))


def _resident(group: Group, pools: Pools, device: Device) -> int:
    """Programs resident on a multiprocessor, by the model; the compiled kernel tells better."""
    return occupancy(_launch(group, pools), device)


def _launch(group: Group, pools: Pools, tier: str = "fp32") -> Launch:
    return next(each for each in launches(group, Schedule("two_pool", pools), tier) if each.pool is not None)
