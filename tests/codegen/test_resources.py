"""Emitted kernels build for Ampere, Hopper and Blackwell, fit in shared memory and do not spill; no GPU needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_golden_kernels_fit(capability: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.codegen.resources", "--capability", str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("registers") >= 9
