"""Bundles of a Llama-8B layer in bf16, every column in one run: q/k/v and gate/up, with and without adapters.

    python benchmarks/bundles.py --out benchmarks/results/bundles.json

``concatenated`` is one vendor GEMM over the concatenated weights, without adapters: what a bundle can hope for. Other
columns get the products (and ``2 * linear(linear(x, A), B)`` on each) apart, as a model has them. Microseconds,
CUDA-graph replay, weights rotated out of L2, median and half the interquartile range; the columns of a row take turns.
Errors are the largest RMS of any output relative to fp64 on the card.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.exc
import torch.nn.functional as F
from timing import captured, facts, interleaved_us, on_parameters, sets_needed

import fusioncc
from fusioncc.packing import PACKED

K = 4096
BUNDLES = {"q/k/v": (4096, 1024, 1024), "gate/up": (14336, 14336)}
ROWS = (1, 16, 64, 512, 2048, 8192)
REFUSALS = (fusioncc.FusionError, torch._dynamo.exc.BackendCompilerFailed, torch._inductor.exc.InductorError)
Weights = tuple[tuple[torch.Tensor, ...], ...]


def bundle(x: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, ...]:
    """Every product of the bundle; a member is ``(W,)`` or ``(W, A, B)``."""
    outputs = []
    for w, *adapter in weights:
        out = F.linear(x, w)
        outputs.append(out + 2.0 * F.linear(F.linear(x, adapter[0]), adapter[1]) if adapter else out)
    return tuple(outputs)


def operands(m: int, widths: tuple[int, ...], rank: int) -> list[tuple[torch.Tensor, Weights, torch.Tensor]]:
    """Sets of X, the weights, and the concatenated weights; enough of them to leave the L2 cold."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).bfloat16()

    def member(n: int) -> tuple[torch.Tensor, ...]:
        w = draw(n, K, scale=K**-0.5)
        return (w, draw(rank, K, scale=K**-0.5), draw(n, rank)) if rank else (w,)

    sets = []
    for _ in range(sets_needed(2 * K * (sum(widths) + m))):
        weights = tuple(member(n) for n in widths)
        sets.append((draw(m, K), weights, torch.cat([each[0] for each in weights])))
    return sets


def columns(names: list[str]) -> dict[str, Callable[[], Callable[..., Any]]]:
    """How each column is made; compiled anew for each row."""
    every: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: bundle,
        "compile": lambda: torch.compile(bundle, dynamic=False),
        "max_autotune": lambda: torch.compile(bundle, dynamic=False, mode="max-autotune-no-cudagraphs"),
        "fusioncc": lambda: torch.compile(bundle, backend="fusioncc", dynamic=False, options={"on_error": "raise"}),
    }

    def forced(kind: str) -> Callable[[], Callable[..., Any]]:
        options = {"on_error": "raise", "schedule": kind, "pack_weights": kind in PACKED}
        made = lambda: torch.compile(bundle, backend="fusioncc", dynamic=False, options=options)
        return (lambda: on_parameters(made())) if kind in PACKED else made

    return {name: every.get(name) or forced(name) for name in names}


def row(label: str, m: int, rank: int, names: list[str]) -> dict[str, Any]:
    """One bundle at one M through every column, timed in turns."""
    sets = operands(m, BUNDLES[label], rank)
    x, weights, _ = sets[0]
    exact = bundle(x.double(), tuple(tuple(each.double() for each in member) for member in weights))
    result: dict[str, Any] = {"bundle": label, "m": m, "rank": rank}
    graphs = {"concatenated": captured([lambda s=s: F.linear(s[0], s[2]) for s in sets])}
    for name, make in columns(names).items():
        torch._dynamo.reset()
        started = time.time()
        function = make()
        try:
            with torch.no_grad():
                outputs = function(x, weights)
        except REFUSALS as error:
            result[f"{name}_refused"] = str(error).splitlines()[0]
            continue
        error = max(((o.double() - e).norm() / e.norm()).item() for o, e in zip(outputs, exact, strict=True))
        result[f"{name}_error"] = float(f"{error:.2e}")
        result[f"{name}_compile_s"] = round(time.time() - started, 1)
        graphs[name] = captured([lambda f=function, s=s: f(s[0], s[1]) for s in sets])
        if name == "fusioncc":
            plans = fusioncc.plan_of(function)
            groups = [group for plan in plans for group in plan.groups]
            result["schedule"] = groups[0].schedule.kind if groups else "none"
            result["launches"] = sum(group.after.kernels for group in groups)
            result["predicted"] = {c.kind: c.predicted_us for group in groups for c in group.candidates}
            result["plan"] = str([group.schedule.pools for group in groups])
    timed = interleaved_us(list(graphs.values()), target_ms=120.0)
    for name, (us, spread) in zip(graphs, timed, strict=True):
        result[name], result[f"{name}_spread"] = round(us, 2), round(spread, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--columns", default="eager,compile,max_autotune,fusioncc")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--ranks", default="16,0")
    parser.add_argument("--bundles", default=",".join(BUNDLES))
    arguments = parser.parse_args()
    names = arguments.columns.split(",")
    rows: list[dict[str, Any]] = []
    for label in arguments.bundles.split(","):
        for rank in map(int, arguments.ranks.split(",")):
            for m in map(int, arguments.rows.split(",")):
                rows.append(row(label, m, rank, names))
                shown = "  ".join(f"{name} {rows[-1].get(name)}" for name in ("concatenated", *names))
                print(label, m, rank, shown, rows[-1].get("schedule"), rows[-1].get("fusioncc_error"), flush=True)
                body = {**facts(), "unit": "us", "columns": names, "rows": rows}
                Path(arguments.out).write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
