"""Time of an emitted grid: tile counts, waves, tail, and a K loop between MMA, L2, memory and latency."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, hypot
from typing import Any

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import IN_PIECES, Launch
from fusioncc.cost_models.resources import columns, occupancy, step_bytes, warp_group_mma
from fusioncc.cost_models.traffic import blocks, traffic
from fusioncc.device import Device
from fusioncc.schedule import TileConfig


def tile_count(m: int, n: int, block_m: int, block_n: int, slices: int = 1) -> int:
    """Tiles of an ``[m, n]`` product in blocks, times the slices along K."""
    return blocks(m, block_m) * blocks(n, block_n) * slices


def shares(tiles: int, workers: int) -> dict[int, int]:
    """How many of ``workers`` get how many of ``tiles`` when they are handed out evenly: ``{9: 32, 8: 76}``."""
    low, more = divmod(tiles, workers)
    return {count: who for count, who in ((low + 1, more), (low, workers - more)) if who}


def grid_tiles(launch: Launch) -> int:
    """Tiles of an emitted launch, those of all its parts."""
    return sum(part_tiles(part) for part in launch.parts)


def part_tiles(part: Launch) -> int:
    """Tiles of one part."""
    assert part.pool is not None
    tile, columns = part.pool.tile, part.pool.tile.block_n if part.body == "down" else part.n
    return tile_count(part.m, columns, tile.block_m, tile.block_n, part.pool.k_split)


def k_steps(part: Launch) -> int:
    """Steps of the K loop of one tile."""
    assert part.pool is not None
    return blocks(blocks(part.k, part.pool.k_split), part.pool.tile.block_k)


def drawn_bytes(launch: Launch, least: Callable[[Any, Any], Any] = min) -> int:
    """Bytes of operands that the K loops of all tiles draw through the L2. ``least``: the smaller of two sizes, which
    of symbols is one too."""
    drawn = 0
    for part in launch.parts:
        assert part.pool is not None
        rows = least(part.m, part.pool.tile.block_m)
        drawn += part_tiles(part) * k_steps(part) * step_bytes(part, rows)
    return drawn


def unit_tflops(unit: str, device: Device) -> float:
    """Rate of an arithmetic unit, TFLOP/s."""
    return {"bf16": device.bf16_tflops, "tf32": device.tf32_tflops, "fp32": device.fp32_tflops}[unit]


def mma_fraction(launch: Launch, device: Device) -> float:
    """MMA rate of the tiles of an emitted launch over the device's."""
    if launch.unit == "fp32":
        return c.FMA_RATE
    assert launch.pool is not None
    rounding = c.TF32_RATE if launch.unit == "tf32" else 1.0
    tile = launch.pool.tile
    small = c.SMALL_TMA if tile.tma and tile.block_m * launch.width <= c.SMALL_TILE else 1.0
    groups = c.NO_WGMMA if _warp_level_hopper(launch, device) else _group_rows(launch, device)
    return c.EMITTED_MMA * rounding * small * groups


def _group_rows(launch: Launch, device: Device) -> float:
    """Factor on the MMA rate of a Hopper tile whose warp groups have less than 64 rows each: they share its rows."""
    assert launch.pool is not None
    tile = launch.pool.tile
    rows = columns(launch) if tile.swap_operands else tile.block_m
    return c.SHARED_ROWS if device.capability == 90 and 64 <= rows < 16 * tile.num_warps else 1.0


def grid_cost(launch: Launch, warm: frozenset[str], device: Device) -> Cost | None:
    """Cost of an emitted launch with ``warm`` tensors in the L2; None when no rate is known or it does not fit.

    Four things go on at once: memory traffic, and on the busiest multiprocessor (the one with the largest of the
    :func:`shares`) the L2 port, the MMA and the chain of loads that wait for one another. Each hides the others in
    part: they add up as the root of their squares. The terms reported are fluid (all multiprocessors equally busy); the
    rest of the busiest one is the tail, and what the largest does not hide is latency. Tiles run at the MMA's rate, but
    all of them take no less than at what the card's power sustains.
    """
    assert launch.pool is not None
    fitting = occupancy(launch, device)
    if fitting == 0 or any(part.unit is None for part in launch.parts):
        return None
    workers, pool = launch.pool.workers, launch.pool
    resident = min(fitting, ceil(workers / device.multiprocessors)) if workers else fitting
    grids = [_grid(part, device) for part in launch.parts]
    tiles = sum(grid.tiles for grid in grids)
    multiprocessors = min(workers or device.multiprocessors, device.multiprocessors)
    spread, busiest = tiles / multiprocessors, max(shares(tiles, multiprocessors))

    moved = traffic(launch, warm, device, pool.tile.block_m, pool.group_m)
    looped = pool.tile.one_row and launch.body != "down" and not pool.unrolls(launch.k)
    dram = moved.dram_us(device) * (c.ROW_LOOP if looped else 1.0)
    tile_l2 = sum(grid.tiles * grid.l2 for grid in grids) / tiles
    tile_mma = sum(grid.tiles * grid.mma for grid in grids) / tiles
    fluid = max(dram, spread * tile_l2, spread * tile_mma)
    longest = (max(grid.l2 for grid in grids), max(grid.mma for grid in grids))
    busy = (dram, max(busiest * tile_l2, longest[0]), max(busiest * tile_mma, longest[1]))
    chain = ceil(busiest / resident) * max(grid.chain for grid in grids)
    together = hypot(*busy, chain)
    joins = [_join_us(part) for part in launch.parts]
    last = pool.tile.tma and pool.joins_last  # of all its tiles, a program hides none of the joins behind a K loop
    mean = sum(grid.tiles * each for grid, each in zip(grids, joins, strict=True)) / tiles
    join = busiest * mean if last else max(joins)
    power = (c.TMA_SUSTAINED if pool.tile.tma else c.POINTER_SUSTAINED) * _group_rows(launch, device)
    sustained = spread * tile_mma * mma_fraction(launch, device) / power
    return Cost(
        dram=dram,
        l2=spread * tile_l2,
        mma=spread * tile_mma + max(sustained - together, 0.0),
        latency=c.EMITTED_RAMP_US + join + together - max(busy),
        launch=device.launch_us,
        tail=max(busy) - fluid,
        dram_bytes=moved.dram,
        tiles=tiles,
        waves=spread / resident,
    )


@dataclass(frozen=True)
class _Grid:
    """The tiles of one part: how many, and the time of one of them through the L2 port, on the arithmetic units and
    along its chain of loads, us."""

    tiles: int
    l2: float
    mma: float
    chain: float


def _grid(part: Launch, device: Device) -> _Grid:
    assert part.pool is not None
    steps = k_steps(part)
    times = (_l2_us(part, steps, device), _mma_us(part, steps, device), _chain_us(part, steps, device))
    return _Grid(part_tiles(part), *times)


def program_us(part: Launch, drawn: float, sharing: int, device: Device) -> float:
    """Time of one tile of a part, us, on a multiprocessor that ``sharing`` programs share all the while; ``drawn``: the
    time of the memory over that of the L2 ports."""
    grid = _grid(part, device)
    return hypot(sharing * drawn * grid.l2, sharing * grid.l2, sharing * grid.mma, grid.chain)


def _warp_level_hopper(launch: Launch, device: Device) -> bool:
    return device.capability == 90 and not warp_group_mma(launch, device)


def _l2_us(launch: Launch, steps: int, device: Device) -> float:
    """Time that the operands of one tile take through the L2 port of a multiprocessor, us."""
    assert launch.pool is not None
    drawn = steps * step_bytes(launch, min(launch.m, launch.pool.tile.block_m))
    return drawn * device.multiprocessors / l2_rate(launch.pool.tile, device)


def l2_rate(tile: TileConfig, device: Device) -> float:
    """Bytes of operands that tiles on all multiprocessors draw through their L2 ports in one us."""
    share = c.TMA_DRAW if tile.tma else c.ROW_DRAW if tile.one_row else 1.0
    return device.l2_gbps * 1e3 * c.L2_SM_SHARE / share


def _mma_us(launch: Launch, steps: int, device: Device) -> float:
    """Time that one tile takes on the arithmetic units of a multiprocessor, us; what a norm does to X comes before the
    MMA that reads it."""
    assert launch.pool is not None
    norm = c.NORM_OPS * launch.pool.tile.block_m * launch.pool.tile.block_k if launch.normed else 0
    ops = norm / (device.fp32_tflops * 1e6 / 2)  # one instruction is an addition and a multiplication
    return steps * (step_flops(launch) / flops_rate(launch, device) + ops) * device.multiprocessors


def step_flops(launch: Launch, most: Callable[[Any, Any], Any] = max) -> int:
    """Arithmetic of one K step of a tile, padding included. ``most``: the larger of two sizes, which of symbols is one
    too."""
    assert launch.pool is not None
    tile = launch.pool.tile
    low = 0 if launch.body == "join" else sum(most(r.padded, c.INLINE_MIN_COLUMNS) * r.pieces for r in launch.ranks)
    return 2 * tile.block_m * (launch.width + low) * tile.block_k


def flops_rate(launch: Launch, device: Device) -> float:
    """Arithmetic that the tiles of an emitted launch do on all multiprocessors in one us."""
    assert launch.pool is not None and launch.unit is not None
    if launch.pool.tile.one_row:
        return device.fp32_tflops * c.ROW_RATE * 1e6
    return unit_tflops(launch.unit, device) * mma_fraction(launch, device) * 1e6


def _join_us(launch: Launch) -> float:
    """What a join costs beyond the chain of its program, us: the last programs have nothing to hide it."""
    if launch.body != "join" or not launch.k:
        return 0.0
    return join_us(launch) if launch.joins_last else slice_us(launch) * launch.slices


def join_us(launch: Launch) -> float:
    """What the join of one tile behind its K loop takes, us."""
    assert launch.pool is not None
    tile = launch.pool.tile
    row = c.ROW_JOIN_US + c.PAIRED_ROW_JOIN_US * (launch.together > 1)
    read = row if tile.one_row else c.TMA_JOIN_US if tile.tma else c.LAST_JOIN_US
    return slice_us(launch) * launch.slices + read + _cut_join_us(launch)


def _cut_join_us(launch: Launch) -> float:
    """What a tile of MMAs takes longer to join products of fp32 adapters, which are six, us."""
    assert launch.pool is not None
    tile = launch.pool.tile
    ranks = sum(rank.padded for rank in launch.ranks if rank.joined == IN_PIECES)
    return 0.0 if tile.one_row else c.CUT_JOIN_US * ranks * tile.block_m * tile.block_n / (16 * 128 * 256)


def slice_us(launch: Launch) -> float:
    """What one more slice of partial sums costs the tiles that add them, us."""
    assert launch.pool is not None
    return c.SLICE_US_KB * max(launch.pool.tile.block_m * sum(rank.padded for rank in launch.ranks) * 4 / 1024, 1.0)


def cut_us(launch: Launch) -> float:
    """Time that each K step of a tile takes to cut fp32 adapters into 16-bit pieces and to wait for their MMAs, us."""
    return 0.0 if launch.body == "join" else c.CUT_US * sum(rank.pieces > 1 for rank in launch.ranks)


def _chain_us(launch: Launch, steps: int, device: Device) -> float:
    """Time of one program whose loads nobody else delays: opening the accumulator and the K loop, us."""
    assert launch.pool is not None
    step = c.LOAD_LATENCY_US / max(1, launch.pool.tile.num_stages - 1) + cut_us(launch)
    if launch.unit == "tf32":
        step += c.ROUNDED_LOAD_US
    elif launch.normed:
        step += c.NORMED_DOT_US * (launch.together + len(launch.ranks))
    elif launch.body == "inline" and _warp_level_hopper(launch, device):
        step += c.EXPOSED_LOAD_US
    if launch.pool.tile.one_row:
        return steps * c.ROW_STEP_US if launch.body == "down" else c.ROW_LATENCY_US
    if not steps:
        return c.LAST_JOIN_US + c.ADDED_SLICE_US * (launch.slices + launch.product_slices)
    opens = launch.body == "join" and not launch.joins_last
    return steps * step + (c.JOIN_US if opens else 0.0)
