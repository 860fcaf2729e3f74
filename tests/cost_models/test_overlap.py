"""Launches at the same time. On streams of their own the longest counts, what they share adds up, events come on top.
A launch that starts early hides the one before where there is room."""

from dataclasses import replace

import pytest

from fusioncc.cost_models import estimate
from fusioncc.cost_models.cost import Cost
from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.overlap import all_steps, beside_us, exposed_us, hides, overlapped
from fusioncc.cost_models.resources import carved_out, expected_bytes
from fusioncc.cost_models.tiles import k_steps
from fusioncc.device import get_device
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.cost_models.groups import bundle, lora

H200 = get_device("h200")
LATE = Cost(dram=1.0, l2=0.5, mma=0.5, latency=9.0, launch=1.0, tail=0.0, dram_bytes=10, tiles=4, waves=0.1)
BUSY = Cost(dram=20.0, l2=6.0, mma=2.0, latency=1.0, launch=1.0, tail=2.0, dram_bytes=200, tiles=8, waves=0.2)
DOWN, UP = TileConfig(64, 16, 128, 4, 4), TileConfig(64, 64, 16, 4, 2)
POOLS = (Pool("down", (1,), DOWN, 0, k_split=8), Pool("up", (0,), UP, 1))


def test_a_short_launch_hides_behind_a_long_one() -> None:
    both = overlapped([LATE, BUSY], H200)
    assert both.us == pytest.approx(BUSY.us + LATE.dram + H200.events_us)
    assert (both.dram_bytes, both.tiles) == (210, 12)
    assert BUSY.us < both.us < BUSY.us + LATE.us


def test_two_launches_that_want_the_same_memory_gain_their_latency_only() -> None:
    both = overlapped([BUSY, BUSY], H200)
    assert both.us == pytest.approx(2 * BUSY.us - BUSY.latency - BUSY.launch - BUSY.tail + H200.events_us)


def test_what_runs_beside_what() -> None:
    group = lora(64, 4096, 28672, 8)
    found = launches(group, Schedule("streams", POOLS))
    assert [(launch.body, launch.beside) for launch in found] == [("down", True), ("vendor", True), ("join", False)]
    product, joined = found[1].writes[0], found[2].reads[0]
    assert product == joined and product.bytes == 64 * 28672 * 4


def test_the_down_products_of_a_lora_layer_cost_next_to_nothing() -> None:
    """Beside the vendor GEMM of 56 us, the down kernel adds the events and its own bytes."""
    group = lora(64, 4096, 28672, 8)
    whole = estimate(group, Schedule("streams", POOLS), H200)
    library = estimate(bundle(64, 4096, (28672, 0)), Schedule("library"), H200)
    assert whole is not None and library is not None and whole.launches == 3
    assert library.us < whole.us < library.us + H200.events_us + 16.0


NARROW = TileConfig(16, 16, 128, 4, 3, swap_operands=True)
WHOLE = TileConfig(128, 256, 64, 8, 3, tma=True)


def down_and_main(n: int, main: TileConfig, down: TileConfig, k_split: int = 2) -> tuple[Launch, Launch]:
    """Of 512 rows and K = 4096."""
    workers = H200.multiprocessors if main.tma else None
    pools = (
        Pool("down", (1,), down, 0, k_split=k_split),
        Pool("main", (0,), main, 1, workers=workers, dependent=True, joins_last=True),
    )
    first, second = launches(lora(512, 4096, n, 16), Schedule("split", pools))
    return first, second


def test_a_down_pass_is_hidden_where_a_multiprocessor_holds_a_program_of_each() -> None:
    """128 main tiles leave four multiprocessors; a whole tile takes 208 KiB of 228, in halves 176, the down tile 16 or
    24 with one stage more."""
    deep = replace(NARROW, num_stages=4)
    assert hides(*down_and_main(8192, replace(WHOLE, epilogue_subtiles=2), deep), H200)
    assert hides(*down_and_main(8192, WHOLE, NARROW), H200)
    assert not hides(*down_and_main(8192, WHOLE, deep), H200)


@pytest.mark.parametrize(
    ("dtype", "rows", "stages", "kib", "carved", "hidden"),
    [
        ("bf16", 16, 5, 32, 228, True),
        ("bf16", 16, 6, 40, 228, True),
        ("bf16", 16, 7, 48, 196, False),
        ("fp32", 16, 3, 40, 228, True),
        ("fp32", 16, 5, 64, 228, False),
        ("bf16", 64, 3, 60, 228, False),
    ],
)
def test_a_down_pass_leaves_as_much_shared_memory_as_the_driver_sets_for_it(
    dtype: str, rows: int, stages: int, kib: int, carved: int, hidden: bool
) -> None:
    """As timed on an H200 at 64 rows, K = N = 4096: main tiles of 168 KiB, more than multiprocessors can hold apart."""
    down = Pool("down", (1,), TileConfig(rows, 16, 128, 4, stages), 0, k_split=8)
    main = Pool("main", (0,), TileConfig(64, 32, 128, 4, 7), 1, dependent=True, joins_last=True)
    first, second = launches(lora(64, 4096, 4096, 16, adapter=dtype), Schedule("split", (down, main)))
    assert expected_bytes(first, H200) == 1024 * kib
    assert carved_out(first, H200) == 1024 * carved
    assert hides(first, second, H200) == hidden


def test_cutting_fp32_adapters_takes_from_the_main_tiles_that_no_other_can_help() -> None:
    """Of one wave, and of persistent programs whose tiles are dealt out, the slowest counts; of several waves the
    mean."""
    pools = (
        Pool("down", (1,), TileConfig(32, 16, 128, 4, 4), 0, k_split=4),
        Pool("main", (0,), TileConfig(128, 128, 64, 8, 4, tma=True), 1, workers=132, dependent=True, joins_last=True),
    )
    cost = replace(BUSY, mma=100.0)

    def exposed(dtype: str, waves: float, pools: tuple[Pool, ...] = pools) -> float:
        first, second = launches(lora(512, 4096, 4096, 16, adapter=dtype), Schedule("split", pools))
        assert all_steps(first) == 64 * 8 and hides(first, second, H200)
        return exposed_us(first, replace(LATE, dram=0.0, latency=90.0), second, replace(cost, waves=waves), H200)

    dealt = exposed("fp32", 4.0) - exposed("bf16", 4.0)
    assert dealt == exposed("fp32", 1.0) - exposed("bf16", 1.0) == pytest.approx(0.73 * 8)
    free = (pools[0], replace(pools[1], tile=TileConfig(128, 128, 64, 8, 3), workers=None))
    assert exposed("fp32", 4.0, free) - exposed("bf16", 4.0, free) == pytest.approx(0.73 * 64 * 8 / 132)


def test_a_down_pass_is_hidden_on_multiprocessors_of_its_own() -> None:
    """64 main tiles leave 68: room for 8 row blocks in 2 slices, not in 16."""
    assert hides(*down_and_main(4096, WHOLE, TileConfig(64, 16, 128, 4, 5)), H200)
    assert not hides(*down_and_main(4096, WHOLE, TileConfig(64, 16, 128, 4, 5), k_split=16), H200)


def test_tiles_of_several_waves_find_room_in_time() -> None:
    assert hides(*down_and_main(8192, TileConfig(64, 32, 128, 4, 7), TileConfig(64, 16, 128, 4, 5), k_split=32), H200)


def test_a_launch_that_does_not_join_last_hides_nothing() -> None:
    down, main = down_and_main(4096, TileConfig(64, 64, 128, 4, 3), NARROW)
    assert main.pool is not None
    assert hides(down, main, H200)
    assert not hides(down, replace(main, pool=replace(main.pool, joins_last=False)), H200)
    assert not hides(down, replace(main, pool=replace(main.pool, dependent=False)), H200)


def test_a_hidden_pass_takes_from_the_main_tiles_beside_it_for_each_of_its_steps() -> None:
    """16 steps in 64 programs and in 256, both over long before the main tiles join."""
    tile, cost = replace(WHOLE, epilogue_subtiles=2), replace(BUSY, mma=100.0)
    few, main = down_and_main(8192, tile, TileConfig(64, 16, 64, 4, 3), k_split=4)
    many, _ = down_and_main(8192, tile, replace(NARROW, block_k=64, num_stages=2), k_split=4)
    assert (all_steps(few), all_steps(many)) == (32 * 16, 128 * 16)
    more = exposed_us(many, LATE, main, cost, H200) - exposed_us(few, LATE, main, cost, H200)
    assert more == pytest.approx(0.2 * 96 * 16 / 132)
    few, main = down_and_main(4096, tile, TileConfig(64, 16, 64, 4, 3), k_split=4)
    free = replace(LATE, dram=0.0)
    assert exposed_us(few, free, main, cost, H200) == 0.0, "64 main tiles leave 68 multiprocessors"


def test_what_a_hidden_pass_reads_adds_to_the_memory_of_the_main_tiles() -> None:
    """All of it where nothing else binds, little where the MMA does, and never more than the pass alone."""
    tile = replace(WHOLE, epilogue_subtiles=2)
    few, main = down_and_main(4096, tile, TileConfig(64, 16, 64, 4, 3), k_split=4)
    idle = replace(BUSY, l2=0.0, mma=0.0, latency=0.0, tail=0.0)
    assert exposed_us(few, LATE, main, idle, H200) == pytest.approx(LATE.dram)
    bound = exposed_us(few, LATE, main, replace(BUSY, mma=100.0), H200)
    assert 0.0 < bound < 0.3 * LATE.dram
    short = replace(LATE, dram=0.1, l2=0.0, mma=0.0, latency=0.0, launch=0.0)
    slow, beside = down_and_main(8192, tile, replace(NARROW, block_k=32, num_stages=2), k_split=1)
    assert exposed_us(slow, short, beside, idle, H200) == short.us


def test_a_step_of_many_bytes_takes_the_time_of_more_tiles() -> None:
    """X [64, 128] and A [128, 16] in bf16 are 20 KiB, X [128, 128] and A [128, 128] are 64."""
    narrow, main = down_and_main(4096, TileConfig(64, 64, 128, 4, 3), NARROW)
    group = lora(64, 4096, 4096, 128)
    wide = Pool("down", (1,), TileConfig(128, 128, 128, 4, 3), 0, k_split=8)
    mains = Pool("main", (0,), TileConfig(64, 64, 128, 4, 3), 1, dependent=True, joins_last=True)
    first, second = launches(group, Schedule("split", (wide, mains)))
    assert beside_us(first, second) / k_steps(first) == pytest.approx(2 * beside_us(narrow, main) / k_steps(narrow))
