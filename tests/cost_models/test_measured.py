"""The model against the H200 measurements that it was fitted to (us: GEMM alone, torch.compile)."""

import pytest

from fusioncc.autotune import best, pick, rank
from fusioncc.device import get_device
from tests.cost_models.groups import bundle, lora

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
FASTEST_EMITTED = {
    (16, 4096, 28672, 8): 62.2,
    (64, 4096, 28672, 8): 62.7,
    (256, 4096, 28672, 8): 108,
    (2048, 4096, 4096, 16): 113,
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
def test_emitted_schedules_win_except_at_one_row(shape: tuple[int, int, int, int]) -> None:
    candidates = rank(lora(*shape), H200)
    assert (pick(candidates).kind == "library") == (shape[0] == 1)
    if shape[0] > 1:
        assert candidates[0].kind in ("inline", "split")


@pytest.mark.parametrize("shape", FASTEST_EMITTED)
def test_emitted_time_is_within_20_percent_of_the_best_prototype(shape: tuple[int, int, int, int]) -> None:
    assert rank(lora(*shape), H200)[0].predicted_us == pytest.approx(FASTEST_EMITTED[shape], rel=0.2)


def test_small_n_prefers_one_launch() -> None:
    assert rank(lora(64, 4096, 4096, 16), H200)[0].kind == "inline"
