"""Tile orders: how a program finds ``row_block`` and ``col_block`` from the number of its tile."""

from fusioncc.codegen.kernel import ROWS, TILE, Param, Part, constant, part
from fusioncc.codegen.tile import block_constants
from fusioncc.group import Group
from fusioncc.schedule import Pool


def one_row_block(group: Group, pool: Pool) -> bool:
    """Whether a single block of rows holds all of a static M."""
    return not group.m_symbol and group.m <= pool.tile.block_m


def main_order(group: Group, pool: Pool, n: Param) -> Part:
    """Grouped ordering: ``GROUP_M`` row blocks walk the columns together, so that tiles of W are reused from L2.

    The order falls back to simpler forms of itself: all row blocks fit in one group, or there is one row block only.
    """
    if one_row_block(group, pool):
        return part(*(["row_block = 0"] if pool.tile.tma else []), "col_block = tile", params=(TILE,))
    row_blocks = part("row_blocks = tl.cdiv(M, BLOCK_M)", params=(ROWS, *block_constants(pool.tile, "M")))
    if not group.m_symbol and -(-group.m // pool.tile.block_m) <= pool.group_m:
        return row_blocks + part(
            "row_block = tile % row_blocks",
            "col_block = tile // row_blocks",
            params=(TILE,),
        )
    return (
        part("# Grouped ordering: GROUP_M row blocks walk the columns together and share W's tiles in L2.")
        + row_blocks
        + part(
            f"group_size = GROUP_M * tl.cdiv({n.name}, BLOCK_N)",
            "first_row_block = tile // group_size * GROUP_M",
            "group_rows = min(row_blocks - first_row_block, GROUP_M)",
            "row_block = first_row_block + tile % group_size % group_rows",
            "col_block = tile % group_size // group_rows",
            params=(TILE, n, *block_constants(pool.tile, "N"), constant("GROUP_M", pool.group_m)),
        )
    )


def down_order(group: Group, pool: Pool) -> Part:
    """Row block by row block, the slices of K next to each other."""
    if pool.k_split == 1:
        return Part() if one_row_block(group, pool) else part("row_block = tile", params=(TILE,))
    if one_row_block(group, pool):
        return part("k_slice = tile", params=(TILE,))
    return part(
        "row_block = tile // K_SPLIT",
        "k_slice = tile % K_SPLIT",
        params=(TILE, constant("K_SPLIT", pool.k_split)),
    )


def tile_count(group: Group, pool: Pool, blocks: Part) -> Part:
    """The number of a member's tiles, as source in a kernel: ``blocks`` of them for each block of rows."""
    if one_row_block(group, pool):
        return blocks
    rows, params = "tl.cdiv(M, BLOCK_M)", (ROWS, *block_constants(pool.tile, "M"))
    (count,) = blocks.lines
    return part(rows if count == "1" else f"{rows} * {count}", params=(*params, *blocks.params))
