"""``fusioncc tune``: what it measures (with a meter that has no card), what it prints, and mistakes in one line."""

import csv
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fusioncc import tune_command
from fusioncc.cli import app
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import Tuning
from fusioncc.tuning.database import database
from tests.tuning.fake_meter import Clock, FakeMeter

TWO = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("p", "q"):
            for weight, (n, k) in {"w": (2048, 2048), "a": (16, 2048), "b": (2048, 16)}.items():
                setattr(self, name + weight, nn.Parameter(torch.empty(n, k, dtype=torch.bfloat16, device="meta")))

    def forward(self, x):
        for name in ("p", "q"):
            w, a, b = (getattr(self, name + weight) for weight in "wab")
            x = torch.relu(x @ w.T + (x @ a.T) @ b.T)
        return x

def factory():
    return Two(), (torch.empty(64, 2048, dtype=torch.bfloat16, device="meta"),)
"""


@pytest.fixture
def meters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeMeter]:
    """A folder of its own with a model of two equal groups; the meters that are made instead of a card's."""
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(TWO)
    made: list[FakeMeter] = []

    def meter(device: Any) -> FakeMeter:
        made.append(FakeMeter(Clock(), library=10.0))
        return made[-1]

    def here(options: dict[str, Any], device: str | None) -> Setting:
        card = get_device(device or "h200")
        runs = Accepted("runnable", ("cuda",))
        return Setting(Options.of(options, device=card), card, runs, card="NVIDIA H200", tuning=Tuning(meter))

    monkeypatch.setattr(tune_command, "setting_here", here)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments])


@pytest.mark.exhaustive
def test_equal_groups_are_measured_once_and_shown_together(meters: list[FakeMeter]) -> None:
    result = run("two.py:factory", "--seconds", "100", "--log", "tune.csv")
    assert result.exit_code == 0, result.stderr
    (row,) = [line for line in result.stdout.splitlines() if "64x2048 bf16 → 2048 r16" in line]
    ((_, entry),) = database().listed().entries
    assert "g0, g1" in row and entry.schedule.kind in row and "quick" in row
    assert f"{entry.time.us:.4g} ± " in row and f"{entry.library.us:.4g} ± " in row
    rows = [*csv.DictReader(Path("tune.csv").read_text(encoding="utf-8").splitlines())]
    assert len(rows) == sum(map(len, meters[0].races)) and len(meters) == 1
    again = run("two.py:factory")
    assert again.stdout == result.stdout and len(meters) == 1, "what is known is not measured again"


@pytest.mark.exhaustive
def test_full_measures_on(meters: list[FakeMeter]) -> None:
    assert run("two.py:factory").exit_code == 0
    result = run("two.py:factory", "--effort", "full", "--seconds", "100000")
    assert result.exit_code == 0 and len(meters) == 2
    assert "full" in result.stdout and len(meters[1].races) > len(meters[0].races)


def test_options_are_part_of_what_is_tuned(meters: list[FakeMeter]) -> None:
    result = run("two.py:factory", "--schedule", "inline", "--set", "rest=eager")
    assert result.exit_code == 0, result.stderr
    ((_, entry),) = database().listed().entries
    assert entry.key.wishes.schedule == entry.schedule.kind == "inline" and entry.key.wishes.rest == "eager"


def test_a_group_of_which_nothing_was_found_out_is_named(meters: list[FakeMeter]) -> None:
    result = run("two.py:factory", "--seconds", "0.001")
    assert result.exit_code == 0 and "g0, g1: there was no time" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("two.py:factory",), "tune measures on the CUDA card of this machine, and torch finds none"),
        (("two.py:factory", "--effort", "heroic"), "valid values: quick, full"),
        (("two.py:factory", "--effort", "none"), "valid values: quick, full"),
        (("two.py:factory", "--seconds", "-1"), "autotune_seconds=-1.0 is not in (0,"),
        (("two.py:factory", "--log", "none/tune.csv"), "is not a file in a folder that is there"),
        (("two.py:factory", "--log", "."), "is not a file in a folder that is there"),
        (("two.py:factory", "--device", "h900"), "unknown device 'h900'"),
        (("two.py:factory", "--set", "nonsense=1"), "unknown option 'nonsense'"),
        (("two.py:factory", "--set", "autotune=full"), "--effort says how widely is searched"),
        (("two.py:factory", "--set", "autotune_seconds=9"), "--seconds says for how long"),
        (("two.py:factory", "--set", "deterministic=true"), "it would measure nothing"),
        ((), "Missing argument"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(TWO)
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
