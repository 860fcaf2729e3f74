"""What is measured first: the best of each kind that may be measured, and others unlike it."""

import pytest

from fusioncc.autotune import best
from fusioncc.cost_models.estimate import estimate
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from fusioncc.tuning.candidates import (
    WORTH,
    first_candidates,
    main_tile,
    measured_kinds,
    variants,
    waiting_candidates,
)
from fusioncc.tuning.space import require_selectable
from tests.cost_models.groups import bundle, lora
from tests.tuning.entries import DEVICE, key

GROUPS = [
    lora(1, 4096, 4096, 16),
    bundle(64, 4096, (4096, 16), (1024, 16), (1024, 16)),
    lora(2048, 4096, 4096, 16),
    bundle(512, 4096, (4096, 0), (1024, 0)),
]


def us(group: Group, schedule: Schedule) -> float:
    predicted = estimate(group.signature(), schedule, DEVICE)
    assert predicted is not None
    return predicted.us


@pytest.mark.parametrize("group", GROUPS)
def test_the_best_of_each_kind_comes_first_and_none_twice(group: Group) -> None:
    wanted = key(group)
    kinds = tuple(kind for kind in measured_kinds(wanted) if kind != "two_pool")
    found = first_candidates(wanted, DEVICE, 8, kinds)
    assert 4 <= len(found) <= 8
    least = us(group, found[0])
    assert least == min(us(group, each) for each in found)
    chosen = {kind: each[0] for kind in kinds if (each := best(group.signature(), DEVICE, kind))}
    worth = {kind for kind, each in chosen.items() if us(group, each) <= WORTH * least}
    assert found[0] in chosen.values() and {each.kind for each in found} <= worth
    pools = [each.pools for each in found]
    assert all(chosen[kind].pools in pools for kind in worth)
    assert len(set(pools)) == len(pools)
    for each in found:
        require_selectable(each, wanted, DEVICE)
        assert us(group, each) <= WORTH * least


@pytest.mark.parametrize("group", GROUPS)
def test_they_are_unlike_each_other(group: Group) -> None:
    """Nothing differs from another of its kind in warps, stages or K steps alone."""
    for kind in measured_kinds(key(group)):
        shapes = [shape(each.schedule) for each in variants(key(group), DEVICE, kind)]
        assert len(set(shapes)) == len(shapes)


def shape(schedule: Schedule) -> tuple[object, ...]:
    pools = ((pool.launch, pool.role, pool.members, pool.tile, pool.k_split > 1) for pool in schedule.pools)
    return tuple((*where, tile.block_m, tile.block_n, tile.tma, cut) for *where, tile, cut in pools)


def test_two_pool_starts_from_the_tile_that_won() -> None:
    group = lora(2048, 4096, 4096, 16)
    wanted = key(group)
    model = waiting_candidates(wanted, DEVICE, 2, None)
    for winner in variants(wanted, DEVICE, "split"):
        tile = main_tile(winner.schedule)
        assert tile is not None
        found = waiting_candidates(wanted, DEVICE, 2, winner.schedule)
        first = main_tile(found[0])
        assert first is not None and len(found) == len(set(found)) == 2
        for each in found:
            require_selectable(each, wanted, DEVICE)
        if (tile.block_m, tile.block_n, tile.tma) in [(128, 256, True), (128, 128, True), (128, 128, False)]:
            assert (first.block_m, first.block_n, first.tma) == (tile.block_m, tile.block_n, tile.tma)
        elif (tile.block_m, tile.block_n) == (256, 128):
            assert found == model, "not enumerated"


def test_what_the_options_do_not_allow_is_not_measured() -> None:
    group = lora(64, 4096, 4096, 16)
    kinds = ("concat", "horizontal", "split", "inline", "two_pool")
    assert measured_kinds(key(group)) == measured_kinds(key(group, pack_weights=True)) == kinds
    assert measured_kinds(key(group, schedule="streams")) == ("streams",)
    assert measured_kinds(key(group, schedule="inline")) == ("inline",)
    assert measured_kinds(key(group, schedule="library")) == measured_kinds(key(group, schedule="merged")) == ()
    assert measured_kinds(key(group, schedule="k_concat", pack_weights=True)) == ()
    assert measured_kinds(key(group, numerics="eager")) == ()
    assert measured_kinds(key(bundle(64, 4096, (4096, 0), (1024, 0)))) == ("concat", "horizontal")
    assert {each.kind for each in first_candidates(key(group, schedule="streams"), DEVICE, 8, ("streams",))} == {
        "streams"
    }


def test_memory_that_is_not_allowed_is_not_measured() -> None:
    group = bundle(16, 4096, (4096, 16), (1024, 16), (1024, 16))
    free = {each.schedule.kind for kind in ("concat", "split") for each in variants(key(group), DEVICE, kind)}
    bound = {
        each.schedule.kind
        for kind in ("concat", "split")
        for each in variants(key(group, max_peak_increase=0), DEVICE, kind)
    }
    assert (free, bound) == ({"concat", "split"}, {"split"})
