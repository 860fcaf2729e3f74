"""What a schedule launches: one :class:`Launch` for each kernel, in order, with the tensors it reads and writes.

Traffic, time, launches and peak memory are all read off this list. A new kind of schedule adds one builder to
``BUILDERS``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from fusioncc.group import DTYPE_BYTES, Branch, Group, Member, Operand
from fusioncc.schedule import Pool, Schedule, padded_rank

Unit = Literal["bf16", "tf32", "fp32"]
"""What does the multiplying: bf16/fp16 tensor cores, tf32 tensor cores, plain fp32 arithmetic."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as memory traffic sees it. Weights outlive the group, and so does what is ``held`` beside them (a merged
    copy); the other kinds die at their last use."""

    name: str
    bytes: int
    kind: Literal["input", "weight", "held", "intermediate", "output"]


@dataclass(frozen=True)
class RankBlock:
    """The columns that a branch adds to a tile: padded rank, pieces of an fp32 adapter, bytes of an element of A."""

    padded: int
    pieces: int
    element: int


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
    member: int = 0
    """The main member, or the first down member."""
    beside: bool = False
    """Runs at the same time as every other launch that says so, on a stream of its own."""
    bundled: tuple["Launch", ...] = ()
    """The parts of a bundle, each as its own launch would be; empty for a single one."""

    @property
    def parts(self) -> tuple["Launch", ...]:
        """The launches that run in this one's grid: those bundled, or itself."""
        return self.bundled or (self,)


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
    return RankBlock(padded_rank(down.n), pieces, DTYPE_BYTES[down.weight.dtype])


def with_pool(launch: Launch, pool: Pool) -> Launch:
    """The same launch with another pool; partial sums grow with its K split."""
    assert launch.pool is not None
    if pool.k_split == launch.pool.k_split:
        return replace(launch, pool=pool)
    before = launch.pool.k_split
    writes = tuple(
        replace(t, bytes=t.bytes // before * pool.k_split) if t.kind == "intermediate" else t for t in launch.writes
    )
    return replace(launch, pool=pool, writes=writes)


def with_pools(launch: Launch, pools: Sequence[Pool]) -> Launch:
    """The same launch with other pools for the same members."""
    if not launch.bundled:
        return with_pool(launch, pools[0])
    by_member = {(pool.role == "down", member): pool for pool in pools for member in pool.members}
    parts = tuple(with_pool(part, by_member[part.body == "down", part.member]) for part in launch.bundled)
    writes = tuple(tensor for part in parts for tensor in part.writes)
    return replace(launch, pool=parts[0].pool, writes=writes, bundled=parts)


def launches(group: Group, schedule: Schedule, tier: str = "fp32") -> tuple[Launch, ...]:
    """The kernels of ``schedule``, in order.

    Raises:
        KeyError: the kind of schedule is unknown.
    """
    return BUILDERS[schedule.kind](group, schedule, tier)


def _x(group: Group) -> Tensor:
    return Tensor("x", group.lhs.bytes, "input")


def _operands(label: str, *operands: Operand | None) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"{label}.{i}", each.bytes, "weight") for i, each in enumerate(operands) if each is not None)


def _product(index: int, member: Member, kind: Literal["intermediate", "output"]) -> Tensor:
    return Tensor(f"y{index}", member.batch * member.m * member.n * DTYPE_BYTES[member.dtype], kind)


def _result(group: Group, main: int) -> Tensor:
    member = group.members[main]
    size = member.batch * member.m * member.n * DTYPE_BYTES[group.output_of(main).dtype]
    return Tensor(f"out{main}", size, "output")


def _vendor(group: Group, index: int, x: Tensor, out: Tensor) -> list[Launch]:
    """A vendor GEMM, behind a cast of its weight where the graph casts it."""
    member = group.members[index]
    weight = _operands(f"w{index}", member.weight)
    before: list[Launch] = []
    if DTYPE_BYTES[member.weight.dtype] > DTYPE_BYTES[member.dtype]:
        cast = Tensor(
            f"w{index}.cast",
            member.weight.bytes * DTYPE_BYTES[member.dtype] // DTYPE_BYTES[member.weight.dtype],
            "intermediate",
        )
        before, weight = [Launch("pointwise", weight, (cast,))], (cast,)
    reads = (x, *weight, *_operands(f"b{index}", member.bias))
    size = DTYPE_BYTES[member.dtype]
    unit = unit_of(member.dtype, group.fp32_precision)
    gemm = Launch(
        "vendor", reads, (out,), member.m, member.n, member.k, member.batch, unit=unit, x_element=size, w_element=size
    )
    return [*before, gemm]


def _library_main(group: Group, main: int, casts: dict[str, Tensor]) -> list[Launch]:
    """Main, down and up GEMMs of one main member, the sum, and the casts between them."""
    member, branches = group.members[main], group.branches_of(main)
    result = _result(group, main)
    plain = not branches and group.output_of(main).dtype == member.dtype
    product = result if plain else _product(main, member, "intermediate")
    made = _vendor(group, main, _x(group), product)
    parts = [product]
    for branch in branches:
        down, up = group.members[branch.down], group.members[branch.up]
        x = _x(group)
        if DTYPE_BYTES[down.dtype] > DTYPE_BYTES[group.lhs.dtype]:
            wide = Tensor(
                f"x.{down.dtype}", x.bytes * DTYPE_BYTES[down.dtype] // DTYPE_BYTES[group.lhs.dtype], "intermediate"
            )
            if down.dtype not in casts:
                made.append(Launch("pointwise", (x,), (wide,)))
            x = casts.setdefault(down.dtype, wide)
        low = _product(branch.down, down, "output" if branch.saved else "intermediate")
        part = _product(branch.up, up, "intermediate")
        made += _vendor(group, branch.down, x, low) + _vendor(group, branch.up, low, part)
        parts += [part, *_operands(f"s{branch.up}", *branch.scale_tensors)]
    return made if plain else [*made, Launch("pointwise", tuple(parts), (result,))]


def _library(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    casts: dict[str, Tensor] = {}
    return tuple(launch for main in group.mains for launch in _library_main(group, main, casts))


def _main_tiles(
    group: Group,
    pool: Pool,
    main: int,
    body: Literal["inline", "join"],
    tier: str,
    downs: dict[int, Tensor],
    slices: int,
) -> Launch:
    """The launch of one main member with its branches: A is read inline, or the partial sums of the downs are."""
    member, branches = group.members[main], group.branches_of(main)
    body = body if branches else "inline"
    reads = [_x(group), *_operands(f"w{main}", member.weight, member.bias)]
    writes = [_result(group, main)]
    for branch in branches:
        down, up = group.members[branch.down], group.members[branch.up]
        reads += _operands(f"w{branch.up}", up.weight, up.bias, *branch.scale_tensors)
        if body == "join":
            reads.append(downs[branch.down])
        else:
            reads += _operands(f"w{branch.down}", down.weight, down.bias)
            writes += [_product(branch.down, down, "output")] * branch.saved
    return Launch(
        body,
        tuple(reads),
        tuple(writes),
        m=member.m,
        n=member.n,
        k=member.k,
        unit=unit_of(max(group.lhs.dtype, member.weight.dtype, key=DTYPE_BYTES.__getitem__), group.fp32_precision),
        x_element=DTYPE_BYTES[group.lhs.dtype],
        w_element=DTYPE_BYTES[member.weight.dtype],
        out_element=DTYPE_BYTES[group.output_of(main).dtype],
        pool=pool,
        ranks=tuple(rank_block(group, branch, tier) for branch in branches),
        slices=slices if body == "join" else 1,
        member=main,
    )


def bundle(parts: Sequence[Launch]) -> Launch:
    """One launch for all the parts: what several of them read is read once."""
    if len(parts) == 1:
        return parts[0]
    reads = tuple(dict.fromkeys(tensor for part in parts for tensor in part.reads))
    writes = tuple(tensor for part in parts for tensor in part.writes)
    widest = max(part.n for part in parts)
    return replace(parts[0], reads=reads, writes=writes, n=widest, bundled=tuple(parts))


def down_launch(group: Group, pool: Pool, tier: str) -> Launch:
    """One pass over X for all downs of ``pool``; each writes ``k_split`` fp32 slices ``[M, padded rank]``."""
    branches = [branch for branch in group.branches if branch.down in pool.members]
    ranks = tuple(rank_block(group, branch, tier) for branch in branches)
    reads, writes = [_x(group)], []
    for branch, rank in zip(branches, ranks, strict=True):
        down = group.members[branch.down]
        reads += _operands(f"w{branch.down}", down.weight, down.bias)
        writes.append(Tensor(f"p{branch.down}", pool.k_split * group.m * rank.padded * 4, "intermediate"))
        writes += [_product(branch.down, down, "output")] * branch.saved
    return Launch(
        "down",
        tuple(reads),
        tuple(writes),
        m=group.m,
        n=sum(group.members[branch.down].n for branch in branches),
        k=group.k,
        unit=unit_of(group.lhs.dtype, group.fp32_precision),
        x_element=DTYPE_BYTES[group.lhs.dtype],
        pool=pool,
        ranks=ranks,
        member=pool.members[0],
    )


def _emitted(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """``inline`` and ``split``: the pools in order of launch, then vendor GEMMs for the mains without a pool."""
    body: Literal["inline", "join"] = "inline" if schedule.kind == "inline" else "join"
    made: list[Launch] = []
    downs: dict[int, Tensor] = {}
    slices = 1
    for _, together in groupby(sorted(schedule.pools, key=_launch_of), key=_launch_of):
        pools = tuple(together)
        if pools[0].role == "down":
            launch = down_launch(group, pools[0], tier)
            partial = {tensor.name: tensor for tensor in launch.writes}
            downs |= {down: partial[f"p{down}"] for down in pools[0].members}
            slices = max(slices, pools[0].k_split)
        else:
            mains = [(pool, main) for pool in pools for main in pool.members]
            launch = bundle([_main_tiles(group, pool, main, body, tier, downs, slices) for pool, main in mains])
        made.append(launch)
    covered = {main for pool in schedule.pools if pool.role == "main" for main in pool.members}
    rest = [main for main in group.mains if main not in covered]
    casts: dict[str, Tensor] = {}
    return tuple(made) + tuple(launch for main in rest for launch in _library_main(group, main, casts))


def _launch_of(pool: Pool) -> int:
    return pool.launch


def _side_by_side(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """``concat`` and ``horizontal``: everything that reads X in one launch; what adds and joins, in another."""
    splits = {main: pool.k_split for pool in schedule.pools if pool.role == "main" for main in pool.members}
    parts: list[Launch] = []
    ups: list[Launch] = []
    downs: dict[int, Tensor] = {}
    slices = 1
    for pool in schedule.pools:
        if pool.role == "down":
            parts.append(down_launch(group, pool, tier))
            downs |= {down: tensor for down in pool.members for tensor in parts[-1].writes if tensor.name == f"p{down}"}
            slices = max(slices, pool.k_split)
        elif pool.role == "main":
            parts += [_product_tiles(group, pool, main, tier) for main in pool.members]
        else:
            ups += [_up_tiles(group, pool, main, splits[main], tier, downs, slices) for main in pool.members]
    covered = {main for pool in schedule.pools if pool.role == "main" for main in pool.members}
    casts: dict[str, Tensor] = {}
    rest = [launch for main in group.mains if main not in covered for launch in _library_main(group, main, casts)]
    return (bundle(parts), *([bundle(ups)] if ups else []), *rest)


def _streams(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """The down launch and a vendor GEMM for each main member beside one another; then what joins the branches."""
    downs: dict[int, Tensor] = {}
    beside: list[Launch] = []
    ups: list[Launch] = []
    slices = 1
    for pool in schedule.pools:
        if pool.role == "down":
            beside.append(down_launch(group, pool, tier))
            downs |= {int(t.name[1:]): t for t in beside[-1].writes if t.name.startswith("p")}
            slices = max(slices, pool.k_split)
        else:
            ups += [_up_tiles(group, pool, main, 1, tier, downs, slices) for main in pool.members]
    for main in group.mains:
        joined = bool(group.branches_of(main))
        product = _fp32_product(group, main, 1) if joined else _result(group, main)
        *_, gemm = _vendor(group, main, _x(group), product)
        later = _operands(f"b{main}", group.members[main].bias) if joined else ()
        beside.append(replace(gemm, reads=tuple(tensor for tensor in gemm.reads if tensor not in later)))
    return (*(replace(launch, beside=True) for launch in beside), *([bundle(ups)] if ups else []))


def _two_pool(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """The zeros of the counters, then down and main tiles in one launch."""
    (down,) = (pool for pool in schedule.pools if pool.role == "down")
    partial = down_launch(group, down, tier)
    downs = {int(tensor.name[1:]): tensor for tensor in partial.writes if tensor.name.startswith("p")}
    mains = [(pool, main) for pool in schedule.pools if pool.role == "main" for main in pool.members]
    parts = [_main_tiles(group, pool, main, "join", tier, downs, down.k_split) for pool, main in mains]
    counters = Tensor("counters", 16 * group.m, "intermediate")
    casts: dict[str, Tensor] = {}
    covered = {main for _, main in mains}
    rest = [launch for main in group.mains if main not in covered for launch in _library_main(group, main, casts)]
    return (Launch("pointwise", (), (counters,)), bundle([*parts, partial]), *rest)


def _fp32_product(group: Group, main: int, k_split: int) -> Tensor:
    return Tensor(f"product{main}", 4 * k_split * group.m * group.members[main].n, "intermediate")


def _product_tiles(group: Group, pool: Pool, main: int, tier: str) -> Launch:
    """``X @ W`` of one main member: its output, or in fp32 what an up launch adds to."""
    launch = _main_tiles(group, pool, main, "inline", tier, {}, 1)
    if not group.branches_of(main) and pool.k_split == 1:
        return launch
    weight = _operands(f"w{main}", group.members[main].weight)
    product = _fp32_product(group, main, pool.k_split)
    return replace(launch, reads=(_x(group), *weight), writes=(product,), out_element=4, ranks=())


def _up_tiles(
    group: Group, pool: Pool, main: int, k_split: int, tier: str, downs: dict[int, Tensor], slices: int
) -> Launch:
    """The slices of a main member's product and its low-rank parts, added: a join without a K loop."""
    launch = _main_tiles(group, pool, main, "join", tier, downs, slices)
    x, weight = _x(group), _operands(f"w{main}", group.members[main].weight)
    reads = [tensor for tensor in launch.reads if tensor != x and tensor not in weight]
    return replace(launch, reads=(_fp32_product(group, main, k_split), *reads), k=0)


def _merged(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """One vendor GEMM for each main member; those with a branch read a merged weight in the place of theirs."""
    made: list[Launch] = []
    for main in group.mains:
        member, result = group.members[main], _result(group, main)
        if not group.branches_of(main):
            made += _library_main(group, main, {})
            continue
        plain = group.output_of(main).dtype == member.dtype
        product = result if plain else _product(main, member, "intermediate")
        *_, gemm = _vendor(group, main, _x(group), product)
        copy = Tensor(f"merged{main}", merged_bytes(group, main), "held")
        made.append(replace(gemm, reads=(_x(group), copy, *_operands(f"b{main}", member.bias))))
        made += [] if plain else [Launch("pointwise", (product,), (result,))]
    return tuple(made)


def merged_bytes(group: Group, main: int) -> int:
    """Bytes of ``W + s * A @ B`` for a main member, in the dtype of W."""
    member = group.members[main]
    return member.k * member.n * DTYPE_BYTES[member.weight.dtype]


BUILDERS: dict[str, Callable[[Group, Schedule, str], tuple[Launch, ...]]] = {
    "library": _library,
    "streams": _streams,
    "concat": _side_by_side,
    "horizontal": _side_by_side,
    "split": _emitted,
    "inline": _emitted,
    "two_pool": _two_pool,
    "merged": _merged,
}
