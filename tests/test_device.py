"""Profiles: figures that make sense, and drivers' names that find them."""

from dataclasses import fields

import pytest

from fusioncc.device import PROFILES, get_device, profile_for
from fusioncc.errors import OptionError


@pytest.mark.parametrize("name", PROFILES)
def test_every_figure_is_present_and_ordered(name: str) -> None:
    device = get_device(name)
    assert device.name == name and device.source
    assert all(getattr(device, field.name) for field in fields(device))
    assert device.shared_bytes < device.shared_bytes_sm
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
    assert part.bf16_tflops == pytest.approx(750 * 60 / 132, rel=0.01)
    assert "h200" in part.source


def test_an_unknown_card_is_scaled_from_its_family() -> None:
    unknown = profile_for("NVIDIA GH200 480GB", 90, 132, 232448, 50 << 20)
    assert unknown.name == "nvidia-gh200-480gb" and "scaled from h100" in unknown.source
    old = profile_for("Tesla T4", 75, 40, 65536, 4 << 20)
    assert old.capability == 75 and old.shared_bytes == 65536


def test_an_unknown_profile_lists_the_valid_ones() -> None:
    with pytest.raises(OptionError, match="valid devices: a100-40, a100-80, b200"):
        get_device("h300")
