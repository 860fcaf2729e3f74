"""One LoRA linear layer in bf16, every column in one run: eager, torch.compile, max-autotune, the GEMM alone, fusioncc
as it chooses, and every schedule that can be forced by name.

    python benchmarks/lora_linear.py --out benchmarks/results/lora_linear.json

``linear(x, W) + 2 * linear(linear(x, A), B)``; microseconds, CUDA-graph replay, weights rotated out of L2, median and
half the interquartile range; the columns of a row take turns, so that all of them meet the same clocks. Errors are RMS
relative to fp64 on the card.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bundles import REFUSALS
from timing import Captured, captured, facts, interleaved_us, on_parameters, sets_needed

import fusioncc
from fusioncc.packing import PACKED
from fusioncc.schedule import SCHEDULES

SHAPES = [
    (1, 4096, 28672, 8),
    (16, 4096, 28672, 8),
    (64, 4096, 28672, 8),
    (256, 4096, 28672, 8),
    (64, 4096, 4096, 16),
    (64, 4096, 6144, 64),
    (2048, 4096, 4096, 16),
    (8192, 4096, 14336, 16),
]
FORCED = tuple(kind for kind in SCHEDULES if kind not in ("library", "packed", "merged"))
"""Schedules by name. ``packed`` has no form for a single product, and ``merged`` none in a captured graph, where it
runs unmerged: a replay could not see that a weight changed. Outside one it is the GEMM alone."""
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The layer as PEFT writes it."""
    return F.linear(x, w) + F.linear(F.linear(x, a), b) * 2.0


def alone(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same layer without its adapter."""
    return F.linear(x, w)


def operands(m: int, k: int, n: int, r: int) -> list[Operands]:
    """Random operand sets, enough of them to leave the L2 cold."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).bfloat16()

    count = sets_needed(2 * (k * n + m * k))
    return [(draw(m, k), draw(n, k, scale=k**-0.5), draw(r, k, scale=k**-0.5), draw(n, r)) for _ in range(count)]


def columns(names: list[str]) -> dict[str, Callable[[], Callable[..., torch.Tensor]]]:
    """How each column is made; compiled anew for each shape."""
    every = {
        "gemm_alone": lambda: alone,
        "eager": lambda: lora,
        "compile": lambda: torch.compile(lora, dynamic=False),
        "fusioncc": lambda: torch.compile(lora, backend="fusioncc", dynamic=False, options={"on_error": "raise"}),
        "max_autotune": lambda: torch.compile(lora, dynamic=False, mode="max-autotune-no-cudagraphs"),
    }
    for kind in FORCED:
        asked = {"pack_weights": True, "rest": "eager"} if kind in PACKED else {}
        options = {"on_error": "raise", "schedule": kind, **asked}
        made = lambda options=options: torch.compile(lora, backend="fusioncc", dynamic=False, options=options)
        every[kind] = (lambda made=made: on_parameters(made())) if kind in PACKED else made
    return {name: every[name] for name in names}


def row(shape: tuple[int, int, int, int], names: list[str]) -> dict[str, Any]:
    """One shape through every column, timed in turns."""
    sets = operands(*shape)
    x, w, a, b = sets[0]
    exact = x.double() @ w.double().T + 2.0 * (x.double() @ a.double().T) @ b.double().T
    size = exact.square().mean().sqrt()
    result: dict[str, Any] = {"shape": shape}
    graphs: dict[str, Captured] = {}
    for name, make in columns(names).items():
        torch._dynamo.reset()
        started = time.time()
        function = make()
        try:
            with torch.no_grad():
                error = (function(*sets[0]).double() - exact).square().mean().sqrt() / size
        except REFUSALS as refusal:
            result[f"{name}_refused"] = str(refusal).splitlines()[0]
            continue
        graphs[name] = captured([lambda o=o, function=function: function(*o) for o in sets])
        result[f"{name}_error"] = float(f"{error.item():.2e}")
        result[f"{name}_compile_s"] = round(time.time() - started, 1)
        if name == "fusioncc":
            (plan,) = fusioncc.plan_of(function)
            result["schedule"], result["insertion"] = plan.groups[0].schedule.kind, plan.groups[0].insertion
            result["predicted"] = {c.kind: c.predicted_us for c in plan.groups[0].candidates}
            result["plan"] = str(plan.groups[0].schedule.pools)
    timed = interleaved_us(list(graphs.values()), target_ms=150.0)
    for name, (us, spread) in zip(graphs, timed, strict=True):
        result[name], result[f"{name}_spread"] = round(us, 2), round(spread, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    every = ("gemm_alone", "eager", "compile", "max_autotune", "fusioncc", *FORCED)
    parser.add_argument("--columns", default=",".join(every))
    parser.add_argument("--shapes", default="", help="indices of the shapes to run, for example 0,4")
    arguments = parser.parse_args()
    shapes = [SHAPES[int(at)] for at in arguments.shapes.split(",") if at] or SHAPES
    names = arguments.columns.split(",")
    torch._dynamo.config.recompile_limit = 64  # each column compiles the one function anew
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        rows.append(row(shape, names))
        shown = "  ".join(f"{name} {rows[-1].get(name)}" for name in names)
        print(shape, shown, *(rows[-1].get(fact) for fact in ("schedule", "insertion", "fusioncc_error")), flush=True)
        body = {**facts(), "unit": "us", "columns": names, "rows": rows}
        Path(arguments.out).write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
