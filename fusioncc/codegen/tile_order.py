"""Tile orders: how a program finds its ``row_block`` and ``col_block`` from its id."""

from fusioncc.codegen.kernel import ROWS, Param, Part, constant, part
from fusioncc.codegen.tile import block_constants
from fusioncc.group import Group
from fusioncc.schedule import Pool


def one_row_block(group: Group, pool: Pool) -> bool:
    """Whether a single block of rows holds all of a static M."""
    return not group.m_symbol and group.m <= pool.tile.block_m


def main_order(group: Group, pool: Pool, n: Param) -> Part:
    """Grouped ordering: ``GROUP_M`` row blocks walk the columns together, so that tiles of W are reused from L2.

    The tile's number is the program's id, or ``tile`` in a persistent kernel. The order falls back to simpler forms of
    itself: all row blocks fit in one group, or there is one row block only.
    """
    index = "tl.program_id(0)" if pool.workers is None else "tile"
    if one_row_block(group, pool):
        return part(*(["row_block = 0"] if pool.tile.tma else []), f"col_block = {index}")
    row_blocks = part("row_blocks = tl.cdiv(M, BLOCK_M)", params=(ROWS, *block_constants(pool.tile, "M")))
    if not group.m_symbol and -(-group.m // pool.tile.block_m) <= pool.group_m:
        return row_blocks + part(
            f"row_block = {index} % row_blocks",
            f"col_block = {index} // row_blocks",
        )
    return (
        part("# Grouped ordering: GROUP_M row blocks walk the columns together and share W's tiles in L2.")
        + row_blocks
        + part(
            f"group_size = GROUP_M * tl.cdiv({n.name}, BLOCK_N)",
            f"first_row_block = {index} // group_size * GROUP_M",
            "group_rows = min(row_blocks - first_row_block, GROUP_M)",
            f"row_block = first_row_block + {index} % group_size % group_rows",
            f"col_block = {index} % group_size // group_rows",
            params=(n, *block_constants(pool.tile, "N"), constant("GROUP_M", pool.group_m)),
        )
    )


def down_order(group: Group, pool: Pool) -> Part:
    """Row block by row block, the slices of K next to each other."""
    if pool.k_split == 1:
        return Part() if one_row_block(group, pool) else part("row_block = tl.program_id(0)")
    if one_row_block(group, pool):
        return part("k_slice = tl.program_id(0)")
    return part(
        "row_block = tl.program_id(0) // K_SPLIT",
        "k_slice = tl.program_id(0) % K_SPLIT",
        params=(constant("K_SPLIT", pool.k_split),),
    )
