"""Where one schedule of a group overtakes another, solved from the closed forms of their traffic."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import sympy

from fusioncc.cost_models import constants as c
from fusioncc.cost_models.closed_form import ClosedForm, closed_form, number, tidy
from fusioncc.cost_models.launches import launches, merging
from fusioncc.cost_models.letters import PADDED, Letters, M, letter, lettered
from fusioncc.cost_models.resources import step_bytes
from fusioncc.cost_models.tiles import flops_rate, k_steps, l2_rate, part_tiles, step_flops
from fusioncc.cost_models.traffic import counted, sweeps
from fusioncc.cost_models.walk import Walk, walks
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import LEAST_RANK, Schedule

R = letter("r")
LIBRARY, MERGED = Schedule("library"), Schedule("merged")
MOST_ROWS = 1 << 14
"""The largest M at which a crossover is looked for."""
Planner = Callable[[Group], Schedule | None]
"""The schedule of one kind for a group, whose M is another each time; None: there is none."""


@dataclass(frozen=True)
class Merging:
    """What merging moves once (``once``) and saves in each call (``saved``), bytes as expressions. It has paid from
    which ``call`` on at the group's M; at which M, ``rows``, it begins to pay within one call. None: never, or not up
    to ``MOST_ROWS``."""

    once: Any
    saved: Any
    call: int | None
    rows: int | None


def merged_pays(group: Group, against: Planner, device: Device, tier: str = "fp32") -> Merging | None:
    """Where ``merged`` moves less than ``against``, its preparation counted; None: cannot be estimated."""
    pair = _pair(group, against, device, tier)
    if pair is None:
        return None
    other, merged = pair
    once, saved = _once(group), other.dram - merged.dram
    each = merged.number(saved)
    call = int(sympy.ceiling(merged.number(once) / each)) if each > 0 else None
    return Merging(once, saved, call, _rows(group, against, device, tier))


def _pair(group: Group, against: Planner, device: Device, tier: str) -> tuple[ClosedForm, ClosedForm] | None:
    schedule, merged = against(group), closed_form(group, MERGED, device, tier)
    other = None if schedule is None else closed_form(group, schedule, device, tier)
    return None if other is None or merged is None else (other, merged)


def _once(group: Group) -> Any:
    letters = lettered(group)
    named = tuple(map(letters.launch, merging(letters.group)))
    return ClosedForm("merging", named, (Walk(),) * len(named), letters).dram


def _rows(group: Group, against: Planner, device: Device, tier: str) -> int | None:
    """M at which one call begins to save what merging costs.

    Solved in the closed form of the largest M; the form that holds at the solution is solved next. Where they disagree,
    something ceases to fit into the L2 between two M, or tiles change, and halving finds where. Where tiles change more
    than once the sign may too: then this is one of the places.
    """
    low, high, rows = 0, MOST_ROWS + 1, MOST_ROWS
    while high - low > 1:
        sized = with_rows(group, rows)
        pair = _pair(sized, against, device, tier)
        if pair is None:
            return None
        rest = {symbol: value for symbol, value in pair[0].letters.values.items() if symbol != M}
        net = number(pair[0].dram - pair[1].dram - _once(sized), rest)
        low, high = (low, rows) if net.subs(M, rows) >= 0 else (rows, high)
        root = _root(net, M)
        guesses = [] if root is None else [int(sympy.ceiling(root)), int(sympy.ceiling(root)) - 1]
        rows = next((guess for guess in guesses if low < guess < high), (low + high) // 2)
    return high if high <= MOST_ROWS else None


def _root(line: Any, symbol: Any) -> Any:
    """Where a line in ``symbol`` rises through zero; None: nowhere, or it is no line."""
    slope = sympy.expand(line).diff(symbol)
    return -line.subs(symbol, 0) / slope if slope.is_number and slope > 0 else None


def with_rows(group: Group, rows: int) -> Group:
    """The group at another M."""
    members = tuple(replace(member, m=rows) for member in group.members)
    return replace(group, lhs=replace(group.lhs, shape=(rows, group.k)), members=members)


def free_rank(group: Group, inline: Schedule, device: Device, tier: str = "fp32") -> int | None:
    """The largest rank at which ``inline`` is free: repeating ``X @ A`` in every tile takes neither the MMA nor the L2
    longer than the memory takes for the operands. 0: none is; None: every rank is. In its tiles ranks are powers of
    two; all branches are taken to have the same.
    """
    letters = lettered(group)
    sequence = launches(group, inline, tier)
    found = walks(sequence, device)
    if found is None:
        return 0
    times = [sympy.Integer(0)] * 3
    for launch, walk in zip(launches(letters.group, inline, tier), found, strict=True):
        if launch.pool is not None:
            moved = counted(launch, walk.warm, walk.streamed, sweeps(launch.m, walk.tile[0], walk.group_m))
            times[0] += moved.dram_us(device)
            for part in launch.parts:
                assert part.pool is not None
                tile, steps = part.pool.tile, part_tiles(part) * k_steps(part)
                times[1] += steps * step_bytes(part, sympy.Min(part.m, tile.block_m)) / l2_rate(tile, device)
                times[2] += steps * step_flops(part, lambda rank, least: rank) / flops_rate(part, device)  # see _power
    dram, l2, mma = (_in_rank(tidy(us), letters) for us in times)
    bounds = [_power(_root(l2 - dram, R), LEAST_RANK), _power(_root(mma - dram, R), c.INLINE_MIN_COLUMNS)]
    return min((bound for bound in bounds if bound is not None), default=None)


def _in_rank(expression: Any, letters: Letters) -> Any:
    """An expression at the group's sizes but for the rank of all branches, taken for a power of two."""
    rest = {symbol: size for symbol, size in letters.values.items() if symbol not in letters.ranks}
    return expression.replace(PADDED, lambda rank: rank).subs(dict.fromkeys(letters.ranks, R)).subs(rest)


def _power(root: Any, least: int) -> int | None:
    """The largest power of two up to ``root``; 0 under the rank ``least``, which every smaller one costs as well."""
    if root is None:
        return None
    return 1 << int(root).bit_length() - 1 if root >= least else 0


@dataclass(frozen=True)
class SecondUser:
    """``taken``: bytes that a second reader of every down product takes from what a schedule saves over ``library``,
    since it is then written out. From the rank ``turns`` on nothing of that is left; None: at no rank."""

    taken: Any
    turns: int | None


def second_user(group: Group, schedule: Schedule, device: Device, tier: str = "fp32") -> SecondUser | None:
    """What reading the down products elsewhere costs a schedule; None: cannot be estimated, or there is no branch."""

    def gain(saved: bool) -> Any:
        read = replace(group, branches=tuple(replace(branch, saved=saved) for branch in group.branches))
        before, after = closed_form(read, LIBRARY, device, tier), closed_form(read, schedule, device, tier)
        return None if before is None or after is None else before.dram - after.dram

    alone, shared = gain(False), gain(True)
    if alone is None or shared is None or not group.branches:
        return None
    root = _root(_in_rank(-shared, lettered(group)), R)
    return SecondUser(sympy.expand(alone - shared), None if root is None else max(1, int(sympy.ceiling(root))))
