"""The tile of a chain's kernel: enough elements a thread for wide loads, enough programs for every multiprocessor."""

from fusioncc.chain import Chain, ChainTile
from fusioncc.codegen.chain_space import space_of
from fusioncc.device import Device
from fusioncc.group import DTYPE_BYTES

THREADS = 128
ACCESS_BYTES = 16
"""Widest load and store of a thread; it has so many elements that the narrowest tensor is read or written so."""
MAX_COLUMNS = 1024
LEAST_COLUMNS = 32
THREAD_ELEMENTS = 16
"""Elements of a whole row that a thread holds of each value, before a row takes more warps."""
MAX_WARPS = 16


def chain_tile(chain: Chain, device: Device) -> ChainTile:
    """The tile for a chain on a device."""
    space = space_of(chain)
    columns = space.sizes[-1]
    elements = THREADS * ACCESS_BYTES // _narrowest(chain)
    if chain.by_rows:
        wide = _power(columns)
        warps = min(MAX_WARPS, max(4, wide // (32 * THREAD_ELEMENTS)))
        return ChainTile(max(1, min(elements // wide, _power(space.rows))), wide, warps)
    if len(space.sizes) == 1:
        block = elements
        while block > 128 and columns < block * device.multiprocessors:
            block //= 2
        return ChainTile(0, block, 4 if block >= 4 * THREADS else 2 if block > THREADS else 1)
    wide = max(min(_power(columns), MAX_COLUMNS), LEAST_COLUMNS)
    return ChainTile(max(1, min(elements // wide, _power(space.rows))), wide, 4)


def _narrowest(chain: Chain) -> int:
    """Bytes of an element of the narrowest tensor; of tensors of 32 bits and wider 4."""
    values = (*range(len(chain.inputs)), *(result.value for result in chain.results))
    return min(4, *(DTYPE_BYTES[chain.dtype_of(value)] for value in values if chain.shape_of(value)))


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
