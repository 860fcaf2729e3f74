"""On a card: calibrate ends in time, its kernels are right, and its figures are those of the card's own profile."""

import os
import time

import pytest
import torch

from fusioncc.device import get_device
from fusioncc.profile_file import to_json
from fusioncc.runtime import timings
from fusioncc.runtime.calibrate import calibrate
from fusioncc.runtime.calibration_kernels import copy, gemm, hand_over, read_resident
from fusioncc.runtime.executor import profile


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="times a card that other workers keep busy: run it alone"
)
def test_a_profile_in_90_seconds(tmp_path) -> None:
    start = time.monotonic()
    measured = calibrate("here")
    assert time.monotonic() - start < 90
    print(to_json(measured))
    path = tmp_path / "here.json"
    path.write_text(to_json(measured))
    assert get_device(path) == measured
    shipped = profile(torch.device("cuda", torch.cuda.current_device()), None)
    for figure in ("capability", "multiprocessors", "shared_bytes", "shared_bytes_sm", "registers_sm"):
        assert getattr(measured, figure) == getattr(shipped, figure)
    for figure in ("dram_gbps", "bf16_tflops", "tf32_tflops"):
        assert getattr(measured, figure) == pytest.approx(getattr(shipped, figure), rel=0.25)
    assert max(rate for _, rate in measured.tile_tflops) < 1.2 * measured.bf16_tflops


@pytest.mark.parametrize("tile", timings.TILES)
def test_the_gemm_is_a_gemm(tile: tuple[int, int, int, int, int]) -> None:
    m, n, k, num_warps, num_stages = tile
    size = 1024
    x, w = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(x)
    gemm[(size // m * (size // n),)](x, w, out, size, m, n, k, 8, num_warps=num_warps, num_stages=num_stages)
    torch.testing.assert_close(out, x @ w.T, rtol=2e-2, atol=2e-2)


def test_the_copy_is_a_copy() -> None:
    x = torch.randn(8 * timings.COPY_BLOCK, device="cuda")
    out = torch.full_like(x, torch.nan)
    copy[(8,)](x, out, timings.COPY_BLOCK)
    assert torch.equal(out, x)


def test_reads_and_flags() -> None:
    x, sums = torch.ones(8 * timings.L2_BLOCK, device="cuda"), torch.empty(64, device="cuda")
    read_resident[(64,)](x, sums, 16, 8, timings.L2_BLOCK, num_warps=8)
    assert (sums == 16 * timings.L2_BLOCK).all()
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    hand_over[(2,)](flag, 1000, num_warps=1)
    assert flag.item() == 0
