"""The launches that schedules are made of: vendor GEMMs and the sum behind them, emitted main, down and up tiles."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fusioncc.cost_models.launch import Launch, Tensor, rank_block, unit_of
from fusioncc.group import DTYPE_BYTES, Epilogue, Group, Member, Operand
from fusioncc.schedule import Pool


def x_of(group: Group) -> Tensor:
    return Tensor("x", group.lhs.bytes, "input", DTYPE_BYTES[group.lhs.dtype])


def norm_weight(group: Group) -> tuple[Tensor, ...]:
    return () if group.norm is None else operand_tensors("g", group.norm.weight)


def norm_launch(group: Group) -> Launch:
    """The norm in front as a kernel of its own, which writes what vendor GEMMs read: :func:`x_of` ``group.bare``."""
    normed = replace(x_of(group.bare), kind="intermediate")
    return Launch("pointwise", (replace(x_of(group), name="x.raw"), *norm_weight(group)), (normed,))


def operand_tensors(label: str, *operands: Operand | None) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(f"{label}.{i}", each.bytes, "weight", DTYPE_BYTES[each.dtype])
        for i, each in enumerate(operands)
        if each is not None
    )


def product_tensor(index: int, member: Member, kind: Literal["intermediate", "output"]) -> Tensor:
    element = DTYPE_BYTES[member.dtype]
    return Tensor(f"y{index}", member.batch * member.m * member.n * element, kind, element)


def result_tensor(group: Group, main: int) -> Tensor:
    member, element = group.members[main], DTYPE_BYTES[group.output_of(main).dtype]
    epilogue = group.epilogue_of(main)
    kind: Literal["output", "intermediate"] = "output" if epilogue is None or main in epilogue.kept else "intermediate"
    return Tensor(f"out{main}", member.batch * member.m * member.n * element, kind, element)


def vendor_gemm(group: Group, index: int, x: Tensor, out: Tensor) -> list[Launch]:
    """A vendor GEMM, behind a cast of its weight where the graph casts it."""
    member = group.members[index]
    weight = operand_tensors(f"w{index}", member.weight)
    before: list[Launch] = []
    if DTYPE_BYTES[member.weight.dtype] > DTYPE_BYTES[member.dtype]:
        cast = Tensor(
            f"w{index}.cast",
            member.weight.bytes * DTYPE_BYTES[member.dtype] // DTYPE_BYTES[member.weight.dtype],
            "intermediate",
            DTYPE_BYTES[member.dtype],
        )
        before, weight = [Launch("pointwise", weight, (cast,))], (cast,)
    reads = (x, *weight, *operand_tensors(f"b{index}", member.bias))
    size = DTYPE_BYTES[member.dtype]
    unit = unit_of(member.dtype, group.fp32_precision)
    gemm = Launch(
        "vendor", reads, (out,), member.m, member.n, member.k, member.batch, unit=unit, x_element=size, w_element=size
    )
    return [*before, gemm]


def library_main(group: Group, main: int, casts: dict[str, Tensor]) -> list[Launch]:
    """Main, down and up GEMMs of one main member, the sum, and the casts between them."""
    member, branches = group.members[main], group.branches_of(main)
    result = result_tensor(group, main)
    plain = not branches and group.output_of(main).dtype == member.dtype
    product = result if plain else product_tensor(main, member, "intermediate")
    made = vendor_gemm(group, main, x_of(group), product)
    parts = [product]
    for branch in branches:
        down, up = group.members[branch.down], group.members[branch.up]
        x = x_of(group)
        if DTYPE_BYTES[down.dtype] > DTYPE_BYTES[group.lhs.dtype]:
            element = DTYPE_BYTES[down.dtype]
            wide = Tensor(f"x.{down.dtype}", x.bytes * element // x.element, "intermediate", element)
            if down.dtype not in casts:
                made.append(Launch("pointwise", (x,), (wide,)))
            x = casts.setdefault(down.dtype, wide)
        low = product_tensor(branch.down, down, "output" if branch.saved else "intermediate")
        part = product_tensor(branch.up, up, "intermediate")
        made += vendor_gemm(group, branch.down, x, low) + vendor_gemm(group, branch.up, low, part)
        parts += [part, *operand_tensors(f"s{branch.up}", *branch.scale_tensors)]
    return made if plain else [*made, Launch("pointwise", tuple(parts), (result,))]


def main_tiles(
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
    reads = [x_of(group), *norm_weight(group), *operand_tensors(f"w{main}", member.weight, member.bias)]
    writes = [result_tensor(group, main)]
    for branch in branches:
        down, up = group.members[branch.down], group.members[branch.up]
        reads += operand_tensors(f"w{branch.up}", up.weight, up.bias, *branch.scale_tensors)
        if body == "join":
            reads.append(downs[branch.down])
        else:
            reads += operand_tensors(f"w{branch.down}", down.weight, down.bias)
            writes += [product_tensor(branch.down, down, "output")] * branch.saved
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
        normed=group.norm is not None,
        weighted=bool(norm_weight(group)),
    )


def ended_tiles(group: Group, parts: Sequence[Launch]) -> list[Launch]:
    """The launches of main members, in which those of one epilogue are one, and write what that makes."""
    by_main = {part.member: part for part in parts}
    return [_ended(group, [by_main[main] for main in mains]) for mains in group.together(tuple(by_main))]


def _ended(group: Group, parts: Sequence[Launch]) -> Launch:
    epilogue = group.epilogue_of(parts[0].member)
    if epilogue is None:
        return parts[0]
    reads, writes = epilogue_tensors(group, epilogue)
    dropped = {result_tensor(group, main) for main in epilogue.mains if main not in epilogue.kept}
    made = [tensor for part in parts for tensor in part.writes if tensor not in dropped]
    return replace(
        parts[0],
        reads=tuple(dict.fromkeys([*(tensor for part in parts for tensor in part.reads), *reads])),
        writes=(*made, *writes),
        ranks=tuple(rank for part in parts for rank in part.ranks),
        out_element=max(tensor.element for tensor in (*made, *writes)),
        together=len(parts),
        head=epilogue.head,
    )


def epilogue_tensors(group: Group, epilogue: Epilogue) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What an epilogue reads beside the accumulators, and what it writes."""
    first, chain = epilogue.mains[0], epilogue.chain
    elements = [(result.value, DTYPE_BYTES[chain.dtype_of(result.value)]) for result in chain.results]
    made = (
        Tensor(f"h{first}.{at}", chain.bytes_of(value), "output", size) for at, (value, size) in enumerate(elements)
    )
    read = (
        Tensor(f"z{first}.{at}", each.bytes, "input", DTYPE_BYTES[each.dtype])
        for at, each in enumerate(epilogue.operands)
    )
    return tuple(read), tuple(made)


def library_ends(group: Group) -> list[Launch]:
    """Behind the vendor GEMMs a kernel for each epilogue."""
    launches = []
    for epilogue in group.epilogues:
        reads, writes = epilogue_tensors(group, epilogue)
        outputs = tuple(result_tensor(group, main) for main in epilogue.mains)
        launches.append(Launch("pointwise", (*outputs, *reads), writes))
    return launches


def down_launch(group: Group, pool: Pool, tier: str) -> Launch:
    """One pass over X for all downs of ``pool``; each writes ``k_split`` fp32 slices ``[M, padded rank]``."""
    branches = [branch for branch in group.branches if branch.down in pool.members]
    ranks = tuple(rank_block(group, branch, tier) for branch in branches)
    reads, writes = [x_of(group)], []
    for branch, rank in zip(branches, ranks, strict=True):
        down = group.members[branch.down]
        reads += operand_tensors(f"w{branch.down}", down.weight, down.bias)
        writes.append(Tensor(f"p{branch.down}", pool.k_split * group.m * rank.padded * 4, "intermediate", 4, True))
        writes += [product_tensor(branch.down, down, "output")] * branch.saved
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


def partial_sums(launch: Launch, pool: Pool) -> dict[int, Tensor]:
    """What a down launch leaves of each down member: fp32 slices, for a join to add."""
    written = {tensor.name: tensor for tensor in launch.writes}
    return {down: written[f"p{down}"] for down in pool.members}


def fp32_product(group: Group, main: int, k_split: int) -> Tensor:
    return Tensor(f"product{main}", 4 * k_split * group.m * group.members[main].n, "intermediate", 4, True)


def product_tiles(group: Group, pool: Pool, main: int, tier: str) -> Launch:
    """``X @ W`` of one main member: its output, or in fp32 what an up launch adds to."""
    launch = main_tiles(group, pool, main, "inline", tier, {}, 1)
    if not group.branches_of(main) and pool.k_split == 1:
        return launch
    weight = operand_tensors(f"w{main}", group.members[main].weight)
    product = fp32_product(group, main, pool.k_split)
    return replace(launch, reads=(x_of(group), *weight), writes=(product,), out_element=4, ranks=())


def up_tiles(
    group: Group, pool: Pool, main: int, k_split: int, tier: str, downs: dict[int, Tensor], slices: int
) -> Launch:
    """The slices of a main member's product and its low-rank parts, added: a join without a K loop."""
    launch = main_tiles(group, pool, main, "join", tier, downs, slices)
    x, weight = x_of(group), operand_tensors(f"w{main}", group.members[main].weight)
    reads = [tensor for tensor in launch.reads if tensor != x and tensor not in weight]
    return replace(launch, reads=(fp32_product(group, main, k_split), *reads), k=0, product_slices=k_split)
