"""Several processes at once, and killed ones: nothing is read that was not written whole, nothing that was written is
lost, and no lock outlives its process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusioncc.errors import TuningError
from fusioncc.tuning import folder
from fusioncc.tuning.database import Database
from fusioncc.tuning.folder import LOCK
from tests.tuning.entries import DATE, DEVICE, entry, key
from tests.tuning.tuning_processes import LEAST

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def killed(below: Path, kills: int, seed: int) -> None:
    command = [sys.executable, "-m", "tests.tuning.processes", str(below / "tuned"), str(kills), str(seed)]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    stored, lost, wrong, damaged, lock_s, left, torch = json.loads(result.stdout)
    assert stored >= 3, result.stderr
    assert (lost, wrong, damaged, torch) == ([], [], 0, False), result.stderr
    assert lock_s < 1.0
    kept = Database(below / "tuned")
    assert len(kept.prune(DATE)) == left, "what killed writers left goes with the next prune"
    assert len(kept.listed().entries) == 3


@pytest.mark.exhaustive
def test_ten_kills_among_eight_processes(tmp_path: Path) -> None:
    killed(tmp_path, 10, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 3])
def test_a_hundred_kills_among_eight_processes(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, 100, seed)


def test_a_lock_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Database(tmp_path / "tuned")
    kept.folder.path.mkdir(mode=0o700)
    script = (
        "import sys, time, filelock; lock = filelock.FileLock(sys.argv[1])\n"
        "with lock: print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(kept.folder.path / LOCK)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with monkeypatch.context() as patched, pytest.raises(TuningError, match="was locked for"):
            patched.setattr(folder, "WAIT_S", 0.05)
            with kept.folder.locked():
                pass
        holder.kill()
    began = time.perf_counter()
    assert kept.store(entry(), DEVICE) == "stored"
    assert time.perf_counter() - began < 5.0
    assert kept.find(key(), DEVICE) == entry()


def killed_tuning(below: Path, kills: int, seed: int) -> None:
    command = [sys.executable, "-m", "tests.tuning.tuning_processes", str(below / "tuned"), str(kills), str(seed)]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    done, lost, wrong, damaged, lock_s, stuck, again, files, torch = json.loads(result.stdout)
    assert done >= files >= LEAST, result.stderr
    assert (lost, wrong, damaged, stuck, torch) == ([], [], 0, [], False), result.stderr
    assert again == 0, "what one process has found out, no other searches for"
    assert lock_s < 1.0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_kills_among_eight_that_tune(tmp_path: Path, seed: int) -> None:
    killed_tuning(tmp_path, 100, seed)


@pytest.mark.exhaustive
def test_ten_kills_among_eight_that_tune(tmp_path: Path) -> None:
    killed_tuning(tmp_path, 10, seed=3)
