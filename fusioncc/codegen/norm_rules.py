"""Which norms in front of a group have an emitted form."""

from math import isfinite

from fusioncc.codegen.context import Context
from fusioncc.errors import EmissionError
from fusioncc.schedule import Pool, Schedule, squares_x

NORMED = ("inline", "concat", "horizontal")
"""Kinds whose main programs walk over all of K with X in registers."""
NORMED_DTYPES = ("bf16", "fp32")
"""Dtypes of X with the range of fp32: ``x * g`` passes that of fp16, in which ``normed`` always is."""


def require_norm(context: Context, schedule: Schedule) -> None:
    """The schedule's programs have whole rows, and its operands fit.

    Raises:
        EmissionError: with what is wrong.
    """
    group, norm = context.group, context.group.norm
    if norm is None:
        return
    if schedule.kind not in NORMED or any(pool.role != "main" for pool in schedule.pools):
        raise EmissionError(f"a norm in front needs programs that walk over all of K, not schedule {schedule.kind!r}")
    if context.mains != group.mains:
        raise EmissionError("behind a norm that is not written all main members have a pool")
    if group.lhs.dtype not in NORMED_DTYPES or norm.normed.dtype != group.lhs.dtype:
        raise EmissionError(f"a norm from {group.lhs.dtype} to {norm.normed.dtype} has no emitted form in front")
    if norm.normed.shape != group.lhs.shape or (norm.weight is not None and norm.weight.shape != (group.k,)):
        raise EmissionError(f"a norm in front has rows of {group.k}, and a weight of as many elements")
    if not (isfinite(norm.epsilon) and norm.epsilon >= 0):
        raise EmissionError("the epsilon of a norm is a number, none below 0")
    for pool in schedule.pools:
        _require_pool(pool, weighted=norm.weight is not None)


def _require_pool(pool: Pool, *, weighted: bool) -> None:
    if pool.k_split != 1:
        raise EmissionError("with K in slices no program has the squares of a whole row")
    if pool.tile.tma:
        raise EmissionError("TMA tiles have no emitted form behind a norm")
    if not weighted and squares_x(pool.tile):
        raise EmissionError("squares read X beside a warp-group MMA, which the loop would overwrite it under")
