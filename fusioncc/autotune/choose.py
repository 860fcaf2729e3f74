"""The model's choice: the best schedule of each kind, and the kinds ranked.

Costs add over launches, so each launch takes its best pool by itself.
Everything is cached by the group's signature: identical layers are planned once.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from fusioncc.autotune.kinds import KINDS
from fusioncc.autotune.space import Choice, Space, spaces
from fusioncc.autotune.two_pool import undivided
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.estimate import estimate, launch_cost
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.overlap import all_steps, exposed_us, hides
from fusioncc.cost_models.tiles import slice_us
from fusioncc.cost_models.traffic import warm_names
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Candidate, Estimate, Pool, Schedule

Pools = tuple[Pool, ...]
"""The pools of one launch."""


def best(group: Group, device: Device, kind: str, tier: str = "fp32") -> tuple[Schedule, Estimate] | None:
    """The schedule of ``kind`` with the least predicted time, or None when it is illegal or cannot be estimated.

    Raises:
        KeyError: no such kind.
    """
    return _best(group.signature(), device, kind, tier)


def rank(
    group: Group, device: Device, kinds: tuple[str, ...] = tuple(KINDS), tier: str = "fp32"
) -> tuple[Candidate, ...]:
    """One candidate a kind: those with a predicted time first, fastest first; then the others, in the order given."""
    return _rank(group.signature(), device, kinds, tier)


def ranked_pools(group: Group, device: Device, schedule: Schedule, tier: str = "fp32") -> tuple[tuple[Pools, ...], ...]:
    """For each launch of a schedule that was chosen here what its pools may be, best first. Of ``two_pool`` another
    division of the same tiles stands in their place.

    Raises:
        ValueError: the schedule was not chosen here.
    """
    launched = schedule.by_launch()
    if not launched:
        return ()
    place = _divided_so if KINDS[schedule.kind].settled else _as_ranked
    for ranked in rankings(group, device, schedule.kind, tier):
        placed = tuple(place(pools, each) for pools, each in zip(launched, ranked, strict=False))
        if len(ranked) == len(launched) and all(placed):
            return placed
    raise ValueError(f"schedule {schedule.kind!r} with such pools is none of those chosen here")


def rankings(group: Group, device: Device, kind: str, tier: str = "fp32") -> tuple[tuple[tuple[Pools, ...], ...], ...]:
    """For each way to run a kind that can be estimated, and for each of its launches, what its pools may be, best
    first."""
    signature = group.signature()
    if KINDS[kind].illegal(signature):
        return ()
    ways = range(len(KINDS[kind].ways(signature, device)))
    return tuple(ranked for way in ways if (ranked := _ranked_pools(signature, device, kind, way, tier)))


def pruned(group: Group, device: Device, kinds: tuple[str, ...], tier: str = "fp32") -> Mapping[str, int]:
    """How many combinations of knobs were pruned for which reason, over all launches of these kinds, commonest
    first."""
    signature, counts = group.signature(), Counter[str]()
    for kind in kinds:
        ways = () if KINDS[kind].illegal(signature) else KINDS[kind].ways(signature, device)
        for way in range(len(ways)):
            counts.update(_ranking(signature, device, kind, way, tier).pruned)
    return dict(counts.most_common())


def next_best(
    group: Group, device: Device, schedule: Schedule, launch: int, tier: str = "fp32", *, smaller: bool = False
) -> Schedule | None:
    """A chosen schedule with the pools of ``launch`` one step down the ranking, or down to the next tiles of which a
    thread holds less where they must be ``smaller``; None at its end.

    Raises:
        ValueError: the schedule was not chosen here.
    """
    ranking = ranked_pools(group, device, schedule, tier)[launch]
    launched = schedule.by_launch()
    now = launched[launch]
    later = ranking[ranking.index(now) + 1 :]
    following = next((pools for pools in later if not smaller or _held(pools) < _held(now)), None)
    if following is None:
        return None
    launched[launch] = following
    return replace(schedule, pools=tuple(pool for pools in launched for pool in pools))


def _as_ranked(pools: Pools, ranked: tuple[Pools, ...]) -> tuple[Pools, ...]:
    """The ranking, where it holds the pools; else nothing."""
    return ranked if pools in ranked else ()


def _divided_so(pools: Pools, ranked: tuple[Pools, ...]) -> tuple[Pools, ...]:
    """The ranking with the pools in the place of the same tiles, however divided; nothing where it has none."""
    tiles = [undivided(each) for each in ranked]
    at = tiles.index(undivided(pools)) if undivided(pools) in tiles else None
    return () if at is None else (*ranked[:at], pools, *ranked[at + 1 :])


def _held(pools: Pools) -> float:
    """Elements of its tiles that a thread holds, of all pools: any of them may be the one that spills."""
    return sum(pool.tile.elements_a_thread for pool in pools)


@lru_cache(maxsize=1024)
def _best(group: Group, device: Device, kind: str, tier: str) -> tuple[Schedule, Estimate] | None:
    if KINDS[kind].illegal(group):
        return None
    ways = range(len(KINDS[kind].ways(group, device)))
    schedules = [Schedule(kind)] if not ways else []
    for way in ways:
        ranked = _ranked_pools(group, device, kind, way, tier)
        if ranked:
            schedules.append(Schedule(kind, tuple(pool for choices in ranked for pool in choices[0])))
    timed = [(schedule, cost) for schedule in schedules if (cost := estimate(group, schedule, device, tier))]
    return min(timed, key=lambda each: each[1].us, default=None)


@dataclass(frozen=True)
class _Ranking:
    """What each launch may be, best first, and how many of its forms were pruned for which reason."""

    launches: tuple[tuple[Pools, ...], ...]
    pruned: Mapping[str, int]


def _ranked_pools(group: Group, device: Device, kind: str, way: int, tier: str) -> tuple[tuple[Pools, ...], ...]:
    """Empty where a launch has no legal pool, or none that can be estimated."""
    return _ranking(group, device, kind, way, tier).launches


@lru_cache(maxsize=1024)
def _ranking(group: Group, device: Device, kind: str, way: int, tier: str) -> _Ranking:
    found = _spaces(group, device, kind, way, tier)
    reasons = Counter[str]()
    for space in found:
        reasons.update(space.pruned)
    return _Ranking(_launches(group, device, kind, found, tier), dict(reasons))


def _launches(
    group: Group, device: Device, kind: str, found: tuple[Space, ...], tier: str
) -> tuple[tuple[Pools, ...], ...]:
    if not all(space.legal for space in found):
        return ()
    warm = _warm(group, device, kind, found, tier)
    timed = [_timed(space, names, device) for space, names in zip(found, warm, strict=False)]
    if not all(timed):
        return ()
    ranked: list[tuple[Pools, ...]] = []
    consumer: _Timed | None = None
    closer = KINDS[kind].settled
    for at in reversed(range(len(found))):
        order = _in_order(timed[at], found[at].consumers, timed[at - 1] if at else [], consumer, device)
        consumer = order[0]
        choices = tuple(each.choice.pools for each in order)
        ranked.append(closer(group, device, choices, tier) if closer else choices)
    return tuple(reversed(ranked))


def _spaces(group: Group, device: Device, kind: str, way: int, tier: str) -> tuple[Space, ...]:
    return spaces(group, device, kind, KINDS[kind].ways(group, device)[way], tier)


def _warm(group: Group, device: Device, kind: str, found: tuple[Space, ...], tier: str) -> tuple[frozenset[str], ...]:
    """What each launch finds in the L2. It depends on the order of the launches, not on their tiles."""
    pools = tuple(pool for space in found for pool in space.legal[0].pools)
    sequence = launches(group, Schedule(kind, pools), tier)
    warm = zip(sequence, warm_names(sequence, device), strict=True)
    return tuple(names for launch, names in warm if launch.pool is not None)


@dataclass(frozen=True)
class _Timed:
    """A choice with its cost by itself."""

    choice: Choice
    cost: Cost


def _timed(space: Space, warm: frozenset[str], device: Device) -> list[_Timed]:
    """The legal choices of a launch that can be estimated."""
    costs = ((choice, launch_cost(choice.launch, warm, device)) for choice in space.legal)
    return [_Timed(choice, cost) for choice, cost in costs if cost is not None]


def _in_order(
    choices: list[_Timed], consumers: int, before: list[_Timed], consumer: _Timed | None, device: Device
) -> list[_Timed]:
    """What one launch may be, best first, by what it adds to the time of the schedule. A down pass is given what the
    ``consumer`` of its partial sums prefers to be; most are hidden, and of equal ones that with the fewest K steps in
    all programs comes first. Of other launches the shorter does, of equal ones that with the least latency, then that
    with the longest K steps (16 rows, N = 28672: steps of 128 took 57.7 us where steps of 64 took 59.1). Persistent
    main tiles that may hide a down pass leave room for the best of those ``before`` them (others find it in time)."""

    def us(each: _Timed) -> float:
        pool = each.choice.launch.pool
        room = pool is not None and pool.dependent and pool.joins_last and pool.workers is not None
        hidden = min((_seen_us(down, each, device) for down in before), default=0.0) if room else 0.0
        alone = each.cost.us if consumer is None else _seen_us(each, consumer, device)
        return alone + hidden + _added_later(consumers, each.choice.pools, consumer)

    def key(each: _Timed) -> tuple[float, ...]:
        longest = max(pool.tile.block_k for pool in each.choice.pools)
        return round(us(each), 6), all_steps(each.choice.launch) if consumer else 0, *preference(each.cost), -longest

    return sorted(choices, key=key)


def preference(cost: Cost) -> tuple[float, float]:
    """What a launch by itself is ranked by. Where power binds, which hides the rest, the latency tells them apart."""
    return round(cost.us, 6), cost.latency


def _seen_us(down: _Timed, consumer: _Timed, device: Device) -> float:
    """What is seen of a launch in front of another, us."""
    if hides(down.choice.launch, consumer.choice.launch, device):
        return exposed_us(down.choice.launch, down.cost, consumer.choice.launch, consumer.cost, device)
    return down.cost.us


def _added_later(consumers: int, pools: Pools, consumer: _Timed | None) -> float:
    """What the slices of a down pass cost those that add them, us."""
    if consumer is None:
        return 0.0
    each = max(map(slice_us, consumer.choice.launch.parts))
    return consumers * each * max((pool.k_split for pool in pools if pool.role == "down"), default=0)


@lru_cache(maxsize=1024)
def _rank(group: Group, device: Device, kinds: tuple[str, ...], tier: str) -> tuple[Candidate, ...]:
    candidates = [_candidate(group, device, kind, tier) for kind in kinds]
    far = float("inf")
    return tuple(
        sorted(candidates, key=lambda each: (not each.legal, far if each.predicted_us is None else each.predicted_us))
    )


def _candidate(group: Group, device: Device, kind: str, tier: str) -> Candidate:
    reason = KINDS[kind].illegal(group)
    if reason:
        return Candidate(kind, False, reason)
    found = _best(group, device, kind, tier)
    if found is not None:
        schedule, predicted = found
        return Candidate(kind, True, _summary(predicted), predicted.us, schedule, predicted)
    ways = [_spaces(group, device, kind, way, tier) for way in range(len(KINDS[kind].ways(group, device)))]
    unfit = [space for way in ways for space in way if not space.legal]
    if unfit and not any(all(space.legal for space in way) for way in ways):
        return Candidate(kind, False, unfit[0].why_empty())
    dtypes = ", ".join(dict.fromkeys(member.dtype for member in group.members))
    cannot = f"cannot be estimated: no rate known for products in {dtypes}"
    return Candidate(kind, kind == "library", cannot, None, Schedule(kind))


def _summary(predicted: Estimate) -> str:
    terms = dict(predicted.terms)
    grid = f", {predicted.tiles} tiles" if predicted.tiles else ""
    return (
        f"{predicted.launches} launch{'es' * (predicted.launches != 1)}, {predicted.bytes / 1e6:.1f} MB{grid}; "
        f"{predicted.binds} binds ({terms[predicted.binds]:.1f} us)"
    )
