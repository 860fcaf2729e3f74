"""What a schedule launches: one :class:`Launch` for each kernel, in order, with the tensors it reads and writes.

Traffic, time, launches and peak memory are all read off this list. A new kind of schedule adds one builder to
``BUILDERS``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from fusioncc.cost_models.launch import Launch, Tensor, bundle
from fusioncc.cost_models.products import (
    down_launch,
    ended_tiles,
    fp32_product,
    library_ends,
    library_main,
    main_tiles,
    norm_launch,
    operand_tensors,
    partial_sums,
    product_tensor,
    product_tiles,
    result_tensor,
    up_tiles,
    vendor_gemm,
    x_of,
)
from fusioncc.group import DTYPE_BYTES, Group
from fusioncc.packing import buffer_shape
from fusioncc.schedule import Schedule


def launches(group: Group, schedule: Schedule, tier: str = "fp32") -> tuple[Launch, ...]:
    """The kernels of ``schedule``, in order.

    Raises:
        KeyError: the kind of schedule is unknown.
    """
    return BUILDERS[schedule.kind](group, schedule, tier)


def _library(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    casts: dict[str, Tensor] = {}
    mains = [launch for main in group.mains for launch in library_main(group, main, casts)]
    launched = (*mains, *library_ends(group))
    return launched if group.norm is None else _behind(norm_launch(group), launched)


def _behind(norm: Launch, launched: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches of a group, which read what a norm in front writes."""
    (normed,) = norm.writes
    read = (tuple(normed if each.name == normed.name else each for each in launch.reads) for launch in launched)
    return (norm, *(replace(launch, reads=reads) for launch, reads in zip(launched, read, strict=True)))


def _emitted(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """``inline`` and ``split``: the pools in order of launch, then vendor GEMMs for the mains without a pool."""
    body: Literal["inline", "join"] = "inline" if schedule.kind == "inline" else "join"
    made: list[Launch] = []
    downs: dict[int, Tensor] = {}
    slices = 1
    for pools in schedule.by_launch():
        if pools[0].role == "down":
            launch = down_launch(group, pools[0], tier)
            downs |= partial_sums(launch, pools[0])
            slices = max(slices, pools[0].k_split)
        else:
            mains = [(pool, main) for pool in pools for main in pool.members]
            parts = [main_tiles(group, pool, main, body, tier, downs, slices) for pool, main in mains]
            launch = bundle(ended_tiles(group, parts))
        made.append(launch)
    return (*made, *_left_to_the_library(group, schedule))


def _left_to_the_library(group: Group, schedule: Schedule) -> list[Launch]:
    """Vendor GEMMs for the main members that no pool computes."""
    covered, casts = schedule.k_splits("main"), dict[str, Tensor]()
    return [launch for main in group.mains if main not in covered for launch in library_main(group, main, casts)]


def _side_by_side(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """``concat`` and ``horizontal``: everything that reads X in one launch; what adds and joins, in another."""
    splits = schedule.k_splits("main")
    parts: list[Launch] = []
    ups: list[Launch] = []
    downs: dict[int, Tensor] = {}
    slices = 1
    for pool in schedule.pools:
        if pool.role == "down":
            parts.append(down_launch(group, pool, tier))
            downs |= partial_sums(parts[-1], pool)
            slices = max(slices, pool.k_split)
        elif pool.role == "main":
            parts += ended_tiles(group, [product_tiles(group, pool, main, tier) for main in pool.members])
        else:
            ups += [up_tiles(group, pool, main, splits[main], tier, downs, slices) for main in pool.members]
    return (bundle(parts), *([bundle(ups)] if ups else []), *_left_to_the_library(group, schedule))


def _streams(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """The down launch and a vendor GEMM for each main member beside one another; then what joins the branches."""
    downs: dict[int, Tensor] = {}
    beside: list[Launch] = []
    ups: list[Launch] = []
    slices = 1
    for pool in schedule.pools:
        if pool.role == "down":
            beside.append(down_launch(group, pool, tier))
            downs |= partial_sums(beside[-1], pool)
            slices = max(slices, pool.k_split)
        else:
            ups += [up_tiles(group, pool, main, 1, tier, downs, slices) for main in pool.members]
    for main in group.mains:
        joined = bool(group.branches_of(main))
        product = fp32_product(group, main, 1) if joined else result_tensor(group, main)
        *_, gemm = vendor_gemm(group, main, x_of(group), product)
        later = operand_tensors(f"b{main}", group.members[main].bias) if joined else ()
        beside.append(replace(gemm, reads=tuple(tensor for tensor in gemm.reads if tensor not in later)))
    return (*(replace(launch, beside=True) for launch in beside), *([bundle(ups)] if ups else []))


def _two_pool(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """The zeros of the counters, then down and main tiles in one launch."""
    (down,) = (pool for pool in schedule.pools if pool.role == "down")
    partial = down_launch(group, down, tier)
    downs = partial_sums(partial, down)
    mains = [(pool, main) for pool in schedule.pools if pool.role == "main" for main in pool.members]
    tiles = [main_tiles(group, pool, main, "join", tier, downs, down.k_split) for pool, main in mains]
    parts = [replace(each, waits_inside=True) for each in ended_tiles(group, tiles)]
    counters = Tensor("counters", 16 * group.m, "intermediate")
    rest = _left_to_the_library(group, schedule)
    return (Launch("pointwise", (), (counters,)), bundle([*parts, partial]), *rest)


def _packed(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """One vendor GEMM over the weights of all mains."""
    weights = operand_tensors("w", *(group.members[main].weight for main in group.mains))
    return _one_gemm(group, "packed", (x_of(group), *weights))


def _k_concat(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """A pass over X that copies it and sums ``X A`` in slices; what adds those beside the copy; and a vendor GEMM for
    all mains that is longer by the ranks. Where there are several, each output is copied out of its rows."""
    down, up = (pools[0] for pools in schedule.by_launch())
    (rows, columns), size = buffer_shape(group, "k_concat"), DTYPE_BYTES[group.lhs.dtype]
    copy = Tensor("xy", group.m * group.k * size, "intermediate", size)
    behind = Tensor("xy.low", group.m * (columns - group.k) * size, "intermediate", size)
    first = down_launch(group, down, tier)
    scales = (scale for branch in group.branches for scale in branch.scale_tensors)
    added = replace(
        first,
        body="join",
        reads=(*partial_sums(first, down).values(), *operand_tensors("s", *scales)),
        writes=(behind,),
        n=up.tile.block_n,
        k=0,
        pool=up,
        slices=down.k_split,
        member=group.joined[0],
    )
    buffer = Tensor("w", columns * rows * size, "weight", size)
    *before, gemm = _one_gemm(group, "k_concat", (copy, behind, buffer))
    passes = (replace(first, writes=(copy, *first.writes)), added, *before)
    if len(group.mains) == 1:
        return (*passes, gemm)
    parts = tuple(replace(result, name=f"columns.{result.name}", kind="intermediate") for result in gemm.writes)
    copies = (Launch("pointwise", (part,), (result,)) for part, result in zip(parts, gemm.writes, strict=True))
    return (*passes, replace(gemm, writes=parts), *copies)


def _one_gemm(group: Group, kind: str, reads: tuple[Tensor, ...]) -> tuple[Launch, ...]:
    """A vendor GEMM over the buffer of ``kind``, behind a kernel that joins the biases where there are any."""
    members = [group.members[main] for main in group.mains]
    *_, first = vendor_gemm(group, group.mains[0], x_of(group), result_tensor(group, group.mains[0]))
    biases = operand_tensors("b", *(member.bias for member in members))
    (n, k), size = buffer_shape(group, kind), DTYPE_BYTES[members[0].dtype]
    row = Tensor("bias", n * size, "intermediate", size)
    results = tuple(result_tensor(group, main) for main in group.mains)
    gemm = replace(first, reads=(*reads, *((row,) if biases else ())), writes=results, n=n, k=k)
    return (*([Launch("pointwise", biases, (row,))] if biases else []), gemm)


def _merged(group: Group, schedule: Schedule, tier: str) -> tuple[Launch, ...]:
    """One vendor GEMM for each main member; those with a branch read a merged weight in the place of theirs."""
    made: list[Launch] = []
    for main in group.mains:
        member, result = group.members[main], result_tensor(group, main)
        if not group.branches_of(main):
            made += library_main(group, main, {})
            continue
        plain = group.output_of(main).dtype == member.dtype
        product = result if plain else product_tensor(main, member, "intermediate")
        *_, gemm = vendor_gemm(group, main, x_of(group), product)
        copy = merged_weight(group, main)
        made.append(replace(gemm, reads=(x_of(group), copy, *operand_tensors(f"b{main}", member.bias))))
        made += [] if plain else [Launch("pointwise", (product,), (result,))]
    return tuple(made)


def merged_weight(group: Group, main: int) -> Tensor:
    """``W + s * A @ B`` of a main member, in the dtype of W."""
    member, element = group.members[main], DTYPE_BYTES[group.members[main].weight.dtype]
    return Tensor(f"merged{main}", member.k * member.n * element, "held", element)


def merging(group: Group) -> tuple[Launch, ...]:
    """What ``merged`` does before its first call: for each main member with a branch, read W, A and B and write the
    sum, each once."""
    made: list[Launch] = []
    for main in group.joined:
        ends = [each for branch in group.branches_of(main) for each in (branch.down, branch.up)]
        weights = operand_tensors(f"w{main}", *(group.members[each].weight for each in (main, *ends)))
        made.append(Launch("pointwise", weights, (merged_weight(group, main),)))
    return tuple(made)


BUILDERS: dict[str, Callable[[Group, Schedule, str], tuple[Launch, ...]]] = {
    "library": _library,
    "streams": _streams,
    "concat": _side_by_side,
    "horizontal": _side_by_side,
    "split": _emitted,
    "inline": _emitted,
    "two_pool": _two_pool,
    "packed": _packed,
    "k_concat": _k_concat,
    "merged": _merged,
}
