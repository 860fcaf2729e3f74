"""The emitted file as a script: it passes as emitted, and fails when one line of a kernel is wrong."""

import contextlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusioncc.codegen.reference import reference
from fusioncc.group import Group, Operand
from fusioncc.runtime.load import load
from tests.codegen.cases import Main, group
from tests.codegen.epilogue_cases import ended, rotary
from tests.codegen.golden_cases import golden
from tests.codegen.norm_cases import norms
from tests.shown import one_of_each

GOLDEN = Path(__file__).parent / "golden"
MUTATIONS: dict[str, tuple[str, Callable[[re.Match[str]], str]]] = {
    "store offset": (r"\b(?:out|xy|h)\d?_ptr \+ |\b(?:out|h)\d?_desc\.store\(\[", lambda found: f"{found[0]}1 + "),
    "down offset": (r"\b(y|saved)\d*_ptr \+ ", lambda found: f"{found[0]}1 + "),
    "stride": (r"\bW0?_STRIDE_N=\w+\.stride\(1\)", lambda found: f"{found[0]} // 2"),
    "vendor product": (r"(?m)^ +multiply\(x, ", lambda found: f"{found[0]}1.05 * "),
    "scale": (r"\bSCALE\d*=([-\d.]+)", lambda found: f"{found[0]} * 1.05"),
    "rotation": (r"join\(hi \* -1\.0, lo\)", lambda found: "join(hi, lo)"),
    "repetition": (r"\bZ0_N=[\w.\[\]]+", lambda found: f"{found[0]} // 2"),
    "repeated rows": (r"\bZ\d?_M=z\S*\.shape\[0\]", lambda found: f"{found[0]} // 2"),
    "norm": (r" / K \+ EPSILON", lambda found: " / K * 1.1 + EPSILON"),
    "squares": (r"squares \+= (\w+) \* \w+", lambda found: f"squares = {found[1]} * {found[1]}"),
    "weight": (r"= \(?(?:wide|x) \* g\[", lambda found: f"{found[0][:-2]}1.1 * g["),
}
"""Name -> pattern of the place, and what to write there. The interpreter follows any address, so no mutation may lead
out of the operands or of the guards around the buffers."""
NOT_INTERPRETED = {"inline_int8", "inline_residual"}
"""Modules that call libdevice, which the interpreter does not have, or read a tensor of no dimension, which kernels
round to the dtype of their operands and eager only on a card."""
PLAIN = {"horizontal_rotary", "horizontal_norm_unweighted"}
"""Modules of ``horizontal`` without a branch."""
WITHOUT = {
    "down offset": {
        name
        for name in golden()
        if not name.startswith(("split", "two_pool", "horizontal", "streams_lora", "streams_bundle"))
        and name != "inline_ragged"
    }
    | PLAIN,
    "scale": {name for name in golden() if name.startswith("concat")} | {"streams_plain"} | PLAIN,
    "store offset": {"streams_plain"},
    "stride": {name for name in golden() if name.startswith(("streams", "k_concat"))},
    "vendor product": {name for name in golden() if not name.startswith("streams")},
    "rotation": {name for name in golden() if "rotary" not in name},
    "repetition": {name for name in golden() if "rotary" not in name},
    "repeated rows": {name for name in golden() if not re.search(r"Z\d?_M=", (GOLDEN / f"{name}.py").read_text())},
    "norm": set(golden()) - set(norms()),
    "squares": set(golden()) - set(norms()),
    "weight": set(golden()) - {name for name, (value, _, _) in norms().items() if value.norm and value.norm.weight},
}
"""Modules that have no such place: most ``inline`` kernels write no down product; mains of ``streams`` and ``k_concat``
are the vendor's."""


@pytest.mark.parametrize(
    "name",
    one_of_each(golden(), lambda name: (name.split("_")[0], *(each in name for each in ("tma", "swiglu", "norm")))),
)
def test_right_as_emitted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(GOLDEN / f"{name}.py"), run_name="__main__")
    said = "not checked: on a CPU" if name in NOT_INTERPRETED else "right for M="
    assert capsys.readouterr().out.startswith(f"{name}: {said}")


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        pytest.param(name, each, marks=() if (name, each) == ("inline_mlp", "scale") else pytest.mark.exhaustive)
        for name in golden()
        for each in MUTATIONS
        if name not in WITHOUT[each] | NOT_INTERPRETED
    ],
)
def test_a_mutation_is_caught(name: str, mutation: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"{name}: WRONG: "):
        runpy.run_path(str(mutated(name, mutation, tmp_path)), run_name="__main__")


WIDE: dict[str, tuple[Group, int]] = {
    "heads": (rotary(group(300, 256, Main(4096, ())), 0, head=256, rows=100), 256),
    "columns that repeat": (
        ended(
            group(300, 256, Main(2400, ())),
            (0,),
            ("mul.Tensor", (0, 1), "bf16"),
            reads=(Operand("scale", (1, 96), (96, 1), "bf16"),),
        ),
        96,
    ),
}
"""Groups and of how many columns their results have a multiple, more than a few tiles have."""


@pytest.mark.parametrize("name", WIDE)
def test_a_few_tiles_have_whole_heads_and_repetitions(name: str) -> None:
    value, columns = WIDE[name]
    module = load("wide", reference(value, name="wide", tier="fp32").source)
    (result,) = module.eager(*module.draw(0))
    assert result.shape[1] < value.members[0].n and result.shape[1] % columns == 0


@pytest.mark.exhaustive
def test_exit_codes_of_a_fresh_process(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "PYTHONPATH")}
    for path, code in ((GOLDEN / "inline_mlp.py", 0), (mutated("inline_mlp", "scale", tmp_path), 1)):
        command = [sys.executable, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == code, done.stderr
        assert len((done.stdout + done.stderr).splitlines()) == 1


def mutated(name: str, mutation: str, folder: Path) -> Path:
    pattern, change = MUTATIONS[mutation]
    source, count = re.subn(pattern, change, (GOLDEN / f"{name}.py").read_text(), count=1)
    assert count == 1, "nothing to mutate"
    path = folder / f"{name}.py"
    path.write_text(source)
    return path
