"""Time of an emitted grid: tile counts, waves, tail, and a K loop bound by MMA, L2, memory or latency."""

from math import ceil

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launches import Launch
from fusioncc.cost_models.resources import columns, occupancy, step_bytes, warp_group_mma
from fusioncc.cost_models.traffic import traffic
from fusioncc.device import Device


def tile_count(m: int, n: int, block_m: int, block_n: int, slices: int = 1) -> int:
    """Tiles of an ``[m, n]`` product in blocks, times the slices along K."""
    return ceil(m / block_m) * ceil(n / block_n) * slices


def shares(tiles: int, workers: int) -> dict[int, int]:
    """How many of ``workers`` get how many of ``tiles`` when they are handed out evenly: ``{9: 32, 8: 76}``."""
    low, more = divmod(tiles, workers)
    return {count: who for count, who in ((low + 1, more), (low, workers - more)) if who}


def unit_tflops(unit: str, device: Device) -> float:
    """Rate of an arithmetic unit, TFLOP/s."""
    return {"bf16": device.bf16_tflops, "tf32": device.tf32_tflops, "fp32": device.fp32_tflops}[unit]


def mma_fraction(launch: Launch, device: Device) -> float:
    """Fraction of the arithmetic rate that the tiles of an emitted launch reach."""
    assert launch.pool is not None
    if launch.unit == "fp32":
        return c.FMA_RATE
    tile = launch.pool.tile
    short, long = sorted((max(tile.block_m, 16), max(columns(launch), 16)))
    table = c.EMITTED_TMA if tile.tma else c.EMITTED_MMA
    fraction = table[min(short, 128), min(max(long, 32), 256)]
    fraction *= c.TWO_STAGES if tile.num_stages <= 2 else 1.0
    return fraction * (c.NO_WGMMA if device.capability == 90 and not warp_group_mma(launch, device) else 1.0)


def grid_cost(launch: Launch, warm: frozenset[str], device: Device) -> Cost | None:
    """Cost of an emitted launch with ``warm`` tensors in the L2; None when no rate is known or it does not fit.

    The busiest multiprocessor decides: it runs ``ceil(tiles / multiprocessors)`` tiles. The fluid time (all
    multiprocessors equally busy) is reported as the term, the rest as the tail.
    """
    assert launch.pool is not None
    tile, down = launch.pool.tile, launch.body == "down"
    resident = occupancy(launch, device)
    if launch.unit is None or resident == 0:
        return None
    slices = launch.pool.k_split if down else 1
    tiles = ceil(launch.m / tile.block_m) * (slices if down else ceil(launch.n / tile.block_n))
    steps = ceil(ceil(launch.k / slices) / tile.block_k)
    busiest = ceil(tiles / device.multiprocessors)
    spread = tiles / device.multiprocessors

    low = (
        sum(max(rank.padded, c.INLINE_MIN_COLUMNS) * rank.pieces for rank in launch.ranks)
        if launch.body != "join"
        else 0
    )
    work = 2 * tile.block_m * ((0 if down else tile.block_n) + low) * tile.block_k * steps
    rate = unit_tflops(launch.unit, device) * 1e6 / device.multiprocessors * mma_fraction(launch, device)
    tile_mma = work / rate + steps * c.STEP_US

    tile_l2 = steps * step_bytes(launch, min(launch.m, tile.block_m))
    l2_per_us = device.l2_gbps * 1e3
    narrow = launch.body == "inline" and device.capability == 90 and not warp_group_mma(launch, device)
    stream = c.INLINE_STREAM if narrow else 1.0
    l2 = tiles * tile_l2 / l2_per_us / stream
    bytes_ = traffic(launch, warm, device, tile.block_m, launch.pool.group_m)
    dram = bytes_.dram_us(device) / stream

    mma = spread * tile_mma
    fluid = max(dram, l2, mma)
    drawn = busiest * tile_l2 * device.multiprocessors / (l2_per_us * c.L2_SM_SHARE)
    quantised = max(fluid, busiest * tile_mma, drawn)
    chain = ceil(spread / resident) * steps * c.LOAD_LATENCY_US / max(1, tile.num_stages - 1)
    leak = c.OVERLAP_LEAK * (dram + l2 + mma + chain - max(fluid, chain))
    join = c.JOIN_US + c.SLICE_US * launch.slices if launch.body == "join" else 0.0
    return Cost(
        dram=dram,
        l2=l2,
        mma=mma,
        latency=(c.DOWN_RAMP_US if down else c.EMITTED_RAMP_US) + max(0.0, chain - quantised) + join + leak,
        launch=device.launch_us,
        tail=quantised - fluid,
        dram_bytes=bytes_.dram,
        tiles=tiles,
        waves=spread / resident,
    )
