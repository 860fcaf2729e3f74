"""The launches of ``concat`` and ``horizontal``, and the pools they may take.

The products are one launch, so their pools are chosen together: the same tile for all (``concat``), or a tile that is
half as wide for members of less than the widest N, and a down tile of its own (``horizontal``).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from fusioncc.autotune import knobs
from fusioncc.autotune.step import Step, down_side, one_row, row_bytes, tma_workers
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, TileConfig, padded_rank

UP_TILES = (
    *(TileConfig(m, n, 16, 4, 2) for m in (16, 32, 64, 128) for n in (64, 128, 256)),
    TileConfig(16, 64, 16, 8, 2),
)
"""Tiles of the launch that joins the branches: it reads and writes, so only their size matters. The last one holds fp32
adapters of high rank."""


MAIN_SPLITS = (2, 4, 8)
"""Slices of K for main members of few rows, whose tiles leave multiprocessors idle."""


def side_by_side_ways(group: Group, device: Device, *, uniform: bool) -> tuple[tuple[Step, ...], ...]:
    """The products, then the joins where there are branches; for few rows also with K of every main member split."""
    whole = _way(group, device, group.joined, (1,), uniform)
    few = group.m <= knobs.FEW_ROWS and not group.m_symbol and not group.epilogues and not group.norm
    return (whole, _way(group, device, group.mains, MAIN_SPLITS, uniform)) if few else (whole,)


def _way(
    group: Group, device: Device, added: tuple[int, ...], splits: tuple[int, ...], uniform: bool
) -> tuple[Step, ...]:
    """One way, in which a second launch adds something to the members ``added``."""
    downs = group.downs
    workers = 0 if added else tma_workers(group, group.mains, device)

    def products() -> Iterator[tuple[Pool, ...]]:
        rows = knobs.row_tiles(group.k) if one_row(group, group.mains) else ()
        for tile in knobs.SIDE_TILES if added else (*rows, *knobs.main_tiles()):
            for mains in _main_pools(group, tile, uniform):
                for down, k_split in product(_down_pools(group, downs, tile, uniform), splits):
                    yield (*(replace(pool, k_split=k_split) for pool in mains), *down)
        for tile, resident in knobs.TMA_TILES.items() if workers else ():
            for mains in _main_pools(group, tile, uniform):
                yield tuple(replace(pool, workers=workers * resident) for pool in mains)

    first = Step((*group.mains, *downs), products, consumers=1 if added else 0)
    return (first, joins(added)) if added else (first,)


def joins(mains: tuple[int, ...]) -> Step:
    """The second launch, which adds to the products of these main members."""
    return Step(mains, lambda: ((Pool("up", mains, tile, 1),) for tile in UP_TILES))


def _main_pools(group: Group, tile: TileConfig, uniform: bool) -> Iterator[tuple[Pool, ...]]:
    """All members in one tile; for ``horizontal`` the narrower ones also in half of it (no half was measured through
    TMA, or with one row)."""
    widest = max(group.members[main].n for main in group.mains)
    narrow = tuple(main for main in group.mains if group.members[main].n < widest)
    if not uniform and narrow and tile.block_n >= 32 and not (tile.one_row or tile.tma):
        wide = tuple(main for main in group.mains if main not in narrow)
        half = replace(tile, block_n=tile.block_n // 2)
        yield (Pool("main", wide, tile, 0), Pool("main", narrow, half, 0))
    yield (Pool("main", group.mains, tile, 0),)


def _down_pools(group: Group, downs: tuple[int, ...], tile: TileConfig, uniform: bool) -> Iterator[tuple[Pool, ...]]:
    if not downs:
        yield ()
        return
    columns = max(padded_rank(group.members[down].n) for down in downs)
    step = knobs.down_step(tile, row_bytes(group))
    own = tile if uniform else replace(tile, block_m=min(tile.block_m, 64), block_k=step)
    saved = any(branch.saved for branch in group.branches)
    for k_split in (1,) if saved else knobs.K_SPLIT:
        yield (Pool("down", downs, down_side(group, downs, replace(own, block_n=columns)), 0, k_split=k_split),)
