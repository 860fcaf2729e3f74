"""Tile counts of the design's LoRA example, and what must hold for any tile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncc.cost_models import constants as c
from fusioncc.cost_models import estimate
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.resources import occupancy, shared_bytes
from fusioncc.cost_models.tiles import cut_us, join_us, shares, slice_us, tile_count
from fusioncc.device import get_device
from fusioncc.schedule import Estimate, Pool, Schedule, TileConfig, padded_rank
from tests.cost_models.groups import lora

H200 = get_device("h200")
SIZES = st.integers(1, 3000)


def scheduled(kind: str, tile: TileConfig, k_split: int = 1) -> Schedule:
    down = (Pool("down", (1,), TileConfig(16, 16, 64), 0, k_split=k_split),) if kind == "split" else ()
    return Schedule(kind, (*down, Pool("main", (0,), tile, len(down))))


def priced(kind: str, m: int, k: int, n: int, tile: TileConfig, r: int = 8) -> Estimate:
    found = estimate(lora(m, k, n, r), scheduled(kind, tile), H200)
    assert found is not None
    return found


def test_the_design_example_has_4_and_896_tiles() -> None:
    assert tile_count(64, 8, 16, 16) == 4
    assert tile_count(64, 28672, 16, 128) == 896
    assert priced("split", 64, 4096, 28672, TileConfig(16, 128, 64)).tiles == 900


def test_896_tiles_over_108_workers() -> None:
    assert shares(896, 108) == {9: 32, 8: 76}
    assert shares(4, 108) == {1: 4, 0: 104}


def test_padded_rank() -> None:
    assert [padded_rank(r) for r in (1, 8, 16, 17, 64, 100)] == [16, 16, 16, 32, 64, 128]


@given(m=SIZES, n=SIZES, block=st.sampled_from((16, 32, 64, 128)))
def test_tiles_cover_the_product(m: int, n: int, block: int) -> None:
    assert tile_count(m, n, block, block) * block * block >= m * n
    assert tile_count(m, n, block, block) * block * block < (m + block) * (n + block)


@given(tiles=st.integers(0, 5000), workers=st.integers(1, 300))
def test_shares_hand_out_every_tile(tiles: int, workers: int) -> None:
    found = shares(tiles, workers)
    assert sum(found.values()) == workers
    assert sum(count * who for count, who in found.items()) == tiles
    assert max(found) - min(found) <= 1


@given(m=st.integers(1, 4000), more=st.integers(0, 4000), kind=st.sampled_from(("inline", "split")))
def test_more_rows_are_never_cheaper(m: int, more: int, kind: str) -> None:
    """At a fixed config. What the L2 keeps between two launches changes with M in steps, but only ever towards more
    traffic."""
    tile = TileConfig(64, 128, 64)
    assert priced(kind, m + more, 1024, 2048, tile).us >= priced(kind, m, 1024, 2048, tile).us - 1e-9


@given(n=st.integers(64, 4000), more=st.integers(0, 4000), kind=st.sampled_from(("inline", "split")))
def test_a_wider_product_never_moves_fewer_bytes(n: int, more: int, kind: str) -> None:
    tile = TileConfig(64, 64, 64)
    assert priced(kind, 96, 1024, n + more, tile).bytes >= priced(kind, 96, 1024, n, tile).bytes


@given(factor=st.floats(1.0, 8.0), figure=st.sampled_from(("dram_gbps", "l2_gbps", "bf16_tflops")), m=SIZES)
def test_a_faster_device_is_never_slower(factor: float, figure: str, m: int) -> None:
    group = lora(m, 1024, 2048, 8)
    faster = replace(H200, **{figure: getattr(H200, figure) * factor})
    for schedule in (Schedule("library"), scheduled("inline", TileConfig(64, 128, 64))):
        slow, fast = estimate(group, schedule, H200), estimate(group, schedule, faster)
        assert slow is not None and fast is not None
        assert fast.us <= slow.us + 1e-9


def test_shared_memory_counts_every_stage_of_every_operand() -> None:
    schedule = scheduled("inline", TileConfig(64, 128, 64, num_stages=3))
    (launch,) = launches(lora(64, 4096, 4096, 8), schedule)
    assert shared_bytes(launch, H200) == 3 * 64 * 2 * (64 + 128 + 16)
    (mixed,) = launches(lora(64, 4096, 4096, 8, adapter="fp32"), schedule)
    assert shared_bytes(mixed, H200) == 3 * 64 * (2 * (64 + 128) + 4 * 16) + 4 * 2 * 16 * 64


def test_a_join_holds_b_beside_the_loop_and_ampere_one_stage_less() -> None:
    """Bytes that Triton 3.7 allocated for such kernels, compiled for capability 90 and 80."""
    tile = TileConfig(128, 256, 64, 8, 4)
    group = lora(256, 4096, 4096, 8)
    join, inline = launches(group, scheduled("split", tile))[1], launches(group, scheduled("inline", tile))[0]
    assert (shared_bytes(join, H200), shared_bytes(inline, H200)) == (204800, 204800)
    assert shared_bytes(inline, get_device("a100-80")) == 153600


def test_a_tile_that_does_not_fit_cannot_be_estimated() -> None:
    schedule = scheduled("inline", TileConfig(256, 256, 128, num_stages=5))
    (launch,) = launches(lora(512, 4096, 4096, 8), schedule)
    assert occupancy(launch, H200) == 0
    assert estimate(lora(512, 4096, 4096, 8), schedule, H200) is None


def test_terms_add_up_and_name_what_binds() -> None:
    found = priced("inline", 64, 4096, 28672, TileConfig(64, 128, 64, num_stages=4))
    terms = dict(found.terms)
    assert tuple(terms) == ("dram", "l2", "mma", "latency", "launch", "tail")
    overlapping = max(terms["dram"], terms["l2"], terms["mma"])
    assert abs(found.us - (overlapping + terms["latency"] + terms["launch"] + terms["tail"])) < 1e-9
    assert found.binds == "dram" and found.launches == 1


def test_pieces_of_an_fp32_adapter_cost_mma_work_except_when_relaxed() -> None:
    group, schedule = lora(2048, 4096, 4096, 16, adapter="fp32"), scheduled("inline", TileConfig(128, 128, 64, 8))
    exact, relaxed = estimate(group, schedule, H200), estimate(group, schedule, H200, tier="relaxed")
    assert exact is not None and relaxed is not None
    assert dict(exact.terms)["mma"] > dict(relaxed.terms)["mma"]


def test_an_fp32_adapter_costs_a_wait_each_step_and_more_where_it_joins() -> None:
    tile = TileConfig(64, 128, 64, num_stages=3)
    for adapter, tier, cut in (("fp32", "fp32", True), ("fp32", "relaxed", False), ("bf16", "fp32", False)):
        group = lora(64, 4096, 4096, 16, adapter=adapter)
        (inline,) = launches(group, scheduled("inline", tile), tier)
        down, join = launches(group, scheduled("split", tile), tier)
        assert [cut_us(each) for each in (inline, down, join)] == [c.CUT_US * cut, c.CUT_US * cut, 0.0]
        plain = c.LAST_JOIN_US + slice_us(join)
        assert join_us(join) == pytest.approx(plain + cut * c.CUT_JOIN_US * (64 * 128) / (128 * 256))


def test_ieee_does_not_use_tensor_cores() -> None:
    group = lora(2048, 4096, 4096, 16, dtype="fp32")
    ieee = estimate(group, Schedule("library"), H200)
    tf32 = estimate(replace(group, fp32_precision="tf32"), Schedule("library"), H200)
    assert ieee is not None and tf32 is not None
    assert ieee.us > 3 * tf32.us
    assert estimate(lora(64, 4096, 4096, 16, dtype="fp64"), Schedule("library"), H200) is None


def test_two_workers_a_multiprocessor_hide_each_other() -> None:
    """Up to as many as fit: then more of them change nothing."""
    tile = TileConfig(16, 64, 128, 4, 3, swap_operands=True)
    group = lora(16, 4096, 28672, 8)

    def latency(workers: int) -> float:
        down = Pool("down", (1,), replace(tile, block_n=16), 0, workers=8, k_split=8)
        schedule = Schedule("two_pool", (down, Pool("main", (0,), tile, 0, workers=workers)))
        found = estimate(group, schedule, H200)
        assert found is not None
        return dict(found.terms)["latency"]

    one, two, three, many, more = (latency(132 * count) for count in (1, 2, 3, 20, 40))
    assert one > two >= three and many == more
