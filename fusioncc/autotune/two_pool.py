"""The one launch of ``two_pool``, and the pools it may take: main tiles and slices of K.

How many workers there are follows from what is resident at once, and how many of them begin with down tiles from the
number of those: the cost model does not tell such choices apart, nor stripes from queues. A plan may name others.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from fusioncc.autotune import knobs
from fusioncc.autotune.step import Step, down_side, tma_workers
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.resources import occupancy
from fusioncc.cost_models.tiles import tile_count
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule, padded_rank

MOST_DOWN_WORKERS = 64
"""Workers that begin with down tiles, at most: half of an H200, where main tiles of 128 rows by 256 columns are most of
the work (the number of the prototype that ran at 1.03 times the GEMM alone)."""


def two_pool_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    """One way: all main members and their downs in one launch."""
    downs = group.downs
    columns = max(padded_rank(group.members[down].n) for down in downs)
    saved = any(branch.saved for branch in group.branches)
    tiles = [*(knobs.TMA_TILES if tma_workers(group, group.mains, device) else ()), *knobs.SIDE_TILES]

    def pools() -> Iterator[tuple[Pool, ...]]:
        for tile in tiles:
            down = replace(tile, block_n=columns, block_k=knobs.down_step(tile), tma=False, epilogue_subtiles=1)
            whole = (Pool("down", downs, down_side(group, downs, down), 0), Pool("main", group.mains, tile, 0))
            resident = _resident(group, whole, device)
            for k_split in (1,) if saved else knobs.K_SPLIT:
                yield with_workers(group, (replace(whole[0], k_split=k_split), whole[1]), device, resident)

    return ((Step((*group.mains, *downs), pools),),)


def with_workers(group: Group, pools: tuple[Pool, ...], device: Device, resident: int) -> tuple[Pool, ...]:
    """The pools with ``resident`` workers a multiprocessor, or as many as there are main tiles for, which a symbolic M
    does not say; at most half of the workers begin with down tiles."""
    tiles = sum(_tiles(group, pool) for pool in pools if pool.role == "main")
    wanted = resident if group.m_symbol else min(resident, ceil(tiles / device.multiprocessors))
    workers = device.multiprocessors * max(1, wanted)

    def of(pool: Pool) -> int:
        if pool.role == "main":
            return workers
        down_tiles = ceil(group.m / pool.tile.block_m) * pool.k_split
        return max(1, min(down_tiles, MOST_DOWN_WORKERS, workers // 2))

    return tuple(replace(pool, workers=of(pool)) for pool in pools)


def _tiles(group: Group, pool: Pool) -> int:
    """Tiles of a main pool."""
    shape = (pool.tile.block_m, pool.tile.block_n)
    return sum(tile_count(group.m, group.members[main].n, *shape) for main in pool.members)


def _resident(group: Group, pools: tuple[Pool, ...], device: Device) -> int:
    """Programs resident on a multiprocessor, by the model; the compiled kernel tells better."""
    launch = next(each for each in launches(group, Schedule("two_pool", pools)) if each.pool is not None)
    return occupancy(launch, device)
