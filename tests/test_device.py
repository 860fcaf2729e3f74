"""Profiles: figures that make sense, and drivers' names that find them."""

from dataclasses import replace

import pytest

from fusioncc.device import FIGURES, PROFILES, get_device, profile_for
from fusioncc.errors import OptionError
from fusioncc.figures import checked
from fusioncc.profile_file import OPTIONAL


@pytest.mark.parametrize("name", PROFILES)
def test_every_figure_is_present_and_ordered(name: str) -> None:
    device = get_device(name)
    assert device.name == name and checked(device, name) is device
    needed = FIGURES.keys() - OPTIONAL.keys()
    assert device.sources.keys() == needed | ({"tile_tflops"} if device.tile_tflops else set())
    assert all(device.sources.values())
    assert device.dram_gbps < device.l2_gbps
    assert device.bf16_tflops > device.tf32_tflops


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB", 80, 108, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 80, 108, "a100-80"),
        ("NVIDIA A100 80GB PCIe", 80, 108, "a100-80"),
        ("NVIDIA H100 80GB HBM3", 90, 132, "h100"),
        ("NVIDIA H100 PCIe", 90, 114, "h100-pcie"),
        ("NVIDIA H200", 90, 132, "h200"),
        ("NVIDIA L40S", 89, 142, "l40s"),
        ("NVIDIA GeForce RTX 4090", 89, 128, "rtx4090"),
        ("NVIDIA GeForce RTX 5090", 120, 170, "rtx5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, "rtxpro6000"),
        ("NVIDIA B200", 100, 148, "b200"),
    ],
)
def test_a_driver_name_finds_its_profile(name: str, capability: int, multiprocessors: int, profile: str) -> None:
    assert profile_for(name, capability, multiprocessors, 1, 1) == get_device(profile)


def test_a_slice_of_a_card_is_scaled_and_keeps_the_drivers_sizes() -> None:
    part = profile_for("NVIDIA H200 MIG 3g.71gb", 90, 60, 232448, 25 << 20)
    assert part.multiprocessors == 60 and part.l2_bytes == 25 << 20
    assert part.bf16_tflops == pytest.approx(680.2 * 60 / 132, rel=0.01)
    assert part.sources["bf16_tflops"] == "scaled from h200 by 60/132 multiprocessors"
    assert part.sources["l2_bytes"] == "as the driver reports it"


def test_an_unknown_card_is_scaled_from_its_family() -> None:
    unknown = profile_for("NVIDIA GH200 480GB", 90, 132, 232448, 50 << 20)
    assert unknown.name == "nvidia-gh200-480gb" and "scaled from h100" in unknown.sources["l2_gbps"]
    old = profile_for("Tesla T4", 75, 40, 65536, 4 << 20)
    assert old.capability == 75 and old.shared_bytes == 65536


def test_an_unknown_profile_lists_the_valid_ones() -> None:
    with pytest.raises(OptionError, match="valid devices: a100-40, a100-80, b200"):
        get_device("h300")


def test_figures_that_datasheets_print() -> None:
    """The peaks behind the figures, as their sources say them."""
    for name, figure, peak in (
        ("a100-40", "dram_gbps", "1555 GB/s"),
        ("a100-80", "dram_gbps", "2039 GB/s"),
        ("h100", "bf16_tflops", "989 TFLOP/s"),
        ("h100-pcie", "dram_gbps", "2000 GB/s"),
        ("l40s", "bf16_tflops", "362 TFLOP/s"),
        ("rtx4090", "bf16_tflops", "165.2 TFLOP/s"),
        ("rtx5090", "bf16_tflops", "209.5 TFLOP/s"),
        ("rtxpro6000", "bf16_tflops", "503.8 TFLOP/s"),
        ("b200", "dram_gbps", "7680 bits at 3996 MHz"),
    ):
        device = PROFILES[name]
        assert peak in device.sources[figure]
        assert getattr(device, figure) > 0


def test_what_nobody_measured_says_so() -> None:
    for device in PROFILES.values():
        for figure in ("l2_gbps", "launch_us", "events_us", "flag_us"):
            assert device.sources[figure].startswith("measured by" if device.name == "h200" else "assumed")


def test_equal_figures_are_an_equal_device_whatever_their_sources() -> None:
    h200 = get_device("h200")
    renamed = replace(h200, sources={})
    assert renamed == h200 and hash(renamed) == hash(h200)
    assert replace(h200, dram_gbps=4261.0) != h200
