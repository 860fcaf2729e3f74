"""What the README shows is what there is: the plan of its example, a row for each schedule."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusioncc.cli import app
from fusioncc.schedule import SCHEDULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (shown,) = re.findall(r"```\n(Plan for .*?)```", README, re.DOTALL)
    assert CliRunner().invoke(app, ["plan", "examples/llama_lora.py:factory"]).stdout == shown


def test_the_comparison_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    command, shown = re.findall(r"```\n(.*?)```", README.split("## Shapes")[1], re.DOTALL)[:2]
    assert CliRunner().invoke(app, command.split()[1:]).stdout == shown


@pytest.mark.exhaustive
def test_the_formulas_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (shown,) = re.findall(r"```\n(g1: M = .*?)```", README, re.DOTALL)
    assert f"\n{shown}" in CliRunner().invoke(app, ["traffic", "examples/llama_lora.py:factory"]).stdout


def test_every_schedule_has_a_row() -> None:
    table = README.split("## Schedules")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(SCHEDULES)
