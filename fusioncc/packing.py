"""Which weights can lie beside each other in one buffer, so that one vendor GEMM multiplies by all of them.

``packed``: the weights of the main members, one below the other along N. ``k_concat``: beside each also the B of its
branches, for a product with ``[X | s X A]``.
"""

from dataclasses import dataclass, replace

from fusioncc.group import DTYPE_BYTES, Branch, Group, Member
from fusioncc.vendor import refusal as vendor_refusal

PACKED = ("packed", "k_concat")
"""Kinds of schedule that move weights into a buffer: only ``pack_weights=True`` allows them."""
ROW_ALIGNMENT = 16
"""Bytes that rows of a buffer are multiples of: what vendor GEMMs, descriptors and Inductor assume of a matrix."""


@dataclass(frozen=True)
class Place:
    """Where the weight of a member lies in the buffer, as ``[N, K]``: the row and the column of its first element."""

    member: int
    row: int
    column: int


def places(group: Group, kind: str) -> tuple[Place, ...]:
    """Where everything lies that ``kind`` packs: the weights of the main members, then those of the up members."""
    rows, row = {}, 0
    for main in group.mains:
        rows[main] = row
        row += group.members[main].n
    mains = tuple(Place(main, row, 0) for main, row in rows.items())
    if kind != "k_concat":
        return mains
    begins = concat_begins(group)
    return (*mains, *(Place(branch.up, rows[branch.main], begins[branch.up]) for branch in group.branches))


def buffer_shape(group: Group, kind: str) -> tuple[int, int]:
    """Rows and columns of the buffer: the sum of N, and K or the columns of ``[X | s X A]``."""
    rows = sum(group.members[main].n for main in group.mains)
    return rows, concat_columns(group) if kind == "k_concat" else group.k


def refusal(group: Group) -> str:
    """Why the weights of the main members cannot be rows ``[sum of N, K]`` of one buffer; empty when they can."""
    if len(group.mains) < 2:
        return "one main product: there is nothing to pack its weight with"
    if group.branches:
        return "low-rank branches would be left to products of their own"
    return next(filter(None, (_of_member(group, main) for main in group.mains)), "")


def _of_member(group: Group, main: int) -> str:
    member, x = group.members[main], group.lhs.dtype
    w = f"a weight [{member.k}, {member.n}]"
    if member.batch > 1:
        return "batched members have no matrix that could be a row of a buffer"
    if {member.dtype, group.output_of(main).dtype} != {x}:
        return f"one GEMM has one dtype; X is {x}, the product with {w} {group.output_of(main).dtype}"
    if member.weight.strides != (1, member.k):
        return f"{w} does not lie row by row as that of nn.Linear does (strides {member.weight.strides})"
    if member.k * DTYPE_BYTES[x] % ROW_ALIGNMENT:
        return f"rows of {member.k} elements in {x} are no multiple of {ROW_ALIGNMENT} bytes"
    return vendor_refusal(group, main)


def concat_refusal(group: Group) -> str:
    """Why the mains are not one vendor GEMM over ``[X | s X A]`` and each W beside its B; empty when they are."""
    if not group.branches:
        return "no low-rank branch to join"
    if len({branch.down for branch in group.branches}) < len(group.branches):
        return "several branches read one down product, each with a scale of its own"
    if group.lhs.dtype != "bf16":
        return f"a scaled X @ A is rounded to the dtype of X, which only bf16 has the range for; X is {group.lhs.dtype}"
    if group.k * DTYPE_BYTES[group.lhs.dtype] % ROW_ALIGNMENT:
        return f"rows of {group.k} elements in {group.lhs.dtype} are no multiple of {ROW_ALIGNMENT} bytes"
    reasons = (*(_of_main(group, main) for main in group.mains), *(_of_branch(group, each) for each in group.branches))
    return next(filter(None, reasons), "")


def _of_main(group: Group, main: int) -> str:
    member, x = group.members[main], group.lhs.dtype
    w = f"a weight [{member.k}, {member.n}]"
    if member.batch > 1:
        return "batched members have no matrix that could be rows of a buffer"
    if {member.dtype, member.weight.dtype, group.output_of(main).dtype} != {x}:
        return f"one GEMM has one dtype; X is {x}, the product with {w} {group.output_of(main).dtype}"
    if member.bias is not None and member.bias.dtype != x:
        return f"a vendor GEMM adds a bias of the dtype of X, {x}, not the one behind {w} ({member.bias.dtype})"
    return "" if _is_matrix(member) else f"{w} is contiguous along neither side (strides {member.weight.strides})"


def _of_branch(group: Group, branch: Branch) -> str:
    down, up = group.members[branch.down], group.members[branch.up]
    if {down.weight.dtype, up.weight.dtype} != {group.lhs.dtype}:
        return f"B lies beside W in the dtype of X, {group.lhs.dtype}; the adapter is {up.weight.dtype}"
    if branch.saved:
        return "a down product is read elsewhere, unscaled"
    if up.bias is not None:
        return "a bias behind the up product has no place in the buffer"
    return "" if _is_matrix(up) else f"a B [{up.k}, {up.n}] is contiguous along neither side ({up.weight.strides})"


def _is_matrix(member: Member) -> bool:
    """Whether one side of its weight is contiguous. The rows of what was packed lie apart, with others between."""
    return 1 in member.weight.strides


def concat_begins(group: Group) -> dict[int, int]:
    """By up member, the column of ``[X | s X A]`` at which its low-rank product begins, on a multiple of 16 bytes."""
    begins, begin = {}, group.k
    for branch in group.branches:
        begins[branch.up] = begin
        begin += concat_width(group, branch)
    return begins


def concat_width(group: Group, branch: Branch) -> int:
    """Columns that a branch takes, its rank and zeros."""
    step = ROW_ALIGNMENT // DTYPE_BYTES[group.lhs.dtype]
    return -(-group.members[branch.down].n // step) * step


def concat_columns(group: Group) -> int:
    """Columns of ``[X | s X A]``."""
    return group.k + sum(concat_width(group, branch) for branch in group.branches)


def laid_out_alike(group: Group) -> Group:
    """The group with the weights that packing may spread out in one layout: equal before and after they were packed."""

    def alike(member: Member) -> Member:
        if member.role == "down" or not _is_matrix(member):
            return member
        return replace(member, weight=replace(member.weight, strides=(1, member.k)))

    return replace(group, members=tuple(map(alike, group.members)))
