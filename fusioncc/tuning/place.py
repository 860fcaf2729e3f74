"""The place of a group in a table that ships: what decides which schedule is best, and nothing that only changes bits.

A key is of one program; a place is of all whose groups are alike but for the number of rows within a bucket, the
constant scales of their branches, and the ops that their tiles end with, of which only what they read and write counts.
"""

from dataclasses import dataclass, replace

from fusioncc.group import Epilogue, Group
from fusioncc.operand import Operand
from fusioncc.tuning.key import Card, Key, Wishes

BUCKETS = tuple(1 << power for power in range(14))
"""Numbers of rows: 1, 2, 4, ... 8192."""


@dataclass(frozen=True)
class Side:
    """A tensor beside the products: its columns, its dtype, and whether it has a row for each of theirs, which counts
    where it has as many columns. Less is read out of a cache."""

    columns: int
    dtype: str
    whole: bool


@dataclass(frozen=True)
class End:
    """An epilogue as far as it costs: what it reads beside the accumulators, and the dtypes that it writes."""

    mains: tuple[int, ...]
    kept: tuple[int, ...]
    head: int
    reads: tuple[Side, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """``group`` has as many rows as its bucket, scales of 1 and no epilogues; ``card`` has no name."""

    group: Group
    ends: tuple[End, ...]
    tier: str
    card: Card
    wishes: Wishes


def bucket_of(rows: int) -> int | None:
    """The least bucket that holds so many rows; None: they are more than the largest."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), None)


def place_of(key: Key) -> Place | None:
    """Where the group of a key stands; None where no table has such: its rows are any number, or too many."""
    group = key.group
    bucket = None if group.m_symbol else bucket_of(group.m)
    if bucket is None:
        return None
    ends = tuple(map(_end, group.epilogues))
    return Place(_in_bucket(group, bucket), ends, key.tier, replace(key.card, name=""), key.wishes)


def _in_bucket(group: Group, bucket: int) -> Group:
    rows, columns = group.lhs.shape
    strides = (columns, 1) if rows == 1 else group.lhs.strides
    lhs, norm = replace(group.lhs, shape=(bucket, columns), strides=strides), group.norm
    return replace(
        group,
        lhs=lhs,
        norm=norm and replace(norm, normed=replace(lhs, dtype=norm.normed.dtype), epsilon=0.0),
        members=tuple(replace(member, m=bucket, bias_scale=1.0) for member in group.members),
        branches=tuple(replace(branch, scale=1.0) for branch in group.branches),
        epilogues=(),
    )


def _end(epilogue: Epilogue) -> End:
    chain = epilogue.chain
    reads = tuple(_side(each, chain.shape) for each in epilogue.operands)
    writes = tuple(chain.dtype_of(result.value) for result in chain.results)
    return End(epilogue.mains, epilogue.kept, epilogue.head, reads, writes)


def _side(operand: Operand, shape: tuple[int, ...]) -> Side:
    columns = operand.shape[-1] if operand.shape else 1
    return Side(columns, operand.dtype, operand.shape == shape and 0 not in operand.strides)
