"""The simulated launch of ``two_pool``: the design's figures, a table made by hand, what must hold for any launch, and
the tiles that the emitted kernel gives to each worker."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncc.autotune import best
from fusioncc.autotune.two_pool import divided, divisions, with_workers
from fusioncc.cost_models import estimate
from fusioncc.cost_models.pools import MainTiles, PoolLaunch, Timeline, makespan_and_tail, simulate, stripe
from fusioncc.device import get_device
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.cost_models.groups import bundle, lora

H200, A100 = get_device("h200"), get_device("a100-80")
DESIGN = PoolLaunch(108, 4, (MainTiles(4, 224),), down_tiles=4, down_us=4.0, main_us=10.0)
"""The design's LoRA layer: 896 main tiles of 16x128 and 4 down tiles, on 108 workers; hand-made times."""


def all_tiles(found: Timeline, kind: str) -> list[int]:
    return sorted(span.tile for lane in found.lanes for span in lane if span.kind == kind)


def test_the_design_example_with_stripes() -> None:
    """8.3 tiles a worker: without ``late`` the four that come late have nine as well; with it they have eight."""
    assert DESIGN.tiles == 896 and DESIGN.tiles / DESIGN.programs == pytest.approx(8.3, abs=0.01)
    shares = [len(stripe(DESIGN, 896, worker)) for worker in range(108)]
    assert Counter(shares) == {9: 32, 8: 76} and shares[:4] == [9, 9, 9, 9]
    late = [len(stripe(replace(DESIGN, late=1), 896, worker)) for worker in range(108)]
    assert max(late[:4]) == 8 and max(late[4:]) == 9 and sum(late) == 896


@pytest.mark.parametrize(
    ("down_us", "late", "makespan"),
    [
        # A down worker: its down tile, then its nine or, a turn late, eight tiles of 10 us. A main worker: its nine
        # tiles, and of the first the wait for the flag, which comes after down_us.
        (4.0, 0, 4.0 + 90.0),
        (4.0, 1, 90.0),
        (10.0, 0, 10.0 + 90.0),
        (10.0, 1, 90.0),
        (25.0, 0, 25.0 + 90.0),
        (25.0, 1, 25.0 + 80.0),  # of both: 15 + 90 as well
    ],
)
def test_a_table_made_by_hand(down_us: float, late: int, makespan: float) -> None:
    launch = replace(DESIGN, down_us=down_us, late=late)
    found = simulate(launch)
    assert found.makespan == pytest.approx(makespan)
    assert makespan_and_tail(launch) == pytest.approx((found.makespan, found.tail))
    down_lane, main_lane = found.lanes[0], found.lanes[4]
    assert [span.kind for span in down_lane] == ["down", *["main"] * (8 if late else 9)]
    assert down_lane[1].start == down_us
    assert main_lane[0].waited == max(down_us - 10.0, 0.0)


def test_every_atomic_is_counted() -> None:
    """One down worker, two main tiles of other workers: taken, made, published; K loop, flag read, join."""
    launch = PoolLaunch(3, 1, (MainTiles(1, 3),), 2, down_us=5.0, main_us=8.0, join_us=2.0, atomic_us=1.0, k_split=2)
    found = simulate(launch)
    assert [(span.start, span.end) for span in found.lanes[0]] == [(0.0, 7.0), (7.0, 14.0), (15.0, 26.0)]
    assert [(span.start, span.end, span.waited) for span in found.lanes[1]] == [(0.0, 16.0, 5.0)]
    assert found.ends == (26.0, 16.0, 16.0) and found.tail == pytest.approx(20 / 3)
    queue = simulate(replace(launch, chunk=2))
    assert [(span.tile, span.start, span.end) for span in queue.lanes[1]] == [(0, 1.0, 16.0), (1, 16.0, 27.0)]
    assert [(span.kind, span.tile) for span in queue.lanes[2]] == [("main", 2)]


def test_grouped_ordering() -> None:
    tiles = MainTiles(row_blocks=5, col_blocks=3, group_m=2)
    assert [tiles.row_block(tile) for tile in range(15)] == [0, 1] * 3 + [2, 3] * 3 + [4] * 3


@st.composite
def pool_launches(draw: st.DrawFn) -> PoolLaunch:
    rows, k_split = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    members = st.builds(MainTiles, st.just(rows), st.integers(1, 12), st.integers(1, 4), st.booleans())
    workers = draw(st.integers(1, 20))
    us = st.floats(0.5, 30.0)
    chunk = draw(st.sampled_from((None, 1, 2, 5)))
    return PoolLaunch(
        workers,
        draw(st.integers(1, workers)),
        tuple(draw(st.lists(members, min_size=1, max_size=3))),
        rows * k_split,
        draw(us),
        draw(us),
        draw(st.floats(0.0, 5.0)),
        draw(st.floats(0.0, 2.0)),
        k_split,
        late=draw(st.integers(0, 3)) if chunk is None else 0,
        chunk=chunk,
    )


@given(pool_launches())
def test_every_tile_runs_once_and_no_worker_runs_two_at_a_time(launch: PoolLaunch) -> None:
    found = simulate(launch)
    assert all_tiles(found, "main") == list(range(launch.tiles))
    assert all_tiles(found, "down") == list(range(launch.down_tiles))
    for worker, lane in enumerate(found.lanes):
        assert all(span.worker == worker for span in lane)
        assert all(before.end <= after.start for before, after in pairwise(lane))
        assert worker < launch.down_workers or all(span.kind == "main" for span in lane)


@given(pool_launches())
def test_no_join_before_its_flags(launch: PoolLaunch) -> None:
    spans = [span for lane in simulate(launch).lanes for span in lane]
    published = {span.tile: span.end for span in spans if span.kind == "down"}
    for span in spans:
        row = launch.waits_for(span.tile) if span.kind == "main" else None
        if row is not None:
            flags = [published[row * launch.k_split + at] for at in range(launch.k_split)]
            assert span.end - launch.join_us >= max(flags) - 1e-9
            assert span.end - span.start == pytest.approx(launch.tile_us + span.waited)


@given(pool_launches())
def test_the_makespan_is_at_least_an_even_share_and_the_longest_tile(launch: PoolLaunch) -> None:
    found = simulate(launch)
    assert found.makespan >= launch.work_us / launch.programs - 1e-6
    assert found.makespan >= max(span.end - span.start for lane in found.lanes for span in lane)
    assert 0 <= found.tail <= found.makespan
    assert launch.flags_us >= max(span.end for lane in found.lanes for span in lane if span.kind == "down") - 1e-6


@given(pool_launches(), st.integers(0, 400))
def test_whole_turns_that_are_left_out_change_nothing(launch: PoolLaunch, columns: int) -> None:
    first = launch.mains[0]
    long = replace(launch, mains=(replace(first, col_blocks=first.col_blocks + columns, joins=True),))
    found = simulate(long)
    assert makespan_and_tail(long) == pytest.approx((found.makespan, found.tail))


@given(pool_launches())
def test_more_workers_are_never_slower_by_more_than_a_tile_from_a_queue(launch: PoolLaunch) -> None:
    few = replace(launch, chunk=1, late=0)
    many = replace(few, workers=few.workers + 1)
    longest = max(span.end - span.start for lane in simulate(many).lanes for span in lane)
    assert simulate(many).makespan <= simulate(few).makespan + longest + few.atomic_us + 1e-6


def test_80_multiprocessors_are_split_4_to_76() -> None:
    card = replace(A100, name="design-80", multiprocessors=80)
    tile = TileConfig(16, 128, 64, 4, 3, swap_operands=True)
    pools = (Pool("down", (1,), replace(tile, block_n=16), 0), Pool("main", (0,), tile, 0))
    group = lora(64, 4096, 28672, 8)
    _, (down, main) = divided(group, with_workers(group, pools, card, 1), card)
    assert (main.workers, down.workers) == (80, 4)
    lanes = simulate(replace(DESIGN, workers=main.workers or 0, down_workers=down.workers or 0)).lanes
    assert Counter(lane[0].kind for lane in lanes) == {"down": 4, "main": 76}
    _, (_, both) = divided(group, with_workers(group, pools, card, 2), card)
    assert both.workers == 160


@pytest.mark.parametrize("m", [1, 64, 512, 2048])
def test_the_planner_takes_the_division_of_least_time(m: int) -> None:
    group = bundle(m, 4096, (4096, 16), (1024, 16), (1024, 0))
    found = best(group, H200, "two_pool")
    assert found is not None
    down, main = found[0].pools
    us, again = divided(group, found[0].pools, H200)
    assert again == found[0].pools, "the same division, asked again"
    naive = (replace(down, workers=1, late=0), replace(main, chunk=1))
    for other in (naive, (replace(down, late=0), replace(main, chunk=None))):
        slower = estimate(group, Schedule("two_pool", other), H200)
        assert slower is not None and slower.us >= found[1].us
    assert us <= found[1].us


def test_divisions_are_few_and_legal() -> None:
    for launch in (DESIGN, replace(DESIGN, workers=2), replace(DESIGN, down_tiles=300, down_us=60.0)):
        found = list(divisions(launch))
        assert 3 <= len(found) == len(set(found)) <= 10
        for each in found:
            assert 1 <= each.down_workers <= each.workers and not (each.late and each.chunk)
            assert each.chunk != 1


def test_the_estimate_has_the_tail_of_the_simulation() -> None:
    """One more turn for a few workers: the others wait for them."""

    def tail(columns: int) -> float:
        tile = TileConfig(128, 128, 64, 8, 4, tma=True)
        pools = (
            Pool("down", (1,), replace(tile, block_n=16, tma=False), 0, workers=8, k_split=8),
            Pool("main", (0,), tile, 0, workers=132),
        )
        found = estimate(lora(128, 4096, 128 * columns, 8), Schedule("two_pool", pools), H200)
        assert found is not None
        return dict(found.terms)["tail"]

    assert tail(5 * 132 + 8) > 3 * tail(6 * 132 - 8) > 0


def test_a_late_down_pass_costs_what_its_flags_cost() -> None:
    """A down pass in one slice over a deep K is published long after the first K loops are through."""
    group = lora(2048, 16384, 4096, 16)
    found = best(group, H200, "two_pool")
    assert found is not None
    down, main = found[0].pools
    whole = estimate(group, Schedule("two_pool", (replace(down, workers=1, k_split=1), main)), H200)
    assert down.k_split > 1 and whole is not None and whole.us > 2 * found[1].us


@given(
    factor=st.floats(1.0, 8.0),
    figure=st.sampled_from(("dram_gbps", "l2_gbps", "bf16_tflops")),
    m=st.integers(1, 3000),
    late=st.integers(0, 3),
)
def test_a_faster_device_is_never_slower_with_stripes(factor: float, figure: str, m: int, late: int) -> None:
    tile = TileConfig(64, 128, 64, 4, 4)
    down = Pool("down", (1,), replace(tile, block_n=16), 0, workers=16, k_split=2, late=late)
    schedule = Schedule("two_pool", (down, Pool("main", (0,), tile, 0, workers=132)))
    group, faster = lora(m, 1024, 2048, 8), replace(H200, **{figure: getattr(H200, figure) * factor})
    slow, fast = estimate(group, schedule, H200), estimate(group, schedule, faster)
    assert slow is not None and fast is not None
    assert fast.us <= slow.us + 1e-9
