"""Neighbours of a schedule: those enumerated as legal for its group that differ from it in one knob by one step.

A knob reads its value off the pools of a launch. One step is the next value that is enumerated for that launch, so no
range is written down twice. A tile that comes from a short list (through TMA, or beside down tiles) has its K step,
warps, stages and orientation from there: for such pools these knobs have no value, and differ from none.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil

from fusioncc.autotune.choose import Pools, rankings
from fusioncc.autotune.two_pool import every_division
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule
from fusioncc.tuning.key import Key
from fusioncc.tuning.space import is_selectable


@dataclass(frozen=True)
class Knob:
    """``read`` answers with the value for the pools of a launch over so many rows, or None where it has none there."""

    name: str
    read: Callable[[Pools, int], int | None]


@dataclass(frozen=True)
class Enumerated:
    """What one launch may be, and of each form the values of all knobs."""

    values: Mapping[Pools, tuple[int | None, ...]]

    @staticmethod
    def of(choices: Iterable[Pools], rows: int) -> "Enumerated":
        return Enumerated({pools: tuple(knob.read(pools, rows) for knob in KNOBS) for pools in choices})

    @cached_property
    def ladders(self) -> tuple[tuple[int, ...], ...]:
        """For each knob the values that occur, in order."""
        columns = zip(*self.values.values(), strict=True)
        return tuple(tuple(sorted({value for value in column if value is not None})) for column in columns)

    def around(self, pools: Pools) -> Iterator[Pools]:
        """Those that differ from one of them in one knob by one step, or only in what has no knob."""
        mine = self.values[pools]
        for other, theirs in self.values.items():
            if other != pools and self._steps(mine, theirs) <= 1:
                yield other

    def _steps(self, mine: tuple[int | None, ...], theirs: tuple[int | None, ...]) -> int:
        steps = 0
        for ladder, one, other in zip(self.ladders, mine, theirs, strict=True):
            if one is not None and other is not None and one != other:
                steps += abs(ladder.index(one) - ladder.index(other))
        return steps


Arrangement = tuple[Enumerated, ...]
"""The launches of the ways that have the same members in each."""


def neighbours(schedule: Schedule, key: Key, device: Device) -> tuple[Schedule, ...]:
    """Every neighbour, in a fixed order; a schedule is one of each of its own. Of ``two_pool`` also the other divisions
    of its tiles; of a kind whose members share launches or not, the same tiles in other launches."""
    found: list[Schedule] = []
    launched = schedule.by_launch()
    everything = arrangements(key.group, device, schedule.kind, key.tier)
    for own in everything:
        if not _holds(own, launched):
            continue
        for at, launch in enumerate(own):
            for pools in launch.around(launched[at]):
                found.append(_schedule(schedule.kind, [*launched[:at], pools, *launched[at + 1 :]]))
        found += [each for other in everything if other is not own and (each := _regrouped(schedule, other))]
    return tuple(each for each in dict.fromkeys(found) if is_selectable(each, key, device))


@lru_cache(maxsize=256)
def arrangements(group: Group, device: Device, kind: str, tier: str) -> tuple[Arrangement, ...]:
    """The ways to run a kind by the members of their launches, each with everything that its launches may be."""
    merged: dict[Hashable, list[dict[Pools, None]]] = {}
    for ranked in rankings(group, device, kind, tier):
        members = tuple(_members(choices[0]) for choices in ranked)
        launches = merged.setdefault(members, [{} for _ in ranked])
        for launch, choices in zip(launches, ranked, strict=True):
            for pools in choices:
                divisions = every_division(group, pools, device, tier) if kind == "two_pool" else (pools,)
                launch.update(dict.fromkeys(divisions))
    return tuple(tuple(Enumerated.of(launch, group.m) for launch in launches) for launches in merged.values())


def _regrouped(schedule: Schedule, other: Arrangement) -> Schedule | None:
    """The schedule with its members in other launches; None where its launches have several tiles, or the other ones
    have no such tile."""
    tiles = {_tiles(pools) for pools in schedule.by_launch() if _leading(pools).role != "down"}
    if len(tiles) != 1:
        return None
    downs = {_tiles(pools) for pools in schedule.by_launch() if _leading(pools).role == "down"}
    launched = [next((pools for pools in launch.values if _tiles(pools) in tiles | downs), None) for launch in other]
    return None if None in launched else _schedule(schedule.kind, [pools for pools in launched if pools])


def _holds(arrangement: Arrangement, launched: Sequence[Pools]) -> bool:
    return len(arrangement) == len(launched) and all(
        pools in launch.values for pools, launch in zip(launched, arrangement, strict=True)
    )


def _tiles(pools: Pools) -> Hashable:
    return tuple((pool.role, pool.tile, pool.k_split) for pool in pools)


def _members(pools: Pools) -> Hashable:
    """The members of a launch, however they are divided among pools."""
    downs = sorted(member for pool in pools if pool.role == "down" for member in pool.members)
    others = sorted(member for pool in pools if pool.role != "down" for member in pool.members)
    return tuple(downs), tuple(others)


def _schedule(kind: str, launched: Sequence[Pools]) -> Schedule:
    return Schedule(kind, tuple(pool for pools in launched for pool in pools))


def _leading(pools: Pools) -> Pool:
    """The pool whose tile the others follow."""
    return next((pool for pool in pools if pool.role != "down"), pools[0])


def _listed(pools: Pools) -> bool:
    """Whether its tile comes from a short list."""
    pool = _leading(pools)
    return pool.tile.tma or (pool.role == "main" and (pool.k_split > 1 or any(each.role == "down" for each in pools)))


def _down(pools: Pools) -> Pool | None:
    """The down pool beside main tiles."""
    return next((pool for pool in pools if pool.role == "down" and pool is not _leading(pools)), None)


def _of_tile(field: str, *, listed: bool = True) -> Knob:
    """A field of the leading tile; unless it is read of ``listed`` ones too, those have it from their list."""

    def read(pools: Pools, rows: int) -> int | None:
        return int(getattr(_leading(pools).tile, field)) if listed or not _listed(pools) else None

    return Knob(field, read)


def _swaps(pools: Pools, rows: int) -> int | None:
    """The orientation of down tiles follows from their rows."""
    pool = _leading(pools)
    return None if pool.role == "down" or _listed(pools) else int(pool.tile.swap_operands)


def _down_slices(pools: Pools, rows: int) -> int | None:
    down = _down(pools)
    return None if down is None else down.k_split


def _fewer_workers(pools: Pools, rows: int) -> int | None:
    """Of ``two_pool``: whether there are fewer down workers than there could be, which are as many as down tiles."""
    down, most = _down(pools), _leading(pools).workers
    if down is None or down.workers is None or most is None:
        return None
    return int(down.workers < min(ceil(rows / down.tile.block_m) * down.k_split, most))


def _late(pools: Pools, rows: int) -> int | None:
    down = _down(pools)
    return None if down is None else int(down.late > 0)


KNOBS = (
    _of_tile("block_m"),
    _of_tile("block_n"),
    _of_tile("block_k", listed=False),
    _of_tile("num_warps", listed=False),
    _of_tile("num_stages", listed=False),
    _of_tile("tma"),
    Knob("swap_operands", _swaps),
    Knob("group_m", lambda pools, rows: _leading(pools).group_m),
    Knob("main pools", lambda pools, rows: sum(pool.role == "main" for pool in pools)),
    Knob("slices", lambda pools, rows: _leading(pools).k_split),
    Knob("down slices", _down_slices),
    Knob("fewer down workers", _fewer_workers),
    Knob("late", _late),
    Knob("chunk", lambda pools, rows: _leading(pools).chunk or 0),
)
"""Each knob of a launch; what is not here follows from these: widths of down tiles, workers of a launch through TMA and
the parts in which its tiles are stored, the order of a loop and the sums behind it."""
