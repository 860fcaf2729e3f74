"""Schedules and groups in words, the same wherever they are shown."""

from collections import Counter

from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule


def describe_group(group: Group) -> str:
    """``64x4096 bf16 → 28672 r8``: M x K of X, its dtype, N of each main product, ranks; ``M`` where it is symbolic."""
    rows = f"M~{group.m}" if group.m_symbol else group.m
    ranks = dict.fromkeys(f" r{group.members[branch.down].n}" for branch in group.branches)
    columns = "+".join(str(group.members[main].n) for main in group.mains)
    return f"{rows}x{group.k} {group.lhs.dtype} → {columns}{''.join(ranks)}"


def describe_schedule(schedule: Schedule) -> str:
    """Kind and, in brackets, every pool: ``inline (main 64x128x64, 4 warps, 3 stages)``."""
    pools = describe_pools(schedule)
    return f"{schedule.kind} ({pools})" if pools else schedule.kind


def describe_pools(schedule: Schedule) -> str:
    """Every pool of the schedule with its tile and the knobs that are in use; equal pools are counted."""
    alike = Counter(map(describe_pool, schedule.pools))
    described = [text if count == 1 else f"{count} times {text}" for text, count in alike.items()]
    vendor = schedule.vendor_multiprocessors
    return "; ".join([*described, *([] if vendor is None else [f"vendor GEMMs on {vendor} multiprocessors"])])


def describe_pool(pool: Pool) -> str:
    tile, count = pool.tile, len(pool.members)
    what = f"{count} mains in one launch" if pool.role == "main" and count > 1 else pool.role
    parts = [
        f"{what} {tile.block_m}x{tile.block_n}x{tile.block_k}, {tile.num_warps} warps, {tile.num_stages} stages",
        "TMA" if tile.tma else "",
        f"stored in {tile.epilogue_subtiles} parts" if tile.epilogue_subtiles > 1 else "",
        "operands swapped" if tile.swap_operands else "",
        f"K in {pool.k_split} slices" if pool.k_split > 1 else "",
        f"{pool.workers} workers" if pool.workers is not None else "",
        f"chunks of {pool.chunk}" if pool.chunk is not None else "",
        f"late by {counted(pool.late, 'turn')}" if pool.late else "",
        "starts during the launch before" if pool.dependent else "",
        "joins last" if pool.joins_last else "",
    ]
    return ", ".join(part for part in parts if part)


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
