"""Vocabulary of schedules: how a group runs. Plain frozen values, no torch.

A schedule is a kind and, for the kinds that emit kernels, one :class:`Pool` for each set of tiles. It holds everything
that defines the emitted code. ``SCHEDULES`` lists the kinds that exist; a new kind adds its name here, a file in
``codegen`` and a file in ``cost_models``.
"""

from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby
from typing import Literal

SCHEDULES = (
    "library",
    "streams",
    "concat",
    "horizontal",
    "split",
    "inline",
    "two_pool",
    "packed",
    "k_concat",
    "merged",
)
Ordering = Literal["grouped"]


@dataclass(frozen=True)
class TileConfig:
    """One tile shape in elements, warps a program, software-pipeline stages of the K loop."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 3
    swap_operands: bool = False
    """Compute the transposed tile, so that N is the M side of the MMA (for few rows)."""
    tma: bool = False
    """Move tiles through TMA descriptors (Hopper on); the pool is persistent and names its ``workers``."""
    epilogue_subtiles: int = 1
    """Parts in which a TMA tile is stored, one after another: less shared memory for the output, more for stages."""

    @property
    def one_row(self) -> bool:
        """A tile of a single row multiplies without tensor cores: every element of ``[block_n, block_k]`` sums its own
        products, and those of a column are added behind the K loop. It streams W at the rate of the memory."""
        return self.block_m == 1

    @property
    def swaps_x(self) -> bool:
        """Whether X is transposed as well; a single row is not: it is spread over the columns of a swapped tile."""
        return self.swap_operands and not self.one_row

    def holds_heads(self, columns: int) -> bool:
        """Whether it can rotate the halves of heads of so many columns: it has whole heads or, where columns need not
        lie side by side as descriptors need them, as many of either half of one."""
        parts = self.block_n > 1 and columns % self.block_n == 0 and not self.tma
        return parts or self.block_n % columns == 0

    @property
    def elements_a_thread(self) -> float:
        """Elements of the tile that each thread accumulates."""
        return (self.block_k if self.one_row else self.block_m) * self.block_n / (32 * self.num_warps)


UNROLLED_STEPS = 3
"""K steps of a tile of one row up to which its loop is unrolled: all loads of a program are then under way at once, and
what the last step has behind the end of K costs nothing. As a loop, three steps of 4x2048 take 106 registers a thread,
unrolled 71 (Triton 3.7, capability 90); four and more take more than the loop."""
UNROLLED_SLICES = 8
"""Slices of K up to which their sum is unrolled; 32 unrolled loads spilled 1168 bytes (64 rows, 4 warps)."""
LEAST_RANK, MAX_RANK = 16, 256
"""Smallest rank of a tile: the narrowest MMA; below it Hopper falls back to the old one. And the largest: a program
holds a whole row of ``X @ A``."""


@singledispatch
def padded_rank(rank: int) -> int:
    """The rank of a tile: a power of two, at least ``LEAST_RANK``. Of a symbol, ``cost_models.letters`` says what it
    is."""
    return max(LEAST_RANK, 1 << (rank - 1).bit_length())


WARP_GROUP_ROWS = 64
"""Rows from which Triton uses Hopper's warp-group MMA."""


def overwrites_x(tile: TileConfig, ranks: tuple[int, ...], *, main: bool = False, stored: bool = False) -> bool:
    """Whether a loop would overwrite its X in shared memory while a warp-group MMA still reads it.

    Triton (3.6 and 3.7) keeps one step more of an operand that only such MMAs read, since the one of the step before
    still runs; but not where something else reads it too: an MMA on single warps, with another A of these padded ranks
    or, in a ``main`` tile, with W; or a store of X. Results then vary from run to run (measured on an H200, bf16:
    inline with ``block_n`` 128 and 256; a down tile with ranks 16 and 64; ``k_concat`` with rank 128). A swapped tile
    puts ``block_n`` and the ranks on the row side, where 64 make the difference. A 16-bit X that is widened for an fp32
    A is read twice as well; there each such MMA ends within its step.
    """
    if not ranks or tile.one_row:
        return False
    sides = (*ranks, *((tile.block_n,) if main else ())) if tile.swap_operands else (tile.block_m,)
    if max(sides) < WARP_GROUP_ROWS:
        return False
    return stored or (tile.swap_operands and (main or min(sides) < WARP_GROUP_ROWS))


def squares_x(tile: TileConfig) -> bool:
    """Whether something beside a warp-group MMA reads the X of a main tile in shared memory, as the squares of a norm
    without a weight do: the loop would overwrite it, as above. With a weight the MMA reads what registers made of X."""
    return not tile.one_row and (tile.block_n if tile.swap_operands else tile.block_m) >= WARP_GROUP_ROWS


MOST_BESIDE = 32
"""Largest padded rank of which the pieces lie beside one another: their accumulators are four times as wide."""


def pieces_beside(tile: TileConfig, padded: int) -> bool:
    """Whether the three bf16 pieces of an fp32 A, and zeros as the fourth, are the columns of one operand: one MMA for
    each K step, and one wait for it, where three products take three. In a swapped tile they would be rows, of which 64
    make another MMA of it (:func:`overwrites_x`)."""
    return not (tile.swap_operands or tile.one_row) and padded <= MOST_BESIDE


COMPENSATED_STEP = 32
"""Longest K step of a compensated fp32 product: the products of one step are one chain of additions. With 128 the
result was twice as far from fp64 as the vendor GEMM's (H200, one row, K = 1000); with 32 it is as close."""


@dataclass(frozen=True)
class Pool:
    """The tiles of ``members`` (indices) in one tile shape; pools of one ``launch`` share a kernel.

    An ``up`` pool lists main members: it adds the low-rank parts to what a ``main`` pool or a vendor GEMM wrote.
    """

    role: Literal["main", "down", "up"]
    members: tuple[int, ...]
    tile: TileConfig
    launch: int
    workers: int | None = None
    """Programs of a persistent pool; None: one program a tile."""
    ordering: Ordering = "grouped"
    group_m: int = 8
    """Row blocks in one group of the grouped ordering."""
    chunk: int | None = None
    """Consecutive tiles handed out at once by a queue; None: no queue."""
    late: int = 0
    """Turns of main tiles that the workers of a down pool sit out, since they come late (stripes of ``two_pool``)."""
    k_split: int = 1
    """Slices along K; each writes fp32 partial sums that the consumer adds in a fixed order."""
    dependent: bool = False
    """Starts while the launch before it still runs, and waits for it before reading what it writes (programmatic
    dependent launch, Hopper on)."""
    joins_last: bool = False
    """Main tiles of ``split`` read the down products behind their K loop, not before it: a dependent launch then waits
    there."""

    def unrolls(self, depth: int) -> bool:
        """Whether the loop of its tiles over all of K, which is ``depth``, is unrolled."""
        return self.tile.one_row and self.k_split == 1 and depth <= UNROLLED_STEPS * self.tile.block_k


@dataclass(frozen=True)
class Schedule:
    """A kind from ``SCHEDULES`` and its pools. Vendor GEMMs have none: all of ``library``, the mains of ``streams``."""

    kind: str
    pools: tuple[Pool, ...] = ()
    vendor_multiprocessors: int | None = None
    """Multiprocessors that the vendor GEMMs of ``streams`` may use; None: all."""

    def by_launch(self) -> list[tuple[Pool, ...]]:
        """The pools of each launch, in order."""
        ordered = sorted(self.pools, key=lambda pool: pool.launch)
        return [tuple(pools) for _, pools in groupby(ordered, key=lambda pool: pool.launch)]

    def k_splits(self, role: str) -> dict[int, int]:
        """Slices of K of each member that a pool of this role computes."""
        return {member: pool.k_split for pool in self.pools if pool.role == role for member in pool.members}


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of one execution of a group. Times in microseconds, traffic in bytes through DRAM."""

    us: float
    bytes: int
    flops: int
    launches: int
    tiles: int = 0
    waves: float = 0.0
    terms: tuple[tuple[str, float], ...] = ()
    """Named parts of ``us`` in microseconds (``dram``, ``mma``, ``launch``, ``tail``), in a fixed order."""
    binds: str = ""
    """The term that dominates."""


@dataclass(frozen=True)
class Footprint:
    """What a region costs before or after the rewrite: kernels launched, bytes moved, peak live bytes."""

    kernels: int
    bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Candidate:
    """A schedule considered for a group: its predicted time, or why it is illegal."""

    kind: str
    legal: bool
    reason: str
    predicted_us: float | None = None
    schedule: Schedule | None = None
    estimate: Estimate | None = None
