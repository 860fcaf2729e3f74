"""Makespan of one persistent launch of schedule ``two_pool``: a discrete-event simulation, tile by tile.

It hands tiles out as the kernel does (``fusioncc/codegen/two_pool.py``). Workers are numbered in the order in which
they start. The first ``down_workers`` take down tiles from a counter until there are none, and publish each; then
everyone runs main tiles, from stripes or from a queue. A main tile that joins a branch waits, behind its K loop, until
the down tiles of its rows are published. Down workers never wait, so the down pass is simulated first, by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from math import ceil
from typing import Literal

Event = tuple[int, Literal["down", "main"], int, float, float, float]
"""What :class:`Span` holds, as a plain tuple: a plan simulates thousands."""


@dataclass(frozen=True)
class MainTiles:
    """The tiles of one main member, in grouped ordering."""

    row_blocks: int
    col_blocks: int
    group_m: int = 8
    joins: bool = True
    """Whether its tiles wait for the down tiles of their rows."""

    @property
    def tiles(self) -> int:
        return self.row_blocks * self.col_blocks

    def row_block(self, tile: int) -> int:
        """The block of rows of a tile, as the kernel computes it."""
        group_size = self.group_m * self.col_blocks
        first = tile // group_size * self.group_m
        return first + tile % group_size % min(self.row_blocks - first, self.group_m)


@dataclass(frozen=True)
class PoolLaunch:
    """Who gets which tiles, and what each of them costs. Times in us."""

    workers: int
    down_workers: int
    mains: tuple[MainTiles, ...]
    """The members, whose tiles are numbered one after another."""
    down_tiles: int
    down_us: float
    main_us: float
    """K loop of a main tile."""
    join_us: float = 0.0
    """What follows the wait: the join and the store."""
    atomic_us: float = 0.0
    """One atomic: a tile or a chunk taken, a flag published, a flag read."""
    k_split: int = 1
    """Down tiles that publish one block of rows."""
    late: int = 0
    """Turns of main tiles that down workers sit out (stripes)."""
    chunk: int | None = None
    """Main tiles taken at once from the queue; None: stripes."""

    @cached_property
    def tiles(self) -> int:
        """Main tiles."""
        return sum(main.tiles for main in self.mains)

    @cached_property
    def programs(self) -> int:
        """Workers that are launched: no more than there are main tiles."""
        return min(self.workers, self.tiles)

    @cached_property
    def tile_us(self) -> float:
        """Time of a main tile that joins and does not wait."""
        return self.main_us + self.atomic_us + self.join_us

    @cached_property
    def flags_us(self) -> float:
        """When all down tiles are published."""
        down_workers = min(self.down_workers, self.programs)
        return ceil(self.down_tiles / down_workers) * (self.down_us + 2 * self.atomic_us) if self.down_tiles else 0.0

    @property
    def work_us(self) -> float:
        """Time of all tiles, without any wait."""
        main = sum(each.tiles * (self.tile_us if each.joins else self.main_us) for each in self.mains)
        return main + self.down_tiles * (self.down_us + 2 * self.atomic_us)

    def waits_for(self, tile: int) -> int | None:
        """The block of rows whose down tiles a main tile waits for; None: it joins nothing."""
        for main in self.mains:
            if tile < main.tiles:
                return main.row_block(tile) if main.joins else None
            tile -= main.tiles
        raise IndexError("no such tile")


@dataclass(frozen=True)
class Span:
    """One tile in the lane of a worker; times in us from the start of the launch."""

    worker: int
    kind: Literal["down", "main"]
    tile: int
    start: float
    end: float
    waited: float
    """Of that, the wait for a flag."""


@dataclass(frozen=True)
class Timeline:
    """Every tile of a launch, lane by lane, each lane in order; times in us."""

    lanes: tuple[tuple[Span, ...], ...]
    """The tiles of worker 0, 1, 2, ..."""

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """When each worker is done."""
        return tuple(lane[-1].end if lane else 0.0 for lane in self.lanes)

    @property
    def makespan(self) -> float:
        """When the last worker is done."""
        return max(self.ends)

    @property
    def tail(self) -> float:
        """How long a worker, on the average, is done before the last one."""
        return _tail(self.ends)


def simulate(launch: PoolLaunch) -> Timeline:
    """Every tile of ``launch``."""
    lanes: list[list[Span]] = [[] for _ in range(launch.programs)]
    for event in _events(launch, launch.tiles):
        lanes[event[0]].append(Span(*event))
    return Timeline(tuple(map(tuple, lanes)))


def makespan_and_tail(launch: PoolLaunch) -> tuple[float, float]:
    """Makespan and tail, us, as :func:`simulate` finds them, in less time: turns in which nobody waits any more, and
    everybody gets as many tiles, add their time to both ends and are left out."""
    turn, skipped = launch.programs * (launch.chunk or 1), 0
    if all(main.joins for main in launch.mains):
        waiting = ceil(max(launch.flags_us - launch.main_us, 0.0) / launch.tile_us)
        skipped = max(0, launch.tiles // turn - waiting - launch.late - 2)
    ends = [0.0] * launch.programs
    for worker, _, _, _, end, _ in _events(launch, launch.tiles - skipped * turn):
        ends[worker] = end
    whole = skipped * (launch.tile_us if launch.chunk is None else launch.chunk * launch.tile_us + launch.atomic_us)
    return max(ends) + whole, _tail(ends)


def _tail(ends: Sequence[float]) -> float:
    return max(max(ends) - sum(ends) / len(ends), 0.0)


def _events(launch: PoolLaunch, tiles: int) -> Iterator[Event]:
    """The down tiles and the first ``tiles`` main tiles; those of each worker in order."""
    free = [0.0] * launch.programs
    ready = [0.0] * ceil(launch.down_tiles / launch.k_split)
    for event in _down_pass(launch, free):
        row = event[2] // launch.k_split
        ready[row] = max(ready[row], event[4])
        yield event
    yield from (_stripes if launch.chunk is None else _queue)(launch, tiles, free, ready)


def _down_pass(launch: PoolLaunch, free: list[float]) -> Iterator[Event]:
    """Down tiles from their counter; ``free`` then says when each worker goes on."""
    waiting = [(0.0, worker) for worker in range(min(launch.down_workers, launch.programs))]
    for tile in range(launch.down_tiles):
        start, worker = waiting[0]
        end = start + launch.atomic_us + launch.down_us + launch.atomic_us
        heapreplace(waiting, (end, worker))
        yield worker, "down", tile, start, end, 0.0
    for end, worker in waiting:
        free[worker] = end + launch.atomic_us  # finds no tile left


def _main_tile(launch: PoolLaunch, ready: list[float], worker: int, tile: int, start: float) -> Event:
    row, end = launch.waits_for(tile), start + launch.main_us
    if row is None:
        return worker, "main", tile, start, end, 0.0
    end += launch.atomic_us
    waited = max(ready[row] - end, 0.0)
    return worker, "main", tile, start, end + waited + launch.join_us, waited


def _stripes(launch: PoolLaunch, tiles: int, free: list[float], ready: list[float]) -> Iterator[Event]:
    """Each worker has its tiles beforehand."""
    for worker, start in enumerate(free):
        for tile in stripe(launch, tiles, worker):
            event = _main_tile(launch, ready, worker, tile, start)
            start = event[4]
            yield event


def stripe(launch: PoolLaunch, tiles: int, worker: int) -> tuple[int, ...]:
    """Which of ``tiles`` main tiles a worker has under stripes, in order."""
    programs = launch.programs
    others = max(programs - launch.down_workers, 0)
    late = launch.late * others
    early = range(worker - launch.down_workers, min(late, tiles), others) if late else ()
    return (*(early if worker >= launch.down_workers else ()), *range(late + worker, tiles, programs))


def _queue(launch: PoolLaunch, tiles: int, free: list[float], ready: list[float]) -> Iterator[Event]:
    """Whoever is free takes the next chunk."""
    assert launch.chunk is not None
    waiting = [(start, worker) for worker, start in enumerate(free)]
    heapify(waiting)
    for first in range(0, tiles, launch.chunk):
        start, worker = waiting[0]
        start += launch.atomic_us
        for tile in range(first, min(first + launch.chunk, tiles)):
            event = _main_tile(launch, ready, worker, tile, start)
            start = event[4]
            yield event
        heapreplace(waiting, (start, worker))
