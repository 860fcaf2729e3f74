"""Kernels of a graph are compiled side by side, and what fails there is left to the building of its group."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.passes import compile_kernels as compiling
from fusioncc.passes.compile_kernels import compile_kernels
from fusioncc.passes.emit_groups import module_of
from fusioncc.passes.plan_groups import Setting
from tests.plans import lora_group, planned
from tests.tuning.entries import DEVICE

ROOT = Path(__file__).parents[2]


def test_each_is_compiled_once_and_found(compiler_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.passes.compiled_together"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=compiler_environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["together"] == {"main_0": 2, "down_0": 1} and found["after"] == {}
    assert found["threads"] > 1
    assert "kernel main_0 of spoilt does not build" in found["failure"] and "no_such_id" in found["failure"]


@pytest.mark.parametrize(
    ("runnable", "times"),
    [(Accepted("runnable", ("cuda",)), 1), (Accepted("runnable", ("interpreter",)), 0), (Rejected("a", "b", "c"), 0)],
)
def test_equal_groups_once_and_only_for_a_card(runnable: Any, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(compiling, "compile_together", wanted.extend)
    groups = [planned(lora_group(name)) for name in ("g0", "g1")]
    modules = {each.name: module_of(each, trace=False) for each in groups}
    compile_kernels(groups, modules, (), {}, Setting(Options(), DEVICE, runnable))
    assert wanted == [(modules["g1"], 64)] * times


def test_a_failure_is_left_to_the_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(wanted: Any) -> None:
        raise RuntimeError("Another AsyncCompileMode is already active")

    monkeypatch.setattr(compiling, "compile_together", failing)
    compile_kernels((), {}, (), {}, Setting(Options(), DEVICE, Accepted("runnable", ("cuda",))))
