"""Neighbours: enumerated, selectable, one knob and one step away, and neighbours of each other."""

import random
from dataclasses import replace

import pytest

from fusioncc.autotune import best, next_best
from fusioncc.config import Options
from fusioncc.cost_models import footprint
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule
from fusioncc.tuning.candidates import measured_kinds
from fusioncc.tuning.key import Key, key_of
from fusioncc.tuning.neighbours import KNOBS, arrangements, neighbours
from fusioncc.tuning.space import require_selectable
from tests.cost_models.groups import bundle, lora
from tests.shown import shown
from tests.tuning.entries import DEVICE, GROUP, key

GROUPS = {
    "one row": lora(1, 4096, 4096, 16),
    "few rows": bundle(16, 4096, (4096, 16), (1024, 16), (1024, 16)),
    "q/k/v": bundle(512, 4096, (4096, 16), (1024, 16), (1024, 16)),
    "no branches": bundle(64, 4096, (4096, 0), (1024, 0)),
    "some branches": bundle(128, 2048, (2048, 8), (2048, 0)),
    "fp32": lora(64, 1024, 2048, 16, dtype="fp32"),
    "small": GROUP,
}


def kinds_of(group: Group) -> list[str]:
    return [kind for kind in measured_kinds(key(group)) if best(group.signature(), DEVICE, kind)]


CASES = [(name, kind) for name, group in GROUPS.items() for kind in kinds_of(group)]


def start(group: Group, kind: str) -> Schedule:
    found = best(group.signature(), DEVICE, kind)
    assert found is not None
    return found[0]


def walk(name: str, kind: str, steps: int) -> list[Schedule]:
    """A random walk over neighbours."""
    wanted, chance, visited = key(GROUPS[name]), random.Random(f"{name} {kind}"), [start(GROUPS[name], kind)]
    for _ in range(steps):
        visited.append(chance.choice(neighbours(visited[-1], wanted, DEVICE) or (visited[-1],)))
    return visited


@pytest.mark.parametrize("case", shown(CASES, 4, "-".join))
def test_neighbours_can_be_chosen_and_are_neighbours_of_each_other(case: tuple[str, str]) -> None:
    name, kind = case
    wanted = key(GROUPS[name])
    for schedule in walk(name, kind, 2):
        around = neighbours(schedule, wanted, DEVICE)
        assert around, "there is somewhere to go"
        assert schedule not in around and len(set(around)) == len(around)
        for each in around:
            assert each.kind == kind
            require_selectable(each, wanted, DEVICE)
            assert schedule in neighbours(each, wanted, DEVICE)


def values(pools: tuple[Pool, ...], rows: int) -> dict[str, int | None]:
    return {knob.name: knob.read(pools, rows) for knob in KNOBS}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_one_launch_differs_in_one_knob_by_one_step(name: str, kind: str) -> None:
    group = GROUPS[name]
    for schedule in walk(name, kind, 2):
        for each in neighbours(schedule, key(group), DEVICE):
            if len(each.by_launch()) != len(schedule.by_launch()) or [p.members for p in each.pools] != [
                p.members for p in schedule.pools
            ]:
                continue  # other launches, or a half tile for some members
            moved = [pair for pair in zip(schedule.by_launch(), each.by_launch(), strict=True) if pair[0] != pair[1]]
            ((before, after),) = moved
            old, new = values(before, group.m), values(after, group.m)
            apart = [name for name in old if old[name] != new[name] and None not in (old[name], new[name])]
            assert len(apart) <= 1, (old, new)


def test_a_step_is_the_next_enumerated_value() -> None:
    """Of the stages 2, 3, 4, 5, 7 those on both sides, and nothing that changes with them."""
    schedule = start(GROUPS["q/k/v"], "inline")
    (own,) = [each for each in arrangements(GROUPS["q/k/v"].signature(), DEVICE, "inline", "fp32") if len(each) == 1]
    ladders = dict(zip((knob.name for knob in KNOBS), own[0].ladders, strict=True))
    pool = schedule.pools[0]
    around = neighbours(schedule, key(GROUPS["q/k/v"]), DEVICE)
    alike = {
        each.pools[0].tile.num_stages
        for each in around
        if len(each.pools) == 1 and replace(each.pools[0].tile, num_stages=pool.tile.num_stages) == pool.tile
    }
    at = ladders["num_stages"].index(pool.tile.num_stages)
    assert alike and alike <= {*ladders["num_stages"][max(0, at - 1) : at], *ladders["num_stages"][at + 1 : at + 2]}


def test_members_change_launches_with_their_tiles() -> None:
    """All of q/k/v in one launch, or one by one: the same tile, and back."""
    wanted = key(GROUPS["q/k/v"])
    whole = next(each for each in arrangements(wanted.group, DEVICE, "inline", "fp32") if len(each) == 1)
    found = 0
    for pools in [*whole[0].values][:20]:
        schedule = Schedule("inline", pools)
        other = [each for each in neighbours(schedule, wanted, DEVICE) if len(each.by_launch()) == 3]
        for each in other:
            assert {pool.tile for pool in each.pools} == {pools[0].tile}
        found += len(other)
    assert found


def test_through_tma_and_through_pointers_are_one_step_apart() -> None:
    schedule = start(GROUPS["q/k/v"], "split")
    assert any(pool.tile.tma for pool in schedule.pools)
    around = neighbours(schedule, key(GROUPS["q/k/v"]), DEVICE)
    pointers = [each for each in around if not any(pool.tile.tma for pool in each.pools)]
    mains = [pool.tile for each in pointers for pool in each.pools if pool.role == "main"]
    first = next(pool.tile for pool in schedule.pools if pool.role == "main")
    assert mains and {(tile.block_m, tile.block_n) for tile in mains} == {(first.block_m, first.block_n)}


def test_two_pool_has_neighbours_in_every_knob_of_its_division() -> None:
    wanted = key(GROUPS["q/k/v"])
    seen: set[str] = set()
    for schedule in walk("q/k/v", "two_pool", 12):
        old = values(schedule.pools, 512)
        for each in neighbours(schedule, wanted, DEVICE):
            new = values(each.pools, 512)
            seen |= {name for name in old if None not in (old[name], new[name]) and old[name] != new[name]}
    assert {"block_m", "block_n", "down slices", "fewer down workers", "late", "chunk"} <= seen


def test_options_bound_the_neighbours() -> None:
    """What raises the peak too much is no neighbour."""
    group = GROUPS["few rows"].signature()
    free = neighbours(start(group, "concat"), key(group), DEVICE)
    least = footprint(group, Schedule("library")).peak_bytes
    more = {each: footprint(group, each).peak_bytes - least for each in free}
    limit = max(min(more.values()), 0)
    allowed = {each for each in free if more[each] <= limit}
    assert set(neighbours(start(group, "concat"), key(group, max_peak_increase=limit), DEVICE)) == allowed < set(free)


def test_other_cards_have_other_neighbours() -> None:
    old = get_device("a100-80")
    group = GROUPS["q/k/v"]
    wanted: Key = key_of(group, Options(), old, "NVIDIA A100")
    found = best(group.signature(), old, "split")
    assert found is not None
    around = neighbours(found[0], wanted, old)
    assert around and not any(pool.tile.tma for each in around for pool in each.pools)


def test_what_differs_in_two_knobs_or_by_two_steps_is_no_neighbour() -> None:
    (own, *_) = arrangements(GROUPS["small"].signature(), DEVICE, "inline", "fp32")
    every = [*own[0].values]
    pools = every[0]
    around = set(own[0].around(pools))
    tile = pools[0].tile
    two = [each for each in every if each[0].tile.block_m != tile.block_m and each[0].tile.num_warps != tile.num_warps]
    far = [each for each in every if abs(each[0].tile.num_stages - tile.num_stages) > 2]
    assert around and two and far and pools not in around
    assert around.isdisjoint(two) and around.isdisjoint(far)


@pytest.mark.parametrize("case", shown(CASES, 8, "-".join))
def test_one_that_does_not_build_has_a_next_best(case: tuple[str, str]) -> None:
    """A step down the ranking of its launch, as for a choice of the model's."""
    name, kind = case
    group = GROUPS[name].signature()
    for each in neighbours(start(group, kind), key(group), DEVICE):
        following = next_best(group, DEVICE, each, 0)
        assert following is None or following.pools != each.pools
