"""A step: one launch of a schedule, and what may be chosen for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fusioncc.autotune import knobs
from fusioncc.cost_models.launch import rank_block
from fusioncc.descriptors import TMA_CAPABILITY, refusal
from fusioncc.device import DEPENDENT_CAPABILITY, Device
from fusioncc.group import Group
from fusioncc.schedule import UNROLLED_SLICES, Pool, TileConfig, overwrites_x, padded_rank


@dataclass(frozen=True)
class Step:
    """One launch of a kind: the members it covers, and what generates the pools that it may take together."""

    members: tuple[int, ...]
    pools: Callable[[], Iterator[tuple[Pool, ...]]]
    consumers: int = 0
    """Later launches that add this step's partial sums, slice by slice."""


def tma_workers(group: Group, mains: tuple[int, ...], device: Device) -> int:
    """Programs of a persistent pool, one a multiprocessor; 0 where a member has no TMA form on ``device``."""
    tma = device.capability >= TMA_CAPABILITY and group.norm is None and not any(refusal(group, main) for main in mains)
    return device.multiprocessors if tma else 0


def one_row(group: Group, members: tuple[int, ...]) -> bool:
    """Whether tiles of one row suit these members: the group has one row in every call, and the weights are contiguous
    along K, as such tiles read them."""
    weights = (group.members[index].weight for index in members)
    return group.m == 1 and not group.m_symbol and all(weight.strides[0] == 1 for weight in weights)


def starts_early(group: Group, device: Device) -> bool:
    """Whether the main launch of the group may start while its down launch still runs: the graph makes no operand."""
    read = (group.members[index].weight for index in (*group.mains, *group.downs))
    return device.capability >= DEPENDENT_CAPABILITY and not any(weight.made for weight in read)


def row_bytes(group: Group) -> int:
    """Bytes that a pass may hold of one row of all A side by side, ranks padded as in a tile: fp32 adapters of a 16-bit
    X count three 16-bit pieces as well."""
    blocks = dict.fromkeys((branch.down, rank_block(group, branch, "fp32")) for branch in group.branches)
    return sum(rank.padded * (rank.element + 2 * rank.pieces * (rank.pieces > 1)) for _, rank in blocks)


def down_side(group: Group, downs: tuple[int, ...], tile: TileConfig, *, stored: bool = False) -> TileConfig:
    """The tile of a down pass beside such a main tile: not swapped where it would overwrite X, which may be ``stored``
    as well."""
    ranks = tuple(padded_rank(group.members[down].n) for down in downs)
    return replace(tile, swap_operands=False) if overwrites_x(tile, ranks, stored=stored) else tile


def down_pass(group: Group, consumers: int, *, early: bool = False, copies: bool = False) -> Step:
    """One pass over X for all downs of the group, which ``consumers`` later launches join.

    Where those start ``early`` its time is hidden: few slices are enough, and their sum is unrolled. A single one of a
    deep K would be seen: beside main tiles each of its loads waits its turn (measured on an H200: 3 to 5 us at 16 and
    64 rows, K = 4096). One that also ``copies`` X has no tiles of one row, and none on the warp-group MMA; where there
    are more rows than 16, none that are swapped either, which took 11 to 13 us where others took 8 (512 rows).
    """
    downs = group.downs
    ranks = tuple(padded_rank(group.members[down].n) for down in downs)
    saved = any(branch.saved for branch in group.branches)

    def pools() -> Iterator[tuple[Pool, ...]]:
        least = 2 if early and group.k > knobs.SHORT_PASS else 1
        most = UNROLLED_SLICES if early else max(knobs.K_SPLIT)
        splits = [k_split for k_split in knobs.K_SPLIT if least <= k_split <= most]
        row = one_row(group, downs) and not copies and sum(ranks) <= knobs.ROW_RANKS
        tiles = knobs.row_down_tiles(max(ranks), group.k) if row else knobs.down_tiles(max(ranks))
        for tile in (down_side(group, downs, each, stored=copies) for each in tiles):
            slow = tile.swap_operands and group.m > knobs.FEW_ROWS
            if copies and (slow or overwrites_x(tile, ranks, stored=True)):
                continue
            for k_split in (1,) if saved else splits:
                yield (Pool("down", downs, tile, 0, k_split=k_split),)

    return Step(downs, pools, consumers)
