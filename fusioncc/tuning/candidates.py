"""Which schedules of a group are measured first: the model's best of each kind, then others that differ from them."""

from dataclasses import dataclass

from fusioncc.autotune.choose import Pools, rankings
from fusioncc.autotune.kinds import KINDS
from fusioncc.autotune.pick import ON_REQUEST
from fusioncc.autotune.two_pool import divided
from fusioncc.cost_models.estimate import estimate
from fusioncc.device import Device
from fusioncc.packing import PACKED
from fusioncc.schedule import Schedule, TileConfig
from fusioncc.tuning.key import Key
from fusioncc.tuning.space import is_selectable

WORTH = 1.5
"""How many times the least predicted time a schedule may be predicted to take to be measured at all: the model was off
by less wherever it was held against a card."""
VARIED = 4
"""Shapes of one launch that are tried, the best by the model."""
WAITING = "two_pool"


@dataclass(frozen=True)
class Predicted:
    """A schedule that can be chosen, with its predicted time."""

    schedule: Schedule
    us: float


def measured_kinds(key: Key) -> tuple[str, ...]:
    """The kinds that may be measured under the options of a key: those that are emitted, are legal, move no weights,
    and run unasked or were asked for."""
    wanted = key.wishes.schedule
    kinds = [kind for kind in KINDS if kind not in ON_REQUEST] if wanted == "auto" else [wanted]
    without = ("library", "merged", *PACKED)
    if key.tier == "eager":
        return ()
    return tuple(kind for kind in kinds if kind not in without and not KINDS[kind].illegal(key.group))


def first_candidates(key: Key, device: Device, count: int, kinds: tuple[str, ...]) -> tuple[Schedule, ...]:
    """At most ``count`` schedules of these kinds: the best of each that is worth it, then those predicted fastest of
    other shapes."""
    found = [of_kind for kind in kinds if (of_kind := variants(key, device, kind))]
    most = WORTH * min((of_kind[0].us for of_kind in found), default=0.0)
    leaders = [of_kind[0] for of_kind in found]
    others = [each for of_kind in found for each in of_kind[1:]]
    ordered = [*sorted(leaders, key=lambda each: each.us), *sorted(others, key=lambda each: each.us)]
    distinct: dict[Pools, Schedule] = {}  # concat and horizontal may mean one kernel
    for each in ordered:
        if each.us <= most:
            distinct.setdefault(each.schedule.pools, each.schedule)
    return tuple(distinct.values())[:count]


def waiting_candidates(key: Key, device: Device, count: int, winner: Schedule | None) -> tuple[Schedule, ...]:
    """At most ``count`` schedules of ``two_pool``: with the main tile of ``winner``, the fastest measured of the kinds
    whose programs do not wait, where it is enumerated; then the model's."""
    found = [each.schedule for each in variants(key, device, WAITING)]
    tile = main_tile(winner) if winner is not None else None
    started = [each for each in _in_tile(key, device, tile) if is_selectable(each, key, device)] if tile else []
    return tuple(dict.fromkeys([*started[:1], *found]))[:count]


def variants(key: Key, device: Device, kind: str) -> tuple[Predicted, ...]:
    """Schedules of one kind that can be chosen and differ in shape, fastest predicted first: the best of each way to
    run it, and those in which its largest launch has another shape of tiles."""
    made: dict[Schedule, None] = {}
    for ranked in rankings(key.group, device, kind, key.tier):
        best = [choices[0] for choices in ranked]
        at = max(range(len(best)), key=lambda launch: _columns(key, best[launch]))
        for pools in _varied(ranked[at]):
            launched = [*best[:at], _settled(key, device, kind, pools), *best[at + 1 :]]
            made[Schedule(kind, tuple(pool for each in launched for pool in each))] = None
    timed = ((each, estimate(key.group, each, device, key.tier)) for each in made if is_selectable(each, key, device))
    return tuple(sorted((Predicted(each, cost.us) for each, cost in timed if cost), key=lambda each: each.us))


def main_tile(schedule: Schedule) -> TileConfig | None:
    """The tile of its first main pool."""
    return next((pool.tile for pool in schedule.pools if pool.role == "main"), None)


def _in_tile(key: Key, device: Device, tile: TileConfig) -> list[Schedule]:
    """Schedules of ``two_pool`` with such main tiles, best first, each in its best division."""
    alike = [
        pools
        for ranked in rankings(key.group, device, WAITING, key.tier)
        for pools in ranked[0]
        if _blocks(main_tile(Schedule(WAITING, pools))) == _blocks(tile)
    ]
    return [Schedule(WAITING, _settled(key, device, WAITING, pools)) for pools in alike]


def _blocks(tile: TileConfig | None) -> tuple[int, int, bool] | None:
    """What the listed tiles of ``two_pool`` share with those of other kinds."""
    return None if tile is None else (tile.block_m, tile.block_n, tile.tma)


def _settled(key: Key, device: Device, kind: str, pools: Pools) -> Pools:
    """The pools as they would run: those of ``two_pool`` are ranked without a division."""
    return divided(key.group, pools, device, key.tier)[1] if kind == WAITING else pools


def _columns(key: Key, pools: Pools) -> tuple[bool, int]:
    """How much of a schedule a launch is: that with main products first, then that with most columns."""
    columns = sum(key.group.members[member].n for pool in pools for member in pool.members)
    return any(pool.role == "main" for pool in pools), columns


def _varied(choices: tuple[Pools, ...]) -> list[Pools]:
    """The first few of a ranking that have each another shape than those before."""
    seen: dict[tuple[object, ...], Pools] = {}
    for pools in choices:
        shape = tuple((pool.role, pool.members, _blocks(pool.tile), pool.k_split > 1) for pool in pools)
        seen.setdefault(shape, pools)
        if len(seen) == VARIED:
            break
    return [*seen.values()]
