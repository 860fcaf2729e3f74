"""Which groups have an emitted form."""

import math
from dataclasses import replace

from fusioncc.codegen.context import Context
from fusioncc.errors import EmissionError
from fusioncc.group import EMITTED_DTYPES, Operand
from fusioncc.schedule import MAX_RANK, padded_rank


def require_group(context: Context) -> None:
    """Dtypes, sizes, ranks and scales of what the schedule runs.

    Raises:
        EmissionError: with the member and what is wrong with it.
    """
    group = context.group
    for operand in replace(context, group=replace(context.group, epilogues=())).names():
        _require_dtype(operand)
        require_sizes(operand)
    if any(context.output(main).dtype not in EMITTED_DTYPES for main in context.mains):
        raise EmissionError(f"an output dtype has no emitted form; emitted dtypes: {', '.join(EMITTED_DTYPES)}")
    for branch in context.branches:
        down, up = context.member(branch.down), context.member(branch.up)
        if padded_rank(down.n) > MAX_RANK:
            raise EmissionError(
                f"rank {down.n} of {down.node} does not fit in one tile (largest padded rank {MAX_RANK})"
            )
        if not all(map(math.isfinite, (branch.scale, down.bias_scale, up.bias_scale))):
            raise EmissionError(f"a scale of the branch through {down.node} is not finite")
        if branch.scale_tensors and (down.bias or up.bias):
            raise EmissionError(
                f"the branch through {down.node} has a tensor scale and a bias: their order is not recorded"
            )
    if any(member.batch != 1 for member in group.members):
        raise EmissionError("batched members have no emitted form")


def _require_dtype(operand: Operand) -> None:
    if operand.dtype not in EMITTED_DTYPES:
        known = ", ".join(EMITTED_DTYPES)
        raise EmissionError(f"{operand.node} is {operand.dtype}, which has no emitted form; emitted dtypes: {known}")


def require_sizes(operand: Operand) -> None:
    """Every size is positive.

    Raises:
        EmissionError: one is not.
    """
    if any(size == 0 for size in operand.shape):
        raise EmissionError(f"{operand.node} has a dimension of size 0")
