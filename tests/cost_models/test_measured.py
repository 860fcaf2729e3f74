"""The model against times of vendor kernels on an H200 (us: GEMM alone, torch.compile), and the choices it makes."""

from dataclasses import replace

import pytest

from fusioncc.autotune import best, pick, rank
from fusioncc.device import get_device
from fusioncc.schedule import TileConfig, overwrites_x
from tests.cost_models.groups import bundle, lora
from tests.shown import shown

H200 = get_device("h200")
MEASURED = {
    (1, 4096, 28672, 8): (54.4, 66.8),
    (16, 4096, 28672, 8): (55.4, 68.6),
    (64, 4096, 28672, 8): (61.5, 77.3),
    (256, 4096, 28672, 8): (104, 127),
    (64, 4096, 4096, 16): (11.9, 23.1),
    (2048, 4096, 4096, 16): (101, 122),
    (8192, 4096, 14336, 16): (1416, 1673),
}


@pytest.mark.parametrize("shape", MEASURED)
def test_library_is_within_20_percent(shape: tuple[int, int, int, int]) -> None:
    m, k, n, _ = shape
    gemm = best(bundle(m, k, (n, 0)), H200, "library")
    compiled = best(lora(*shape), H200, "library")
    assert gemm is not None and compiled is not None
    assert gemm[1].us == pytest.approx(MEASURED[shape][0], rel=0.2)
    assert compiled[1].us == pytest.approx(MEASURED[shape][1], rel=0.2)


@pytest.mark.parametrize("shape", MEASURED)
def test_an_emitted_schedule_is_picked(shape: tuple[int, int, int, int]) -> None:
    assert pick(rank(lora(*shape), H200), lora(*shape)).kind in ("inline", "split", "two_pool")


def test_many_rows_go_through_descriptors() -> None:
    group = lora(2048, 4096, 4096, 16)
    schedule = pick(rank(group, H200), group).schedule
    assert schedule is not None
    assert [pool.tile.tma for pool in schedule.pools] == [False, True]
    assert schedule.pools[1].workers == H200.multiprocessors
    older = pick(rank(group, get_device("a100-80")), group).schedule
    assert older is not None and not any(pool.tile.tma for pool in older.pools)


@pytest.mark.parametrize("kind", ["inline", "split", "two_pool", "horizontal", "streams", "k_concat"])
@pytest.mark.parametrize("ranks", shown([(8, 64), (8, 8), (64, 64), (128, 128)], 2))
def test_no_loop_overwrites_x(kind: str, ranks: tuple[int, int]) -> None:
    padded = tuple(max(16, r) for r in ranks)
    for rows in (2, 16, 1000):
        found = best(bundle(rows, 4096, *((4096, r) for r in ranks)), H200, kind)
        assert found is not None
        for pool in found[0].pools:
            if pool.role == "down" or kind == "inline":
                assert not overwrites_x(pool.tile, padded, main=pool.role == "main", stored=kind == "k_concat")


def test_which_loops_overwrite_x() -> None:
    few = TileConfig(16, 32, 64, swap_operands=True)
    assert [overwrites_x(few, ranks) for ranks in ((16,), (64,), (16, 64), ())] == [False, False, True, False]
    assert [overwrites_x(few, ranks, main=True) for ranks in ((16,), (64,), ())] == [False, True, False]
    assert overwrites_x(replace(few, block_n=64), (16,), main=True)
    assert not overwrites_x(replace(few, swap_operands=False), (16, 64))
    assert [overwrites_x(few, ranks, stored=True) for ranks in ((16,), (64,), (64, 64), ())] == [
        False,
        True,
        True,
        False,
    ]
    many = TileConfig(64, 32, 64)
    assert not overwrites_x(many, (16,)) and overwrites_x(many, (16,), stored=True)
