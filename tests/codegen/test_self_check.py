"""The emitted file as a script: it passes as emitted, and fails when one line of a kernel is wrong."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.cases import golden

GOLDEN = Path(__file__).parent / "golden"
MUTATIONS = {
    "store offset": (r"out_tile = out_ptr \+ ", "out_tile = out_ptr + 1 + "),
    "stride": (r"( w_tile = .*)W_STRIDE_N", r"\1W_STRIDE_K"),
    "scale": (r"(\n    y0? \*= )", r"\g<1>1.5 * "),
}


@pytest.mark.parametrize("name", golden())
def test_right_as_emitted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(GOLDEN / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{name}: right for M=")


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", golden())
def test_a_mutation_is_caught(name: str, mutation: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"{name}: WRONG: "):
        runpy.run_path(str(mutated(name, mutation, tmp_path)), run_name="__main__")


def test_exit_codes_of_a_fresh_process(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "PYTHONPATH")}
    for path, code in ((GOLDEN / "inline_mlp.py", 0), (mutated("inline_mlp", "scale", tmp_path), 1)):
        command = [sys.executable, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == code, done.stderr
        assert len((done.stdout + done.stderr).splitlines()) == 1


def mutated(name: str, mutation: str, folder: Path) -> Path:
    pattern, replacement = MUTATIONS[mutation]
    source, count = re.subn(pattern, replacement, (GOLDEN / f"{name}.py").read_text(), count=1)
    assert count == 1, "nothing to mutate"
    path = folder / f"{name}.py"
    path.write_text(source)
    return path
