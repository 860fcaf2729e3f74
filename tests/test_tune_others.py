"""``fusioncc tune --gpus all``: a process for each other card, one database, and none of them left behind."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fusioncc import tune_command, tune_others
from fusioncc.cli import app
from fusioncc.device import Device
from fusioncc.errors import MeasuringError
from fusioncc.tune_others import tuning_beside
from fusioncc.tuning.database import database
from tests import tune_with_fakes
from tests.tuning.fake_meter import FakeMeter

ROOT = Path(__file__).parents[1]
THREE = """
import torch
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        for name, k in {"p": 2048, "q": 1024, "r": 512}.items():
            for weight, shape in {"w": (2048, k), "a": (16, k), "b": (2048, 16)}.items():
                setattr(self, name + weight, nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="meta")))

    def forward(self, *xs):
        weights = [[getattr(self, name + weight) for weight in "wab"] for name in "pqr"]
        return [torch.relu(x @ w.T + (x @ a.T) @ b.T) for x, (w, a, b) in zip(xs, weights)]

def factory():
    return Three(), tuple(torch.empty(64, k, dtype=torch.bfloat16, device="meta") for k in (2048, 1024, 512))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    Path("three.py").write_text(THREE)
    monkeypatch.setattr(tune_command, "setting_here", tune_with_fakes.here)
    monkeypatch.setattr(tune_others, "PROGRAM", (sys.executable, "-m", "tests.tune_with_fakes"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("here")
def test_each_group_is_measured_on_one_card_and_all_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first card is broken, and the third is not there: what the others find is shown all the same."""

    def broken(device: Device) -> FakeMeter:
        raise MeasuringError("crash", "the card is lost")

    cards = {"1": "GPU-a", "2": "GPU-b", "3": "GPU-c"}
    monkeypatch.setattr(tune_with_fakes, "meter", broken)
    monkeypatch.setattr(tune_command, "other_cards", lambda: cards)
    monkeypatch.setenv("FAKE_FAILS", "GPU-c")
    result = CliRunner().invoke(app, ["tune", "three.py:factory", "--gpus", "all", "--log", "tune.csv"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "card 3: no card is seen\n"
    measured = {tuple(line.split()) for line in Path("measured.txt").read_text().splitlines()}
    assert sorted(k for _, k in measured) == ["1024", "2048", "512"], "each on one card"
    assert {card for card, _ in measured} <= {"GPU-a", "GPU-b"}
    assert len(database().listed().entries) == 3
    assert all(f"g{at} " in result.stdout for at in range(3)) and "the cost models choose" not in result.stdout
    assert sorted(path.name for path in Path().glob("*.csv")) == ["tune.1.csv", "tune.2.csv", "tune.csv"]


@pytest.mark.usefixtures("here")
def test_one_card_is_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_command, "other_cards", dict)
    result = CliRunner().invoke(app, ["tune", "three.py:factory", "--gpus", "all"])
    assert result.exit_code == 0 and result.stderr == "", result.stderr
    assert len(database().listed().entries) == 3


@pytest.mark.parametrize(
    ("gpus", "message"),
    [("all", "tune measures on the CUDA card of this machine, and torch finds none"), ("2", "valid values: all")],
)
def test_what_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("three.py").write_text(THREE)
    result = CliRunner().invoke(app, ["tune", "three.py:factory", "--gpus", gpus])
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def waiting(tmp_path: Path) -> tuple[str, ...]:
    """A program that runs until it is interrupted, and then keeps something."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, sys, time, pathlib\n"
        "try:\n"
        "    pathlib.Path(sys.argv[-1] + '.pid').write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pathlib.Path(sys.argv[-1]).write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    return sys.executable, str(script)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler], ids=["background", "terminal"])
def test_an_interrupt_is_passed_on_and_no_process_stays(
    handler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGINT, handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(tune_others, "PROGRAM", waiting(tmp_path))
    notes = {index: tmp_path / index for index in ("1", "2")}
    pids = [tmp_path / f"{index}.pid" for index in notes]
    with pytest.raises(KeyboardInterrupt), tuning_beside(
        {"1": "GPU-a", "2": "GPU-b"}, lambda index: [str(notes[index])]
    ):  # fmt: skip
        deadline = time.monotonic() + 60.0
        while not all(path.exists() and path.read_text() for path in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        raise KeyboardInterrupt
    assert [note.read_text() for note in notes.values()] == ["GPU-a", "GPU-b"]
    for path in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_one_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dies.py"
    script.write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    monkeypatch.setattr(tune_others, "PROGRAM", (sys.executable, str(script)))
    with tuning_beside({"1": "GPU-a"}, lambda index: []) as others:
        assert others() == ["card 1: its process ended with -9"]
