"""Time of kernels that are not ours: vendor GEMMs and the elementwise kernels between them."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, hypot
from typing import Any

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.tiles import tile_count, unit_tflops
from fusioncc.cost_models.traffic import traffic
from fusioncc.descriptors import TMA_CAPABILITY
from fusioncc.device import Device


def pointwise_cost(launch: Launch, warm: frozenset[str], device: Device) -> Cost:
    """An elementwise kernel moves each tensor once."""
    bytes_ = traffic(launch, warm, device, 1, 1)
    return Cost(
        dram=bytes_.dram_us(device),
        l2=bytes_.moved / (device.l2_gbps * 1e3),
        mma=0.0,
        latency=c.POINTWISE_RAMP_US,
        launch=device.launch_us,
        tail=0.0,
        dram_bytes=bytes_.dram,
    )


def vendor_cost(launch: Launch, warm: frozenset[str], device: Device) -> Cost | None:
    """A vendor GEMM: the best of the tiles and K splits it is assumed to have; a narrow one has a floor."""
    if launch.unit is None:
        return None
    best = _best(launch, warm, device)[1]
    if launch.n <= c.SKINNY_N < launch.k and best.us < c.SKINNY_GEMM_US:
        return replace(best, latency=best.latency + c.SKINNY_GEMM_US - best.us)
    return best


def vendor_tile(launch: Launch, warm: frozenset[str], device: Device) -> tuple[int, int, int]:
    """Rows and columns of its tiles, and slices of K."""
    return _best(launch, warm, device)[0]


def drawn_bytes(launch: Launch, tile: tuple[int, int, int], least: Callable[[Any, Any], Any] = min) -> int:
    """Bytes of operands that tiles draw through the L2; see ``tiles.drawn_bytes``."""
    block_m, block_n, _ = tile
    whole = launch.k * _row_bytes(launch, block_m, block_n, least)
    return tile_count(launch.m, launch.n, block_m, block_n) * launch.batch * whole


def _row_bytes(launch: Launch, block_m: int, block_n: int, least: Callable[[Any, Any], Any] = min) -> int:
    """Bytes of both operands of a tile, for each element along K."""
    rows: int = least(block_m, launch.m)
    return rows * launch.x_element + block_n * launch.w_element


def _best(launch: Launch, warm: frozenset[str], device: Device) -> tuple[tuple[int, int, int], Cost]:
    options = [
        ((*tile, split), _tiled(launch, warm, device, tile, split))
        for tile in c.VENDOR_TILES
        for split in c.VENDOR_SPLITS
        if split == 1 or launch.k >= 4 * split * c.VENDOR_BLOCK_K
    ]
    return min(options, key=lambda option: option[1].us)


def _tiled(launch: Launch, warm: frozenset[str], device: Device, tile: tuple[int, int], split: int) -> Cost:
    """A GEMM in tiles, through descriptors where the card has them; terms combined as in ``tiles.grid_cost``."""
    assert launch.unit is not None
    block_m, block_n = tile
    count = tile_count(launch.m, launch.n, block_m, block_n, split) * launch.batch
    depth = launch.k / split
    rate = unit_tflops(launch.unit, device) * 1e6 / device.multiprocessors
    tile_mma = 2 * block_m * block_n * depth / (rate * (1.0 if launch.unit == "fp32" else c.EMITTED_MMA))
    tile_bytes = depth * _row_bytes(launch, block_m, block_n)
    l2_per_us = device.l2_gbps * 1e3 / device.multiprocessors * c.L2_SM_SHARE
    tile_l2 = tile_bytes * (c.TMA_DRAW if device.capability >= TMA_CAPABILITY else 1.0) / l2_per_us
    moved = traffic(launch, warm, device, block_m, c.GROUP_M_VENDOR)
    dram = moved.dram_us(device)
    spread = count / device.multiprocessors
    busy = (dram, ceil(spread) * tile_l2, ceil(spread) * tile_mma)
    chain = ceil(spread) * ceil(depth / c.VENDOR_BLOCK_K) * c.LOAD_LATENCY_US / (c.VENDOR_STAGES - 1)
    together = hypot(*busy, chain)
    sustained = spread * tile_mma * (0.0 if launch.unit == "fp32" else c.EMITTED_MMA / c.SUSTAINED)
    ramp = c.SHALLOW_RAMP_US if launch.k <= 2 * c.VENDOR_BLOCK_K else c.GEMM_RAMP_US
    return Cost(
        dram=dram,
        l2=spread * tile_l2,
        mma=spread * tile_mma + max(sustained - together, 0.0),
        latency=ramp + together - max(busy) + _sum_us(launch, split, device),
        launch=device.launch_us,
        tail=max(busy) - max(dram, spread * tile_l2, spread * tile_mma),
        dram_bytes=moved.dram,
    )


def _sum_us(launch: Launch, split: int, device: Device) -> float:
    """Writing fp32 partial sums of a K split and adding them in a second kernel, us."""
    if split == 1:
        return 0.0
    return device.launch_us + launch.batch * launch.m * launch.n * 4 * 2 * split / (device.l2_gbps * 1e3)
