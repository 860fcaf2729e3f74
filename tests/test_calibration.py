"""From raw times to a profile: the arithmetic by hand, and times that no card can have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncc.calibration import Card, Series, Timings, Work, each_us, gigabytes_per_second, profile, teraflops
from fusioncc.device import FIGURES, profile_for
from fusioncc.errors import CalibrationError

CARD = Card("NVIDIA H200", "580.159.04", "2026-11-30", 90, 132, 50 << 20, 227 << 10, 228 << 10, 65536)
TIMINGS = Timings(
    copy=Work(2 << 30, 504.0),
    l2=Work(2_000_000_000, 250.0),
    bf16=Work(2 * 8192**3, 1466.0),
    tf32=Work(2 * 4096**3, 400.0),
    fp32=Work(2 * 4096**3, 2600.0),
    tiles={"64x64x64": Work(2 * 4096**3, 500.0), "128x256x64": Work(2 * 4096**3, 250.0)},
    launches=Series((20, 35.0), (220, 315.0)),
    forks=Series((20, 95.0), (220, 975.0)),
    flags=Series((40, 40.0), (440, 360.0)),
)


def test_every_figure_by_hand() -> None:
    device = profile(CARD, TIMINGS, "mine")
    assert device.name == "mine"
    assert device.dram_gbps == 4260.9  # 2147.5 MB in 504 us
    assert device.l2_gbps == 8000.0
    assert device.bf16_tflops == 750.0  # 1.0995 TFLOP in 1.466 ms
    assert device.tf32_tflops == 343.6
    assert device.fp32_tflops == 52.9
    assert device.launch_us == 1.4  # 280 us for 200 kernels
    assert device.events_us == 3.0  # 4.4 us a pair beside each other, less the 1.4 of a kernel
    assert device.flag_us == 0.8
    assert device.tile_tflops == (("64x64x64", 274.9), ("128x256x64", 549.8))
    assert (device.capability, device.multiprocessors, device.l2_bytes) == (90, 132, 50 << 20)
    assert (device.shared_bytes, device.shared_bytes_sm, device.registers_sm) == (227 << 10, 228 << 10, 65536)


def test_every_figure_says_where_it_comes_from() -> None:
    sources = profile(CARD, TIMINGS, "mine").sources
    assert sources.keys() == FIGURES.keys()
    assert {sources[name] for name in ("dram_gbps", "flag_us", "tile_tflops")} == {
        "measured on NVIDIA H200, driver 580.159.04, 2026-11-30"
    }
    assert sources["l2_bytes"] == "driver 580.159.04 of NVIDIA H200"


def test_what_all_rows_have_in_common_falls_out() -> None:
    assert each_us(Series((10, 110.0), (30, 130.0))) == 1.0
    assert each_us(Series((10, 1110.0), (30, 1130.0))) == 1.0


@given(us=st.floats(1.0, 1e6), faster=st.floats(1.01, 10.0))
def test_less_time_is_never_a_lower_rate(us: float, faster: float) -> None:
    for rate in (gigabytes_per_second, teraflops):
        assert rate(Work(1e12, us / faster)) >= rate(Work(1e12, us))


@pytest.mark.parametrize(
    ("field", "value", "figure"),
    [
        ("launches", Series((20, 315.0), (220, 315.0)), "launch_us is 0 us"),
        ("launches", Series((20, 315.0), (220, 35.0)), "launch_us is -1.4 us"),
        ("forks", Series((20, 35.0), (220, 315.0)), "events_us is 0 us"),
        ("flags", Series((40, 1.0), (440, 800001.0)), "flag_us is 2000 us"),
        ("copy", Work(2 << 30, 1e9), "dram_gbps is 0 GB/s"),
        ("l2", Work(2_000_000_000, 1000.0), "l2_gbps is 2000, less than dram_gbps"),
        ("tiles", {"64x64x64": Work(1.0, 1.0)}, r"tile_tflops\[64x64x64\] is 0 TFLOP/s"),
    ],
)
def test_a_time_that_no_card_can_have_is_named(field: str, value: object, figure: str) -> None:
    with pytest.raises(CalibrationError, match=f"NVIDIA H200: {figure}.*Measure again"):
        profile(CARD, replace(TIMINGS, **{field: value}), "mine")  # type: ignore[arg-type]


def test_a_measured_card_and_the_one_that_ships_agree_in_what_the_driver_says() -> None:
    shipped = profile_for(CARD.name, CARD.capability, CARD.multiprocessors, CARD.shared_bytes, CARD.l2_bytes)
    measured = profile(CARD, TIMINGS, "h200")
    for figure in ("capability", "multiprocessors", "l2_bytes", "shared_bytes", "shared_bytes_sm", "registers_sm"):
        assert getattr(measured, figure) == getattr(shipped, figure)
