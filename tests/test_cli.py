"""The command, as a user runs it from another folder; in a process of its own where that matters."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from fusioncc import __version__
from fusioncc.cli import app
from fusioncc.device import FIGURES, PROFILES
from fusioncc.plan import Plan
from fusioncc.targets import load

ROOT = Path(__file__).parents[1]
MODEL = """
import torch
class LoRA(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)
        self.a = torch.nn.Linear(256, 8, bias=False, dtype=torch.bfloat16)
        self.b = torch.nn.Linear(8, 512, bias=False, dtype=torch.bfloat16)
    def forward(self, x):
        return self.w(x) + self.b(self.a(x)) * 2.0
def factory(device="cpu"):
    with torch.device(device):
        return LoRA(), (torch.zeros(64, 256, dtype=torch.bfloat16),)
def on_meta():
    return factory("meta")
def fails():
    raise RuntimeError("no weights here")
def leaves():
    raise SystemExit(3)
def branches_on_data():
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x
    return Branches(), (torch.zeros(2, 2),)
def talks():
    class Talks(LoRA):
        def forward(self, x):
            print("forward was here", file=__import__("sys").stderr)
            return super().forward(x)
    return Talks(), (torch.zeros(64, 256, dtype=torch.bfloat16),)
def breaks():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            raise ValueError("cannot be captured")
    return Breaks(), (torch.zeros(2, 2),)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    command = [sys.executable, "-m", "fusioncc", *arguments]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=240)


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs the command in this process, in the folder of the model: torch is loaded once for many tests."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # as a process of its own has it
    yield lambda *arguments: CliRunner().invoke(app, arguments)
    torch.set_float32_matmul_precision(before)
    sys.modules.pop("model", None)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def other_hash_seed() -> str:
    """A seed that is not this process's own."""
    return "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"


def test_version_and_devices_answer_without_torch(folder: Path) -> None:
    assert run(folder, "--version").stdout == f"fusioncc {__version__}\n"
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')")
    result = run(folder, "devices")
    assert result.returncode == 0, result.stderr
    assert "h200" in result.stdout


def test_plan_says_what_and_why(here: Callable[..., Result]) -> None:
    result = here("plan", "model.py:factory", "--device", "h200")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Plan for h200: 1 group")
    assert re.fullmatch(r"fusioncc: captured in \d+\.\d\d s, planned in \d+\.\d\d s\n", result.stderr)
    assert "X [64, 256] bf16" in result.stdout
    assert "r=8" in result.stdout
    assert "why" in result.stdout


def test_json_is_the_plan_and_nothing_else(here: Callable[..., Result]) -> None:
    result = here("plan", "model:on_meta", "--json")
    assert result.exit_code == 0, result.stderr
    plan = Plan.from_json(result.stdout)
    assert (result.stdout, result.stderr) == (plan.to_json(), "")
    assert [member.role for member in plan.groups[0].members] == ["main", "down", "up"]


def test_options_reach_the_plan(here: Callable[..., Result]) -> None:
    forced = here("plan", "model.py:factory", "--json", "--schedule", "library")
    assert Plan.from_json(forced.stdout).groups[0].schedule.kind == "library"
    relaxed = here("plan", "model.py:factory", "--json", "--schedule", "split", "--numerics", "relaxed")
    (group,) = Plan.from_json(relaxed.stdout).groups
    assert (group.schedule.kind, group.tier) == ("split", "relaxed")
    narrow = here("plan", "model.py:factory", "--json", "--set", "max_rank_fraction=0.001")
    assert narrow.exit_code == 0, narrow.stderr
    assert not any(group.branches for group in Plan.from_json(narrow.stdout).groups)


@pytest.mark.exhaustive
def test_a_dump_is_the_same_in_every_process_hash_seed_and_folder(
    here: Callable[..., Result], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("elsewhere")
    (other / "model.py").write_text(MODEL)
    assert here("dump", "model.py:factory", "--out", "out").exit_code == 0
    result = run(other, "dump", "model.py:factory", "--out", "deeper/out", PYTHONHASHSEED=other_hash_seed())
    assert result.returncode == 0, result.stderr
    first, second = files(folder / "out"), files(other / "deeper" / "out")
    assert first == second
    assert {"before.txt", "after.txt", "plan.json", "decisions.md"} < set(first)
    assert any(name.startswith("kernels/") for name in first)
    assert b"torch.ops.aten.mm" in first["before.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "missing.py:factory"], "missing.py: no such file"),
        (["plan", "model.py:nothing"], "has no function 'nothing'"),
        (["plan", "model.py:fails"], "RuntimeError: no weights here"),
        (["plan", "model.py:breaks"], "cannot be captured"),
        (["plan", "model.py:factory", "--device", "h2000"], "valid devices:"),
        (["plan", "model.py:factory", "--schedule", "fast"], "valid values: auto, library"),
        (["plan", "model.py:factory", "--numerics", "exact"], "valid values: 'eager', 'fp32', 'relaxed'"),
        (["plan", "model.py:factory", "--set", "max_rank=1"], "did you mean 'max_rank_fraction'?"),
        (["plan", "model.py:factory", "--set", "max_rank_fraction"], "is not of the form NAME=VALUE"),
        (["plan", "model.py:factory", "--set", "max_rank_fraction=x"], "is not a number"),
        (["plan", "model.py:factory", "--set", "max_rank_fraction=nan"], "is not in (0, 1]"),
        (["plan", "model.py:leaves"], "model.py:leaves failed: SystemExit: 3"),
        (["plan", "model.py:branches_on_data"], "cannot capture the model: GuardOnDataDependentSymNode"),
        (
            ["plan", "model.py:factory", "--schedule", "inline", "--set", "schedule=split"],
            "schedule is given twice, as 'inline' and as 'split'",
        ),
        (
            ["plan", "model.py:factory", "--set", "numerics=fp32", "--set", "numerics=eager"],
            "numerics is given twice, as 'fp32' and as 'eager'",
        ),
        (["plan", "broken.pt2"], "is not a torch.export archive, or a truncated one"),
        (["dump", "model.py:factory", "--out", ""], "--out is empty"),
        (["plan"], "Missing argument"),
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option"),
        (["plan", "model.py:factory", "--nonsense"], "No such option"),
        (["plan", "model.py:factory", "--schedule"], "requires an argument"),
        (["plan", "model.py:factory", "--trust=3"], "does not take a value"),
        (["plan", "model.py:factory", "another"], "another"),
        (["dump", "model.py:factory"], "Missing option '--out'"),
        (["dump", "model.py:factory", "--out", "model.py"], "model.py is not a folder"),
        (["dump", "model.py:factory", "--out", "model.py/inside"], "Not a directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    folder: Path, here: Callable[..., Result], arguments: list[str], message: str
) -> None:
    (folder / "broken.pt2").write_bytes(b"PK\x03\x04 and then nothing")
    result = here(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("fusioncc: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.fixture
def archive(folder: Path, here: Callable[..., Result]) -> Path:
    target = load("model:factory")
    torch.export.save(torch.export.export(target.model, target.args), folder / "model.pt2")
    return folder / "model.pt2"


def test_an_archive_asks_for_trust(archive: Path, here: Callable[..., Result]) -> None:
    refused = here("plan", archive.name)
    assert refused.exit_code == 2
    assert "add --trust" in refused.stderr
    trusted = here("plan", archive.name, "--trust")
    assert trusted.exit_code == 0, trusted.stderr
    assert trusted.stdout == here("plan", "model.py:factory").stdout


@pytest.mark.exhaustive
def test_a_damaged_archive_is_one_line_too(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes().replace(b"graph_module", b"graph_modulo"))
    damaged = run(archive.parent, "plan", archive.name, "--trust")
    assert damaged.returncode == 2
    assert damaged.stderr.startswith("fusioncc: model.pt2 cannot be loaded")
    assert damaged.stderr.count("\n") == 1


@pytest.mark.exhaustive
def test_debug_shows_where(folder: Path) -> None:
    result = run(folder, "plan", "model.py:fails", "--debug")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "RuntimeError: no weights here" in result.stderr


def test_a_bug_is_one_line_and_exit_code_1(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(
        "import fusioncc.cli as c\ndef bug(*a): raise KeyError('x')\nc.plan_target = bug"
    )
    result = run(folder, "plan", "model.py:factory", PYTHONPATH=f"{ROOT}{os.pathsep}{folder}")
    assert result.returncode == 1
    assert result.stderr == "fusioncc: internal error, KeyError: 'x' (--debug shows where)\n"


def test_wrong_usage_is_one_line_in_a_terminal_too(folder: Path) -> None:
    result = run(folder, "plan", "--nonsense")
    assert result.returncode == 2
    assert result.stderr.startswith("fusioncc: No such option")
    assert result.stderr.count("\n") == 1


def test_without_arguments_the_help_is_shown(here: Callable[..., Result]) -> None:
    result = here()
    assert "Usage" in result.output
    assert "devices" in result.output


def test_one_value_given_twice_is_no_contradiction(here: Callable[..., Result]) -> None:
    result = here("plan", "model.py:factory", "--json", "--schedule", "split", "--set", "schedule=split")
    assert Plan.from_json(result.stdout).groups[0].schedule.kind == "split"


@pytest.mark.exhaustive
def test_torchs_own_output_is_shown_on_debug_only(folder: Path) -> None:
    result = run(folder, "plan", "model.py:branches_on_data", "--debug")
    assert "torch.ops.aten.sum" in result.stderr
    assert "Traceback" in result.stderr


def test_a_models_own_messages_come_through(here: Callable[..., Result]) -> None:
    result = here("plan", "model.py:talks")
    assert result.exit_code == 0
    assert "forward was here" in result.stderr


def test_a_device_says_where_every_figure_comes_from(
    here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = here("devices", "rtxpro6000").stdout
    for figure in FIGURES:
        assert figure in shown or figure == "tile_tflops"
    assert "503.8 TFLOP/s, times 0.688" in shown and "assumed" in shown
    listed = here("devices").stdout
    assert all(name in listed for name in PROFILES)


def test_devices_as_json_are_what_a_device_file_holds(here: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.json").write_text(here("devices", "h200", "--json").stdout)
    shown = here("devices", "mine.json", "--json").stdout
    assert json.loads(shown)["dram_gbps"] == {
        "value": 4026.7,
        "unit": "GB/s",
        "source": "measured by fusioncc calibrate on NVIDIA H200, driver 580.159.04, 2026-11-30",
    }
    assert shown == here("devices", "h200", "--json").stdout
    assert [device["name"] for device in json.loads(here("devices", "--json").stdout)] == sorted(PROFILES)


@pytest.mark.exhaustive
def test_plan_and_dump_take_a_device_file(here: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.json").write_text('{"like": "h200", "dram_gbps": 400}')
    planned = here("plan", "model.py:factory", "--device", "mine.json", "--json")
    assert planned.exit_code == 0, planned.stderr
    assert Plan.from_json(planned.stdout).device == "mine"
    assert here("dump", "model.py:factory", "--device", "mine.json", "--out", "out").exit_code == 0
    assert (folder / "out" / "plan.json").read_text() == planned.stdout
    faster = Plan.from_json(here("plan", "model.py:factory", "--json").stdout)
    assert Plan.from_json(planned.stdout).groups[0].candidates[0] != faster.groups[0].candidates[0]


@pytest.mark.parametrize("command", [["plan", "model.py:factory", "--device"], ["devices"]])
def test_a_wrong_device_file_is_one_line_that_names_the_field(
    here: Callable[..., Result], folder: Path, command: list[str]
) -> None:
    (folder / "mine.json").write_text('{"like": "h200", "dram_gbps": -1}')
    for given, message in (("mine.json", "mine.json: dram_gbps is -1 GB/s"), ("no.json", "no.json cannot be read")):
        result = here(*command, given)
        assert result.exit_code == 2 and result.stdout == ""
        assert message in result.stderr
        assert result.stderr.startswith("fusioncc: ") and result.stderr.count("\n") == 1
