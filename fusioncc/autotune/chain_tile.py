"""The tile of a chain's kernel: enough elements a thread for wide loads, enough programs for every multiprocessor."""

from fusioncc.chain import Chain, ChainTile
from fusioncc.codegen.chain_space import space_of
from fusioncc.device import Device

ELEMENTS = 1024
"""Elements of a tile of 4 warps: 8 a thread, which are 16 bytes of bf16. With 16 a thread SiLU·mul to 8 bits took 18.1
to 21.5 us where this takes 16.3 to 18.3, with 4 it took 17.3 to 20.3 (H200, [1024, 12288])."""
MAX_COLUMNS = 1024
LEAST_COLUMNS = 32
THREAD_ELEMENTS = 16
"""Elements of a whole row that a thread holds of each value, before a row takes more warps."""
MAX_WARPS = 16


def chain_tile(chain: Chain, device: Device) -> ChainTile:
    """The tile for a chain on a device."""
    space = space_of(chain)
    columns = space.sizes[-1]
    if chain.by_rows:
        wide = _power(columns)
        warps = min(MAX_WARPS, max(4, wide // (32 * THREAD_ELEMENTS)))
        return ChainTile(max(1, min(ELEMENTS // wide, _power(space.rows))), wide, warps)
    if len(space.sizes) == 1:
        block = ELEMENTS
        while block > 128 and columns < block * device.multiprocessors:
            block //= 2
        return ChainTile(0, block, max(1, min(4, block // 256)))
    wide = max(min(_power(columns), MAX_COLUMNS), LEAST_COLUMNS)
    return ChainTile(max(1, min(ELEMENTS // wide, _power(space.rows))), wide, 4)


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
