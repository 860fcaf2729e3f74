"""What a schedule of a group runs: emitted kernels, the vendor's products, or both; and whether that is right."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from candidates import module_of

from fusioncc.group import Group, Operand
from fusioncc.packing import buffer_shape, places
from fusioncc.schedule import Schedule

Named = dict[str, torch.Tensor]
"""Operands by node: X ``[M, K]``, weights ``[K, N]``, biases ``[N]``."""
Results = tuple[torch.Tensor, ...]
FARTHEST = 4 * 2**-9
"""RMS of the error, relative to the exact result: the vendor's way rounds four times, each by at most this part of
bf16. A module's own check is stricter; this one also sees what follows the module."""


def drawn(group: Group, seed: int, device: str) -> Named:
    """Random operands of the group in bf16; every product of X has about its size."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(operand: Operand, depth: int = 1) -> torch.Tensor:
        empty = torch.empty_strided(operand.shape, operand.strides, dtype=torch.bfloat16, device=device)
        return empty.normal_(0, depth**-0.5, generator=generator)

    named = {group.lhs.node: draw(group.lhs)}
    named |= {member.weight.node: draw(member.weight, member.k) for member in group.members}
    return named | {member.bias.node: draw(member.bias) for member in group.members if member.bias is not None}


def call_of(group: Group, schedule: Schedule, named: Named) -> Callable[[], Results]:
    """One execution of the group; weights that the schedule keeps packed are packed here.

    Raises:
        EmissionError: the schedule has no emitted form.
    """
    made = module_of(group, schedule)
    if made is None:
        x = named[group.lhs.node]
        return library(group, named) if schedule.kind == "library" else packed(group, "packed", named, lambda: x)
    emitted, module = made
    operands = [named[operand.node] for operand in emitted.operands]
    if schedule.kind == "k_concat":
        return packed(group, "k_concat", named, lambda: module.launch(*operands)[0])
    return lambda: module.launch(*operands)


def library(group: Group, named: Named) -> Callable[[], Results]:
    """Vendor GEMMs one after another; one elementwise kernel adds each branch, as Inductor's would."""
    x = named[group.lhs.node]

    def result(main: int) -> torch.Tensor:
        total = F.linear(x, named[group.members[main].weight.node].t(), _bias(group, main, named))
        for branch in group.branches_of(main):
            down, up = (named[group.members[at].weight.node] for at in (branch.down, branch.up))
            total = torch.add(total, x @ down @ up, alpha=branch.scale)
        return total

    return lambda: tuple(map(result, group.mains))


def packed(group: Group, kind: str, named: Named, lhs: Callable[[], torch.Tensor]) -> Callable[[], Results]:
    """One vendor GEMM of ``lhs``, X or ``[X | s X A]``, over all that ``kind`` packs, behind a kernel that joins the
    biases; the outputs of ``k_concat``, which runs beside eager, are copied out of its rows."""
    members = [group.members[main] for main in group.mains]
    wide = named[group.lhs.node].new_zeros(buffer_shape(group, kind))
    for place in places(group, kind):
        weight = named[group.members[place.member].weight.node].t()
        rows, columns = weight.shape
        wide[place.row : place.row + rows, place.column : place.column + columns] = weight
    widths = [member.n for member in members]
    biases = [_bias(group, main, named) for main in group.mains]
    rows = [wide.new_zeros(n) if bias is None else bias for n, bias in zip(widths, biases, strict=True)]
    some = any(bias is not None for bias in biases)

    def run() -> Results:
        parts = F.linear(lhs(), wide, torch.cat(rows) if some else None).split(widths, dim=1)
        return tuple(part.contiguous() for part in parts) if kind == "k_concat" else parts

    return run


def _bias(group: Group, main: int, named: Named) -> torch.Tensor | None:
    bias = group.members[main].bias
    return None if bias is None else named[bias.node]


def exact_results(group: Group, named: Named) -> Results:
    """The group in fp64."""
    return library(group, {node: tensor.double() for node, tensor in named.items()})()


def wrong(group: Group, schedule: Schedule, named: Named, exact: Results) -> str:
    """What is wrong with the results of a schedule, or nothing: its module's own check, in guarded and poisoned
    buffers, and the distance of the results from fp64."""
    made = module_of(group, schedule)
    if made is not None:
        emitted, module = made
        problem: str = module.check([named[operand.node] for operand in emitted.operands])
        if problem:
            return problem
    for result, truth in zip(call_of(group, schedule, named)(), exact, strict=True):
        error = ((result.double() - truth).norm() / truth.norm()).item()
        if not error <= FARTHEST:
            return f"RMS error {error:.2e}"
    return ""
