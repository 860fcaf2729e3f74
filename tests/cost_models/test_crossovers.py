"""Crossovers solved from closed forms, checked against the numeric model on both sides."""

from dataclasses import replace

import pytest

from fusioncc.autotune.choose import best
from fusioncc.cost_models import estimate
from fusioncc.cost_models.crossovers import MOST_ROWS, Planner, free_rank, merged_pays, second_user, with_rows
from fusioncc.cost_models.launches import launches, merging
from fusioncc.cost_models.letters import K, M, letter
from fusioncc.cost_models.memory import moved_bytes
from fusioncc.cost_models.tiles import grid_cost
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.cost_models.groups import bundle, lora

H200 = get_device("h200")
LIBRARY, MERGED = Schedule("library"), Schedule("merged")
N, R, BF16, FP32 = letter("N"), letter("r"), letter("bf16"), letter("fp32")


def schedule_of(group: Group, kind: str) -> Schedule:
    found = best(group, H200, kind)
    assert found is not None
    return found[0]


def always(schedule: Schedule) -> Planner:
    return lambda group: schedule


def moved(group: Group, schedule: Schedule) -> int:
    predicted = estimate(group, schedule, H200)
    assert predicted is not None
    return predicted.bytes


def net(group: Group, kind: str, calls: int = 1) -> int:
    """Bytes that merging has saved after so many calls."""
    return calls * (moved(group, schedule_of(group, kind)) - moved(group, MERGED)) - moved_bytes(merging(group))


def test_what_merging_costs_and_saves_by_hand() -> None:
    group = lora(64, 1024, 1024, 8)
    pays = merged_pays(group, always(LIBRARY), H200)
    assert pays is not None
    assert (pays.once - BF16 * (2 * K * N + K * R + N * R)).expand() == 0
    assert (pays.saved - BF16 * (K * R + N * R + M * R + 2 * M * N)).expand() == 0
    # calls * (2 M N + (K + N + M) r) >= 2 K N + (K + N) r, and the same with one call solved for M
    assert pays.call == -(-(2 * 1024 * 1024 + 2048 * 8) // (2 * 64 * 1024 + 2112 * 8))
    assert pays.rows == -(-2 * 1024 * 1024 // (2 * 1024 + 8))


@pytest.mark.parametrize("kind", ["library", "split", "inline"])
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(lora(64, 4096, 28672, 8), id="64"),
        pytest.param(lora(8192, 4096, 14336, 16), id="8192"),
        pytest.param(
            bundle(300, 4096, (4096, 16), (1024, 16), adapter="fp32"), id="fp32 adapters", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_merged_pays_from_that_call_and_that_m_on(group: Group, kind: str) -> None:
    pays = merged_pays(group, lambda sized: schedule_of(sized, kind), H200)
    assert pays is not None and pays.call is not None
    assert net(group, kind, pays.call - 1) < 0 <= net(group, kind, pays.call)
    if pays.rows is None:
        assert net(with_rows(group, MOST_ROWS), kind) < 0
    else:
        assert net(with_rows(group, pays.rows - 1), kind) < 0 <= net(with_rows(group, pays.rows), kind)


def test_against_inline_one_call_never_pays_while_weights_fit() -> None:
    """Both read X once; what inline reads more, A and B, is less than merging reads and writes."""
    group = lora(64, 1024, 1024, 8)
    pays = merged_pays(group, always(schedule_of(group, "inline")), H200)
    assert pays is not None
    assert pays.rows is None
    assert pays.call == -(-(2 * 1024 * 1024 + 2048 * 8) // (2048 * 8))


INLINE = Schedule("inline", (Pool("main", (0,), TileConfig(64, 64, 64, num_stages=2), 0),))


@pytest.mark.parametrize("rows", [16, 48, 64])
def test_inline_is_free_up_to_a_rank(rows: int) -> None:
    def binds(rank: int) -> bool:
        """Whether the memory takes longer than MMA and L2 of the main tiles."""
        group = lora(rows, 4096, 28672, rank)
        (launch,) = launches(group, INLINE)
        cost = grid_cost(launch, frozenset(), H200)
        assert cost is not None
        return max(cost.l2, cost.mma) <= cost.dram

    free = free_rank(lora(rows, 4096, 28672, 8), INLINE, H200)
    assert free is not None and 16 <= free <= 256
    assert binds(free) and not binds(2 * free)


def test_inline_is_free_at_no_rank_where_the_mma_binds() -> None:
    group = lora(8192, 4096, 14336, 16)
    assert free_rank(group, schedule_of(group, "inline"), H200) == 0


def test_inline_is_free_at_every_rank_where_the_memory_is_slow_enough() -> None:
    slow = replace(H200, dram_gbps=1.0)
    assert free_rank(lora(64, 64, 64, 8), INLINE, slow) is None


def test_a_second_reader_takes_the_down_product() -> None:
    group = lora(64, 1024, 1024, 8)
    for kind in ("split", "inline"):
        second = second_user(group, schedule_of(group, kind), H200)
        assert second is not None
        assert second.taken == BF16 * M * R


def test_rank_at_which_nothing_is_left_of_what_split_saves() -> None:
    """Library writes the product, the part and the down product, all of which stay in the L2; split partial sums."""
    group = lora(64, 1024, 1024, 8)
    split = Schedule(
        "split",
        (
            Pool("down", (1,), TileConfig(16, 16, 64), 0, k_split=4),
            Pool("main", (0,), TileConfig(64, 64, 64), 1),
        ),
    )
    second = second_user(group, split, H200)
    assert second is not None
    assert second.turns == 2 * 2 * 1024 // (4 * 4)  # 2 bytes * 2 M N = 4 slices * 4 bytes * M r
    saved = lambda rank: bundle(64, 1024, (1024, rank), saved=True)
    assert moved(saved(128), LIBRARY) > moved(saved(128), split)
    assert moved(saved(256), LIBRARY) <= moved(saved(256), split)


def test_without_branches_there_is_no_second_reader() -> None:
    group = bundle(64, 1024, (1024, 0), (512, 0))
    assert second_user(group, schedule_of(group, "concat"), H200) is None


def test_what_cannot_be_counted() -> None:
    group = bundle(64, 1024, (1024, 8), dtype="fp64")
    assert merged_pays(group, always(LIBRARY), H200) is None
    assert merged_pays(lora(64, 1024, 1024, 8), lambda sized: None, H200) is None
    assert second_user(group, MERGED, H200) is None
