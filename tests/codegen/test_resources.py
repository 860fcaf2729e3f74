"""Emitted kernels build for Ampere, Hopper and Blackwell, fit in shared memory and do not spill; no GPU needed."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]


def test_golden_kernels_fit(compiler_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.codegen.resources"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=compiler_environment)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = Counter(re.findall(r" (\d+) +\d+ B shared .* registers", done.stdout))
    assert set(kernels) == {"80", "90", "100"}
    assert min(kernels.values()) >= 9


def test_traced_kernels_fit(compiler_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.codegen.resources", "--trace", "--only", "two_pool"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=compiler_environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Counter(re.findall(r" (\d+) +\d+ B shared .* registers", done.stdout)) == {"80": 2, "90": 3, "100": 3}
