"""What an entry may hold, whatever the device: it may come from anywhere."""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

import msgspec

from fusioncc.errors import TuningError
from fusioncc.group import Group
from fusioncc.tuning.entry import Entry, Measured

MAX_US, LEAST_US = 1e7, 0.01
MAX_CANDIDATES = 1_000_000
YEARS = range(2020, 2100)
MAX_NUMBER = 2.0**53
MAX_TEXT = 200
CONSTANT = re.compile(r"float\('-?(inf|nan)'\)|[\w.\[\], '+-]*")
"""Constants of an epilogue, as source; nothing that could be called."""


def require_sane(entry: Entry) -> None:
    """Numbers are finite and within what can be measured, texts short and printable, the group has no names, and what
    is not ``library`` beat it, unless its kind was forced.

    Raises:
        TuningError: they are not (``bounds``).
    """
    for value in _leaves(msgspec.to_builtins(entry)):
        if isinstance(value, str) and not (len(value) <= MAX_TEXT and value.isprintable()):
            raise TuningError("bounds", f"a text in it is longer than {MAX_TEXT} characters, or not printable")
        if isinstance(value, int | float) and not (isfinite(value) and abs(value) <= MAX_NUMBER):
            raise TuningError("bounds", "a number in it is beyond every size")
    _require_times(entry.time, entry.library)
    if not 1 <= entry.candidates <= MAX_CANDIDATES:
        raise TuningError("bounds", f"candidates is {entry.candidates}")
    if entry.date.tzinfo is None or entry.date.year not in YEARS:
        raise TuningError("bounds", "date has no time zone, or is of no year that can be")
    group, wishes = entry.key.group, entry.key.wishes
    if group != group.signature() or not _is_group(group):
        raise TuningError("bounds", "its group is no group without names")
    args = (arg for epilogue in group.epilogues for op in epilogue.chain.ops for arg in op.args)
    if not all(CONSTANT.fullmatch(arg.constant) for arg in args):
        raise TuningError("bounds", "a constant of an epilogue is no constant")
    if entry.schedule.kind not in ("library", wishes.schedule) and entry.time.us >= entry.library.us:
        raise TuningError("bounds", "its schedule is no faster than library")


def _require_times(*times: Measured) -> None:
    for time in times:
        if not (LEAST_US <= time.us <= MAX_US and 0.0 <= time.spread_us <= time.us):
            raise TuningError("bounds", f"{time.us:g} us with a spread of {time.spread_us:g} us is no time")


def _is_group(group: Group) -> bool:
    """Whether what is said of the group can be read off it."""
    operands = (group.lhs, *(member.weight for member in group.members))
    indices = [index for branch in group.branches for index in (branch.main, branch.down, branch.up)]
    matrices = all(len(operand.shape) == len(operand.strides) == 2 for operand in operands)
    norm = group.norm
    matrices = matrices and (norm is None or norm.weight is None or len(norm.weight.strides) == 1)
    return matrices and bool(group.mains) and all(0 <= index < len(group.members) for index in indices)


def _leaves(value: Any) -> Iterator[Any]:
    """Every text and number in what JSON holds."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
        else:
            yield each
