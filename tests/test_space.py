"""The space of schedules, the ranking, and how fast a model is planned."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncc.autotune import best, choose, knobs, next_best, pick, rank, ranked_pools, spaces
from fusioncc.autotune.kinds import BATCHED, KINDS, NO_BRANCH, bundles
from fusioncc.codegen import check
from fusioncc.cost_models import estimate
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.overlap import hides
from fusioncc.cost_models.resources import accumulators, shared_bytes
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.packing import PACKED
from fusioncc.passes.plan_groups import WITHOUT_KERNEL
from fusioncc.schedule import SCHEDULES, Pool, Schedule, TileConfig
from tests.codegen.cases import Lora, Main
from tests.codegen.cases import group as codegen_group
from tests.cost_models.groups import bundle, lora

H200 = get_device("h200")
EMITTED = tuple(kind for kind in SCHEDULES if kind not in WITHOUT_KERNEL)


def test_every_kind_is_registered() -> None:
    assert tuple(KINDS) == SCHEDULES


@given(m=st.integers(1, 5000), n=st.integers(16, 5000), r=st.integers(1, 128), kind=st.sampled_from(EMITTED))
@settings(max_examples=25, deadline=None)
def test_legal_and_pruned_make_up_the_space(m: int, n: int, r: int, kind: str) -> None:
    group = lora(m, 1024, n, r)
    for steps in KINDS[kind].ways(group, H200):
        for space, step in zip(spaces(group, H200, kind, steps), steps, strict=True):
            assert space.enumerated == len(list(step.pools())) == len(space.legal) + sum(space.pruned.values())
            for choice in space.legal:
                assert shared_bytes(choice.launch, H200) <= H200.shared_bytes
                assert accumulators(choice.launch) <= knobs.MAX_ACCUMULATORS[True]


@pytest.mark.parametrize("kind", EMITTED)
@pytest.mark.parametrize("rows", [1, 64])
def test_what_is_chosen_stands_first_in_the_ranking_of_its_way(kind: str, rows: int) -> None:
    group = bundle(rows, 4096, (4096, 16), (1024, 16))
    found = best(group, H200, kind)
    assert found is not None
    ranked = ranked_pools(group, H200, found[0])
    assert tuple(pool for choices in ranked for pool in choices[0]) == found[0].pools


def test_pruning_names_shared_memory_on_a_smaller_card() -> None:
    small, group = get_device("rtx4090"), lora(512, 4096, 4096, 16)
    (space,), (wide,) = (
        spaces(group, device, "inline", KINDS["inline"].ways(group, device)[0]) for device in (small, H200)
    )
    assert f"more than {small.shared_bytes} bytes of shared memory" in space.pruned
    assert len(space.legal) < len(wide.legal)


def test_the_order_is_deterministic_and_starts_with_the_best() -> None:
    group = lora(64, 4096, 4096, 16)
    found = best(group, H200, "inline")
    assert found is not None
    (choices,) = ranked_pools(group, H200, found[0])
    choose._ranking.cache_clear()
    assert ranked_pools(group, H200, found[0]) == (choices,)
    assert len(set(choices)) == len(choices) > 50
    times = [each.us for pools in choices if (each := estimate(group, Schedule("inline", pools), H200))]
    assert len(times) == len(choices) and times == sorted(times)
    assert found[0].pools == choices[0]


@pytest.mark.parametrize("kind", ["inline", "split"])
def test_members_share_a_launch_where_that_is_predicted_to_win(kind: str) -> None:
    group = bundle(64, 4096, (4096, 16), (1024, 16), (1024, 0))
    found = best(group, H200, kind)
    assert found is not None
    (pool,) = (pool for pool in found[0].pools if pool.role == "main")
    assert pool.members == (0, 3, 6)
    apart = [replace(pool, members=(main,), launch=pool.launch + at) for at, main in enumerate(pool.members[:2])]
    downs = tuple(pool for pool in found[0].pools if pool.role == "down")
    other = estimate(group, Schedule(kind, (*downs, *apart)), H200)
    assert other is not None and other.us > found[1].us and other.launches == len(downs) + 3


@pytest.mark.parametrize("kind", ["inline", "split"])
@pytest.mark.parametrize("dtypes", [("bf16", "fp32"), ("fp32", "bf16")], ids="-".join)
def test_the_tiles_of_a_bundle_suit_every_member(kind: str, dtypes: tuple[str, str]) -> None:
    """An fp32 product is compensated and takes short K steps, wherever it stands in the bundle."""
    group = bundle(16, 4096, (1024, 16), (1024, 16))
    mains = dict(zip(group.mains, dtypes, strict=True))
    members = (
        replace(each, weight=replace(each.weight, dtype=mains.get(at, "bf16"))) for at, each in enumerate(group.members)
    )
    mixed = replace(group, members=tuple(members))
    found = best(mixed, H200, kind)
    assert found is not None
    check(mixed, found[0], "fp32")


def shape(pool: Pool) -> tuple[int, int, int]:
    return pool.tile.block_m, pool.tile.block_n, pool.tile.block_k


def test_short_steps_are_for_large_tiles_and_for_what_nothing_else_fits() -> None:
    narrow, large = TileConfig(64, 128, 32), TileConfig(128, 256, 32, 8)
    assert knobs.short(narrow, 2, 128) == "K steps of less than 128 bytes"
    assert knobs.short(replace(narrow, block_k=64), 2, 128) == knobs.short(narrow, 4, 128) == ""
    assert knobs.short(large, 2, 128) == knobs.short(narrow, 2, 64) == ""
    assert knobs.short(TileConfig(64, 256, 32, 8), 2, 128), "tiles of few rows wait for memory"
    group = lora(64, 4096, 4096, 16)
    (space,) = spaces(group, H200, "inline", KINDS["inline"].ways(group, H200)[0])
    assert space.pruned["K steps of less than 128 bytes"] > 50
    for depth in (20, 32):  # less than a line
        shallow = lora(64, depth, 256, 16)
        (space,) = spaces(shallow, H200, "inline", KINDS["inline"].ways(shallow, H200)[0])
        assert {(16, 32, 32), (64, 64, 32)} <= {shape(choice.pools[0]) for choice in space.legal}
    deep = lora(64, 64, 64, 8)  # its members are too small for the longer tiles of two_pool
    (products,) = spaces(deep, H200, "two_pool", KINDS["two_pool"].ways(deep, H200)[0])
    assert {pool.tile.block_k for choice in products.legal for pool in choice.pools if pool.role == "main"} == {32}


def test_programs_that_start_at_once_have_fewer_stages() -> None:
    group = bundle(64, 4096, (14336, 16), (14336, 16))
    deepest = {}
    for kind, launch in (("inline", 0), ("split", 1)):
        space = spaces(group, H200, kind, KINDS[kind].ways(group, H200)[0])[launch]
        mains = (pool for choice in space.legal for pool in choice.pools if not pool.tile.tma)
        deepest[kind] = max(pool.tile.num_stages for pool in mains if shape(pool) == (64, 256, 64))
    assert deepest == {"inline": 4, "split": 5}


def test_a_wide_pass_takes_shorter_steps() -> None:
    main = TileConfig(64, 128, 128, 4, 4)
    assert [knobs.down_step(main, row) for row in (32, 511, 512)] == [128, 128, 64]
    assert knobs.down_step(replace(main, block_k=32), 512) == 32, "a compensated sum"
    for dtype, ranks, step in (("bf16", (128,), 128), ("bf16", (128, 128), 64), ("fp32", (128,), 64)):
        group = bundle(64, 4096, *((4096, rank) for rank in ranks), adapter=dtype)
        for kind in ("two_pool", "horizontal"):
            found = best(group, H200, kind)
            assert found is not None
            assert {pool.tile.block_k for pool in found[0].pools if pool.role == "down"} == {step}


@pytest.mark.parametrize("device", ["h200", "l40s"])
@pytest.mark.parametrize("m", [1, 64])
def test_a_rank_that_fits_in_no_tile_is_ruled_out(m: int, device: str) -> None:
    for group in (lora(m, 4096, 4096, 512), bundle(m, 4096, (4096, 16), (4096, 257))):
        ranked = rank(group, get_device(device))
        assert {each.kind for each in ranked if each.legal} == {"merged", "library"}
        refused = {each.reason for each in ranked if not each.legal and each.kind != "packed"}
        assert refused in ({f"rank {r} fits in no tile, which has 256 at most"} for r in (257, 512))
        assert pick(ranked, group).kind == "library"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("m", [1, 64])
def test_the_highest_rank_that_fits_has_a_pass_over_x(m: int, dtype: str) -> None:
    """One row too: tiles of one row hold no more than 128 low-rank columns, those of 16 rows do."""
    for group in (lora(m, 4096, 4096, 256, dtype=dtype), bundle(m, 4096, (4096, 16), (4096, 256), dtype=dtype)):
        for kind in ("split", "streams"):
            found = best(group, H200, kind)
            assert found is not None
            check(group, found[0], "fp32")


@pytest.mark.parametrize("m", [1024, 2048, 8192])
@pytest.mark.parametrize("n", [4096, 14336])
def test_the_down_pass_of_many_rows_is_one_that_hides(m: int, n: int) -> None:
    group = lora(m, 4096, n, 16)
    found = best(group, H200, "split")
    assert found is not None
    down, main = launches(group, found[0])
    assert hides(down, main, H200)


def test_what_spills_steps_down_to_pools_that_hold_less_together() -> None:
    """Any pool may be the one that spills: down tiles of 128 low-rank columns hold the most in every choice."""
    value = codegen_group(1000, 4096, Main(1024, (Lora(128),), dtype="fp32"), dtype="fp32", precision="tf32")
    found = best(value, H200, "two_pool")
    assert found is not None
    after = next_best(value, H200, found[0], 0, smaller=True)
    assert after is not None
    held = [[pool.tile.elements_a_thread for pool in schedule.pools] for schedule in (found[0], after)]
    assert max(held[1]) == max(held[0]) and sum(held[1]) < sum(held[0])


def test_ways_to_divide_the_mains() -> None:
    assert bundles(bundle(64, 4096, (4096, 16))) == (((0,),),)
    assert bundles(bundle(64, 4096, (4096, 16), (1024, 16))) == (((0, 3),), ((0,), (3,)))
    assert bundles(bundle(64, 4096, (4096, 16), (1024, 0))) == (((0, 3),), ((0,),))


def test_split_shares_one_pass_over_x_and_fills_the_card() -> None:
    found = best(bundle(64, 4096, (4096, 16), (1024, 16), (1024, 16)), H200, "split")
    assert found is not None
    down, main = found[0].pools
    assert down.members == (1, 4, 7) and down.k_split > 1 and main.members == (0, 3, 6) and found[1].launches == 2


def test_a_saved_down_product_is_not_split_along_k() -> None:
    found = best(bundle(64, 4096, (4096, 16), saved=True), H200, "split")
    assert found is not None and found[0].pools[0].k_split == 1


def test_illegal_kinds_come_last_with_their_reason() -> None:
    bare = rank(bundle(64, 4096, (4096, 0), (1024, 0)), H200)
    assert [(each.kind, each.reason) for each in bare if not each.legal] == [
        (kind, NO_BRANCH) for kind in ("split", "inline", "two_pool", "k_concat", "merged")
    ]
    assert [each.legal for each in bare] == [True] * 5 + [False] * 5
    group = bundle(64, 4096, (4096, 0), (1024, 0))
    batched = replace(group, members=tuple(replace(member, batch=2) for member in group.members))
    assert {each.kind for each in rank(batched, H200) if each.legal} == {"library"}
    assert {each.reason for each in rank(batched, H200, ("concat", "split", "inline")) if not each.legal} == {BATCHED}


def test_nothing_fits_says_what_limits() -> None:
    tiny = replace(H200, shared_bytes=1024)
    refused = {each.kind: each for each in rank(lora(64, 4096, 4096, 16), tiny)}
    assert not refused["inline"].legal and "bytes of shared memory" in refused["inline"].reason
    assert refused["library"].legal


def test_a_dtype_without_a_rate_falls_back_to_library() -> None:
    group = lora(64, 4096, 4096, 16, dtype="fp64")
    candidates = rank(group, H200)
    assert pick(candidates, group).kind == "library" and pick(candidates, group).predicted_us is None
    assert all("cannot be estimated" in each.reason for each in candidates if each.kind not in PACKED)


def test_streams_leave_their_mains_to_the_vendor() -> None:
    found = best(bundle(64, 4096, (4096, 16), (1024, 16), (1024, 0)), H200, "streams")
    assert found is not None
    assert [(pool.role, pool.members) for pool in found[0].pools] == [("down", (1, 4)), ("up", (0, 3))]
    bare = best(bundle(64, 4096, (4096, 0), (1024, 0)), H200, "streams")
    assert bare is not None and bare[0] == Schedule("streams") and bare[1].launches == 2


def test_streams_need_a_vendor_gemm_for_every_main() -> None:
    group = lora(64, 4096, 4096, 16)
    main = replace(group.members[0], weight=replace(group.members[0].weight, dtype="fp32"))
    (refused,) = rank(replace(group, members=(main, *group.members[1:])), H200, ("streams",))
    assert not refused.legal and "X is bf16, a weight [4096, 4096] is fp32" in refused.reason


def test_names_do_not_change_the_plan() -> None:
    group = lora(64, 4096, 4096, 16)
    misses = choose._rank.cache_info().misses
    rank(group, H200)
    rank(replace(group, name="other"), H200)
    assert choose._rank.cache_info().misses <= misses + 1


def turned(group: Group) -> Group:
    """The group with its main weights contiguous along N."""
    members = [
        replace(each, weight=replace(each.weight, strides=(each.n, 1))) if each.role == "main" else each
        for each in group.members
    ]
    return replace(group, members=tuple(members))


@pytest.mark.parametrize("kind", ["split", "concat"])
def test_one_row_streams_weights_that_are_contiguous_along_k(kind: str) -> None:
    rank_of = 16 if kind == "split" else 0
    for group, expected in (
        (bundle(1, 4096, (4096, rank_of), (1024, rank_of)), True),
        (turned(bundle(1, 4096, (4096, rank_of), (1024, rank_of))), False),
        (bundle(2, 4096, (4096, rank_of), (1024, rank_of)), False),
    ):
        found = best(group, H200, kind)
        assert found is not None
        tiles = {pool.tile.one_row for pool in found[0].pools if pool.role == "main"}
        assert tiles == {expected}
        check(group, found[0], "fp32")


def test_a_symbolic_row_may_become_several() -> None:
    found = best(replace(lora(1, 4096, 4096, 16), m_symbol="s0"), H200, "split")
    assert found is not None
    assert not any(pool.tile.one_row for pool in found[0].pools)


@pytest.mark.parametrize(("device", "early"), [("a100-80", False), ("rtx4090", False), ("h200", True), ("b200", True)])
@pytest.mark.parametrize("kind", ["split"])
def test_later_launches_start_early_from_hopper_on(kind: str, device: str, early: bool) -> None:
    found = best(lora(64, 4096, 4096, 16), get_device(device), kind)
    assert found is not None
    assert {pool.dependent for pool in found[0].pools} == ({False, True} if early else {False})
    assert not any(pool.dependent for pool in found[0].pools if pool.launch == 0)


def test_starting_early_hides_the_down_pass() -> None:
    group = lora(64, 4096, 28672, 8)
    found = best(group, H200, "split")
    assert found is not None
    waiting = replace(found[0], pools=tuple(replace(pool, dependent=False) for pool in found[0].pools))
    later = estimate(group, waiting, H200)
    assert later is not None
    assert later.us > found[1].us + 1.0


def test_of_hidden_down_passes_that_with_the_fewest_steps_comes_first() -> None:
    """64 rows: whatever the tile, the pass hides behind main tiles of 60 us on multiprocessors of its own."""
    found = best(lora(64, 4096, 28672, 8), H200, "split")
    assert found is not None
    down = found[0].pools[0]
    assert (down.tile.block_m, down.tile.block_k, down.k_split) == (64, 128, 2)


@pytest.mark.parametrize(("m", "swapped"), [(16, True), (512, False)])
def test_a_pass_that_copies_x_has_swapped_tiles_for_few_rows_only(m: int, swapped: bool) -> None:
    group = lora(m, 4096, 4096, 16)
    ((first, _),) = KINDS["k_concat"].ways(group, H200)
    assert any(pool.tile.swap_operands for (pool,) in first.pools()) == swapped
