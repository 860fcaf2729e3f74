"""What the cost models know of a kernel: one :class:`Launch`, with the tensors it reads and writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from fusioncc.group import DTYPE_BYTES, Branch, Group
from fusioncc.schedule import Pool, padded_rank

Unit = Literal["bf16", "tf32", "fp32"]
"""What does the multiplying: bf16/fp16 tensor cores, tf32 tensor cores, plain fp32 arithmetic."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as memory traffic sees it. Weights outlive the group, and so does what is ``held`` beside them (a merged
    copy); the other kinds die at their last use."""

    name: str
    bytes: int
    kind: Literal["input", "weight", "held", "intermediate", "output"]
    element: int = 1
    """Bytes of one element; 1 where ``bytes`` follow from no dtype of the group."""
    sliced: bool = False
    """Holds one part for each slice of K of the pool that writes it."""


@dataclass(frozen=True)
class RankBlock:
    """The columns that a branch adds to a tile: padded rank, pieces of an fp32 adapter, bytes of an element of A, and
    those that an element of B takes in shared memory while it is joined."""

    padded: int
    pieces: int
    element: int
    joined: int


@dataclass(frozen=True)
class Launch:
    """One kernel. ``body`` says what runs: a vendor GEMM, an elementwise kernel, or one of the emitted forms.

    ``inline``: main tiles that also accumulate X@A; ``join``: main tiles that begin with the joined product;
    ``down``: X@A for all ``ranks``, in ``pool.k_split`` slices. ``unit`` is None where no rate is known.
    """

    body: Literal["vendor", "pointwise", "inline", "join", "down"]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    unit: Unit | None = None
    x_element: int = 2
    w_element: int = 2
    out_element: int = 2
    pool: Pool | None = None
    ranks: tuple[RankBlock, ...] = ()
    slices: int = 1
    """Slices of partial sums that a ``join`` adds."""
    product_slices: int = 0
    """Slices of the product that a join without a K loop adds."""
    member: int = 0
    """The main member, or the first down member."""
    beside: bool = False
    """Runs at the same time as every other launch that says so, on a stream of its own."""
    waits_inside: bool = False
    """Main tiles that join what other programs of the same launch make (``two_pool``)."""
    together: int = 1
    """Main members of which one program computes a tile each: ``n`` is that of one of them."""
    head: int = 1
    """Columns of the heads whose halves its tiles rotate; 1: none."""
    normed: bool = False
    """Whether its tiles carry out a norm in front: X goes through registers, which hold its squares as well."""
    weighted: bool = False
    """Whether that norm has a weight."""
    bundled: tuple["Launch", ...] = ()
    """The parts of a bundle, each as its own launch would be; empty for a single one."""

    @property
    def parts(self) -> tuple["Launch", ...]:
        """The launches that run in this one's grid: those bundled, or itself."""
        return self.bundled or (self,)

    @property
    def width(self) -> int:
        """Columns of all main tiles of one program."""
        assert self.pool is not None
        return 0 if self.body == "down" else self.pool.tile.block_n * self.together

    @property
    def waits(self) -> bool:
        """Whether workers of the launch wait for others (``two_pool``)."""
        return any(part.waits_inside for part in self.parts)

    @property
    def joins_last(self) -> bool:
        """Whether its tiles read the down products behind their K loops."""
        return self.body == "join" and self.pool is not None and (self.waits_inside or self.pool.joins_last)


def unit_of(dtype: str, precision: str) -> Unit | None:
    """Arithmetic unit for a product in ``dtype``; None: no figure for it."""
    if dtype in ("bf16", "fp16"):
        return "bf16"
    if dtype == "fp32":
        return "tf32" if precision == "tf32" else "fp32"
    return None


@lru_cache(maxsize=4096)
def rank_block(group: Group, branch: Branch, tier: str) -> RankBlock:
    """How a branch enters a tile. An fp32 adapter over a 16-bit X is cut into three 16-bit pieces, unless relaxed."""
    down = group.members[branch.down]
    mixed = down.weight.dtype == "fp32" and group.lhs.dtype != "fp32" and down.dtype == "fp32"
    pieces = 3 if mixed and tier != "relaxed" else 1
    return RankBlock(padded_rank(down.n), pieces, DTYPE_BYTES[down.weight.dtype], _joined_element(group, branch, tier))


IN_PIECES, IN_TF32X3 = 3 * 2, 2 * 4
"""Bytes of an element of B in shared memory as three bf16 pieces, and as the two fp32 parts of tf32x3."""


def _joined_element(group: Group, branch: Branch, tier: str) -> int:
    """Bytes of an element of B while it is joined: three bf16 pieces where B is fp32 beside a bf16 X, and two fp32 for
    the three products of tf32x3 beside an fp16 X, unless nothing is mixed."""
    x, a, b = (each.dtype for each in (group.lhs, group.members[branch.down].weight, group.members[branch.up].weight))
    if tier == "relaxed" or x == "fp32" or x == a == b:
        return DTYPE_BYTES[x]
    return IN_TF32X3 if x == "fp16" else IN_PIECES if b == "fp32" else DTYPE_BYTES[x]


def with_pool(launch: Launch, pool: Pool) -> Launch:
    """The same launch with another pool; partial sums grow with its K split."""
    assert launch.pool is not None
    before, writes = launch.pool.k_split, launch.writes
    if pool.k_split != before:
        writes = tuple(replace(t, bytes=t.bytes // before * pool.k_split) if t.sliced else t for t in writes)
    return _changed(launch, pool=pool, writes=writes)


def _changed(launch: Launch, **fields: Any) -> Launch:
    """As :func:`dataclasses.replace`, in a tenth of the time: a search makes thousands of launches."""
    changed = object.__new__(Launch)
    changed.__dict__.update(launch.__dict__, **fields)
    return changed


def with_pools(launch: Launch, pools: Sequence[Pool]) -> Launch:
    """The same launch with other pools for the same members."""
    if not launch.bundled:
        return with_pool(launch, pools[0])
    by_member = {(pool.role == "down", member): pool for pool in pools for member in pool.members}
    parts = tuple(with_pool(part, by_member[part.body == "down", part.member]) for part in launch.bundled)
    writes = tuple(tensor for part in parts for tensor in part.writes)
    return _changed(launch, pool=parts[0].pool, writes=writes, bundled=parts)


def bundle(parts: Sequence[Launch]) -> Launch:
    """One launch for all the parts: what several of them read is read once."""
    if len(parts) == 1:
        return parts[0]
    reads = tuple(dict.fromkeys(tensor for part in parts for tensor in part.reads))
    writes = tuple(tensor for part in parts for tensor in part.writes)
    return replace(parts[0], reads=reads, writes=writes, bundled=tuple(parts))
