"""How the launches of a schedule walk over their operands: every comparison of sizes that traffic depends on.

With the walks given, bytes are sums of products: the same functions count them for numbers and for symbols.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncc.cost_models import constants as c
from fusioncc.cost_models import tiles, vendor
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.traffic import counted, streamed_names, sweeps, warm_names
from fusioncc.device import Device


@dataclass(frozen=True)
class Walk:
    """What a launch finds in the L2, which weights the L2 cannot hold, and the tile ``(rows, columns, slices of K)`` of
    a vendor GEMM or of the first pool."""

    warm: frozenset[str] = frozenset()
    streamed: frozenset[str] = frozenset()
    tile: tuple[int, int, int] = (1, 1, 1)
    group_m: int = 1


def walks(sequence: Sequence[Launch], device: Device) -> tuple[Walk, ...] | None:
    """One walk a launch; None where a vendor GEMM cannot be estimated, whose tiles are then unknown."""
    found = []
    for launch, warm in zip(sequence, warm_names(sequence, device), strict=True):
        streamed = streamed_names(launch, device)
        if launch.body == "vendor":
            if launch.unit is None:
                return None
            found.append(Walk(warm, streamed, vendor.vendor_tile(launch, warm, device), c.GROUP_M_VENDOR))
        elif launch.pool is not None:
            pool = launch.pool
            found.append(Walk(warm, streamed, (pool.tile.block_m, pool.tile.block_n, pool.k_split), pool.group_m))
        else:
            found.append(Walk(warm, streamed))
    return tuple(found)


def dram_bytes(launch: Launch, walk: Walk) -> int:
    """Bytes of a launch through the memory: each operand that is not found in the L2, and each result."""
    return counted(launch, walk.warm, walk.streamed, sweeps(launch.m, walk.tile[0], walk.group_m)).dram


def l2_bytes(launch: Launch, walk: Walk, least: Callable[[Any, Any], Any] = min) -> int:
    """Bytes of operands that the K loops of all tiles draw through the L2; a launch without one moves each tensor once.
    ``least``: the smaller of two sizes."""
    if launch.body == "vendor":
        return vendor.drawn_bytes(launch, walk.tile, least)
    if launch.pool is None or not launch.k:
        return sum(tensor.bytes for tensor in (*launch.reads, *launch.writes))
    return tiles.drawn_bytes(launch, least)
