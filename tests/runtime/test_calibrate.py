"""``fusioncc calibrate`` without a card: its kernels build and do what they say, and the command ends in one line."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fusioncc.cli import app
from fusioncc.device import get_device
from fusioncc.errors import CalibrationError
from fusioncc.runtime import calibrate, timings
from fusioncc.runtime.calibration_kernels import copy, gemm, hand_over, read_resident
from tests.test_calibration import CARD, TIMINGS

ROOT = Path(__file__).parents[2]
CASES = ((16, 32, 64, 1), (32, 64, 16, 2), (64, 16, 32, 2))


@pytest.mark.exhaustive
def test_kernels_fit(compiler_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.runtime.calibration_resources"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=compiler_environment)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = Counter(re.findall(r" (\d+): \d+ B shared", done.stdout))
    assert kernels == dict.fromkeys(("80", "90", "100"), 4 + len(timings.TILES))


@pytest.mark.parametrize(("m", "n", "k", "group_m"), CASES)
def test_the_gemm_is_a_gemm(m: int, n: int, k: int, group_m: int) -> None:
    size = 128
    x, w, out = torch.randn(size, size), torch.randn(size, size), torch.full((size, size), torch.nan)
    gemm[(size // m * (size // n),)](x, w, out, size, m, n, k, group_m)
    torch.testing.assert_close(out, x @ w.T, rtol=1e-5, atol=1e-4)


def test_the_copy_is_a_copy() -> None:
    x, out = torch.randn(3 * 16), torch.full((3 * 16,), torch.nan)
    copy[(3,)](x, out, 16)
    assert torch.equal(out, x)


def test_every_program_reads_all_its_blocks() -> None:
    x, sums = torch.arange(4 * 16, dtype=torch.float32), torch.empty(3)
    read_resident[(3,)](x, sums, 6, 4, 16)
    blocks = x.view(4, 16).sum(1)
    assert sums.tolist() == [sum(float(blocks[(program + step) % 4]) for step in range(6)) for program in range(3)]


def test_a_flag_comes_back_as_it_was() -> None:
    """One round: the interpreter runs programs one after another."""
    flag = torch.zeros(1, dtype=torch.int32)
    hand_over[(2,)](flag, 1)
    assert flag.item() == 0


def test_what_does_not_fit_a_card_is_not_timed() -> None:
    assert timings.tiles_for(227 << 10) == timings.tiles_for(163 << 10) == timings.TILES
    assert (128, 256, 64, 8, 3) not in timings.tiles_for(99 << 10)
    assert (64, 128, 64, 4, 4) in timings.tiles_for(99 << 10)


class Streams:
    """Stands for torch.cuda: takes down who waits for whom, by name, and on which stream kernels start."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "main"

    def named(self, name: str) -> Any:
        waits = lambda other: self.log.append(f"{name} waits for {other.name}")
        return SimpleNamespace(name=name, wait_stream=waits)

    def current_stream(self) -> Any:
        return self.named("main")

    def Stream(self) -> Any:
        return self.named("side")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = "main"

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda word: self.log.append(f"kernel on {self.current}")


def test_a_fork_has_as_many_kernels_on_the_main_stream_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the difference of the two is that of the events."""
    streams = Streams()
    monkeypatch.setattr(timings, "cuda", streams)
    monkeypatch.setattr(timings, "empty", streams)
    timings.in_a_row(None, 3)
    assert streams.log == ["kernel on main"] * 3
    streams.log.clear()
    timings.forked(None, 3)
    once = ["side waits for main", "kernel on side", "kernel on main", "main waits for side"]
    assert streams.log == once * 3


def refusal(*arguments: str) -> str:
    """The one line with which a command ends."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("fusioncc: ") and result.stderr.count("\n") == 1
    return result.stderr


def test_without_a_card_the_command_ends_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "my.json"
    assert "torch finds none" in refusal("calibrate", "--out", str(out))
    assert not out.exists()


def test_a_card_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "compute capability 7.5 is older than 8.0" in refusal("calibrate", "--out", str(tmp_path / "my.json"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "unset TRITON_INTERPRET" in refusal("calibrate", "--out", str(tmp_path / "my.json"))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of compute capability 9.0, as far as torch can tell."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(calibrate, "interpreter_requested", lambda: False)
    monkeypatch.setattr(calibrate, "card", lambda: CARD)


@pytest.mark.usefixtures("hopper")
def test_what_stops_a_measurement_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = str(tmp_path / "my.json")

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(calibrate, "timed", full)
    assert "needs 3 GiB" in refusal("calibrate", "--out", out)
    monkeypatch.setattr(calibrate, "timed", lambda: replace(TIMINGS, forks=TIMINGS.launches))
    assert "events_us is 0 us" in refusal("calibrate", "--out", out)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "fusioncc.runtime.timings", None)
    with pytest.raises(CalibrationError, match="compiles kernels"):
        calibrate.timed()


@pytest.mark.parametrize("out", ["my.txt", "none/my.json", ".", ""])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"--out {out!r} is not a file x.json" in refusal("calibrate", "--out", out)


@pytest.mark.usefixtures("hopper")
def test_what_is_written_is_a_profile_to_plan_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibrate, "timed", lambda: TIMINGS)
    result = CliRunner().invoke(app, ["calibrate", "--out", str(tmp_path / "mine.json")])
    assert result.exit_code == 0, result.output
    assert "measured on NVIDIA H200" in result.stdout
    device = get_device(tmp_path / "mine.json")
    assert (device.name, device.dram_gbps, device.events_us) == ("mine", 4260.9, 3.0)
    assert device.tile_tflops[-1] == ("128x256x64", 549.8)
    assert device.sources["flag_us"] == "measured on NVIDIA H200, driver 580.159.04, 2026-11-30"
