"""The one launch of ``two_pool``, and the pools it may take: main tiles and slices of K.

How many workers begin with down tiles follows from the number of those: the cost model does not tell such choices
apart, nor stripes from queues. A plan may name others.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from fusioncc.autotune import knobs
from fusioncc.autotune.step import Step, tma_workers
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, padded_rank

MOST_DOWN_WORKERS = 64
"""Workers that begin with down tiles, at most: half of an H200, where main tiles of 128 rows by 256 columns are most of
the work (the number of the prototype that ran at 1.03 times the GEMM alone)."""


def two_pool_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    """One way: all main members and their downs in one launch."""
    downs = tuple(dict.fromkeys(branch.down for branch in group.branches))
    columns = max(padded_rank(group.members[down].n) for down in downs)
    saved = any(branch.saved for branch in group.branches)
    workers = device.multiprocessors
    tiles = [*(knobs.TMA_TILES if tma_workers(group, group.mains, device) else ()), *knobs.SIDE_TILES]

    def pools() -> Iterator[tuple[Pool, ...]]:
        for tile, k_split in product(tiles, (1,) if saved else knobs.K_SPLIT):
            down_tiles = -(-group.m // tile.block_m) * k_split
            down_workers = min(down_tiles, MOST_DOWN_WORKERS, workers // 2)
            down = replace(tile, block_n=columns, block_k=knobs.down_step(tile), tma=False)
            yield (
                Pool("down", downs, down, 0, workers=down_workers, k_split=k_split),
                Pool("main", group.mains, tile, 0, workers=workers),
            )

    return ((Step((*group.mains, *downs), pools),),)
