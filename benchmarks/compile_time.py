"""How long it takes to compile four layers of Llama-8B width with adapters on all seven projections, in seconds.

    python benchmarks/compile_time.py --out benchmarks/results/compile_time.json

From the call of the compiled model to its first result, each column in a process of its own with its own empty folders
for the caches of Inductor, Triton and fusioncc, or with those that an earlier column left:

    compile          torch.compile
    untuned          fusioncc, nothing measured but what ships
    quick_cold       fusioncc, autotune="quick"
    quick_warm       the same with what quick_cold measured; the other caches are empty
    quick_kept       the same with all that quick_cold left
    compile_kept     torch.compile with all that compile left
    max_autotune     torch.compile, mode="max-autotune"

The file is written after each column.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timing import facts

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FUSIONCC_CACHE_DIR")
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """How a model is compiled: the options of fusioncc (None: torch.compile) or the mode; and of which earlier column
    which caches are kept."""

    options: dict[str, Any] | None = None
    mode: str | None = None
    behind: str = ""
    kept: tuple[str, ...] = ()


QUICK = {"autotune": "quick", "on_error": "raise"}
COLUMNS = {
    "compile": Column(),
    "untuned": Column({"on_error": "raise"}),
    "quick_cold": Column(QUICK),
    "quick_warm": Column(QUICK, behind="quick_cold", kept=CACHES[2:]),
    "quick_kept": Column(QUICK, behind="quick_cold", kept=CACHES),
    "compile_kept": Column(behind="compile", kept=CACHES),
    "max_autotune": Column(mode="max-autotune-no-cudagraphs"),
}


def folders(name: str, below: Path) -> dict[str, str]:
    """The folders of the caches of a column, by the variable that names them. What it keeps is a copy, so that each
    column behind another begins with the same."""
    from shutil import copytree

    column, found = COLUMNS[name], {}
    for cache in CACHES:
        folder = below / name / cache.lower()
        if cache in column.kept:
            copytree(below / column.behind / cache.lower(), folder)
        else:
            folder.mkdir(parents=True)
        folder.chmod(0o700)
        found[cache] = str(folder)
    return found


def measured(
    names: list[str], below: Path, run: Callable[[str, dict[str, str]], Row], told: Callable[[Row], None]
) -> Row:
    """Each column in turn, ``run`` with its folders; ``told`` of what is known after each. One behind a column that is
    not there, or failed, is left out."""
    found: Row = {}
    for name in names:
        behind = COLUMNS[name].behind
        if behind and "seconds" not in found.get(behind, {}):
            found[name] = {"failed": f"{behind} was not measured before it"}
        else:
            found[name] = run(name, folders(name, below))
        told(found)
    return found


def compiled(name: str, arguments: argparse.Namespace) -> Row:
    """Build the model, compile it as the column says, and time the first result, in this process."""
    import torch
    from llama_lora import adapted, build, small

    device = "cpu" if arguments.dry else "cuda"
    batch, length = map(int, arguments.input.split("x"))
    base = small(arguments.layers) if arguments.dry else build(arguments.layers)
    model = adapted(base, arguments.rank, arguments.fp32_adapters)
    x = torch.randn(batch, length, base.config.hidden_size, device=device, dtype=torch.bfloat16)
    model = torch.compile(model, dynamic=False, **door(COLUMNS[name], dry=arguments.dry))
    with torch.no_grad():
        began = time.perf_counter()
        model(inputs_embeds=x, use_cache=False)
        if not arguments.dry:
            torch.cuda.synchronize()
        row: Row = {"seconds": round(time.perf_counter() - began, 2)}
    if COLUMNS[name].options is not None:
        import fusioncc

        groups = [group for plan in fusioncc.plan_of(model) for group in plan.groups]
        row["kinds"] = [group.schedule.kind for group in groups]
        row["measured"] = sum(group.why.startswith("measured") and "shipped" not in group.why for group in groups)
    return row


def door(column: Column, *, dry: bool) -> dict[str, Any]:
    """The arguments of ``torch.compile``; without Inductor on a CPU."""
    if column.options is not None:
        rest = {"rest": "eager"} if dry else {}
        return {"backend": "fusioncc", "options": {**column.options, **rest}}
    return {"backend": "aot_eager"} if dry else {"mode": column.mode}


def in_process(name: str, caches: dict[str, str], arguments: list[str], seconds: float) -> Row:
    """What a process of its own says of a column."""
    command = [sys.executable, __file__, *arguments, "--column", name]
    try:
        ended = subprocess.run(
            command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {seconds:g} s"}
    if ended.returncode:
        return {"failed": f"its process ended with {ended.returncode}"}
    row: Row = json.loads(ended.stdout.splitlines()[-1])
    return row


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--fp32-adapters", action="store_true")
    parser.add_argument("--input", default="64x1", help="sequences and their length")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a column")
    parser.add_argument(
        "--dry", action="store_true", help="on a CPU: a small model without Inductor; times mean nothing"
    )
    parser.add_argument("--column", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if not (arguments.column or arguments.out):
        parser.error("--out is needed")
    if arguments.column:
        print(json.dumps(compiled(arguments.column, arguments)))
        return
    rest = ["--layers", str(arguments.layers), "--rank", str(arguments.rank), "--input", arguments.input]
    rest += ["--fp32-adapters"] * arguments.fp32_adapters + ["--dry"] * arguments.dry
    body: Row = {"dry": True} if arguments.dry else facts()
    body |= {"unit": "s", "layers": arguments.layers, "rank": arguments.rank, "input": arguments.input}

    def told(found: Row) -> None:
        name, row = list(found.items())[-1]
        print(json.dumps({"column": name, **row}), flush=True)
        rows = [{"column": name, **row} for name, row in found.items()]
        Path(arguments.out).write_text(json.dumps({**body, "rows": rows}, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as below:
        measured(
            arguments.columns.split(","),
            Path(below),
            lambda name, caches: in_process(name, caches, rest, arguments.limit),
            told,
        )


if __name__ == "__main__":
    main()
