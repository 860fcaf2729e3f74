"""Gate and up with SiLU·mul behind them in bf16, every column in one run, with and without adapters.

    python benchmarks/gate_up.py --out benchmarks/results/gate_up.json

``silu(gate(x)) * up(x)``, of which ``one_gemm`` is one vendor GEMM over both weights: it computes less. ``fusioncc``
has its default options, ``apart`` ``epilogues="never"``; ``ended`` forces the kind that ends its tiles: ``concat`` in
one launch, or ``split`` where there are adapters. Microseconds, CUDA-graph replay, weights rotated out of L2, median
and half the interquartile range; the columns of a row take turns. Errors are RMS relative to fp64 on the card.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bundles import REFUSALS
from timing import captured, facts, interleaved_us, sets_needed

import fusioncc

K = 4096
WIDTHS = (12288, 14336)
ROWS = (1, 16, 64, 256, 1024, 8192)
RANKS = (0, 16)
Pair = tuple[torch.Tensor, ...]


def gated(x: torch.Tensor, gate: Pair, up: Pair) -> torch.Tensor:
    """The layer; a member is ``(W,)`` or ``(W, A, B)``."""

    def product(w: torch.Tensor, *adapter: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, w)
        return out + 2.0 * F.linear(F.linear(x, adapter[0]), adapter[1]) if adapter else out

    return F.silu(product(*gate)) * product(*up)


def operands(m: int, n: int, rank: int) -> list[tuple[torch.Tensor, Pair, Pair, torch.Tensor]]:
    """Sets of X, gate, up and both weights as one; enough of them to leave the L2 cold."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).bfloat16()

    def member() -> Pair:
        w = draw(n, K, scale=K**-0.5)
        return (w, draw(rank, K, scale=K**-0.5), draw(n, rank)) if rank else (w,)

    sets = []
    for _ in range(sets_needed(2 * K * (2 * n + m))):
        gate, up = member(), member()
        sets.append((draw(m, K), gate, up, torch.cat([gate[0], up[0]])))
    return sets


def columns(names: list[str], rank: int) -> dict[str, Callable[[], Callable[..., torch.Tensor]]]:
    """How each column is made; compiled anew for each row."""

    def ours(**options: Any) -> Callable[[], Callable[..., torch.Tensor]]:
        asked = {"on_error": "raise", **options}
        return lambda: torch.compile(gated, backend="fusioncc", dynamic=False, options=asked)

    every = {
        "eager": lambda: gated,
        "compile": lambda: torch.compile(gated, dynamic=False),
        "max_autotune": lambda: torch.compile(gated, dynamic=False, mode="max-autotune-no-cudagraphs"),
        "apart": ours(epilogues="never"),
        "fusioncc": ours(),
        "ended": ours(epilogues="always", schedule="split" if rank else "concat"),
    }
    return {name: every[name] for name in names}


def row(m: int, n: int, rank: int, names: list[str]) -> dict[str, Any]:
    """One size through every column, timed in turns."""
    sets = operands(m, n, rank)
    x, gate, up, _ = sets[0]
    exact = gated(x.double(), *(tuple(each.double() for each in pair) for pair in (gate, up)))
    size = exact.square().mean().sqrt()
    result: dict[str, Any] = {"m": m, "n": n, "rank": rank}
    graphs = {"one_gemm": captured([lambda s=s: F.linear(s[0], s[3]) for s in sets])}
    for name, make in columns(names, rank).items():
        torch._dynamo.reset()
        function = make()
        try:
            with torch.no_grad():
                error = (function(x, gate, up).double() - exact).square().mean().sqrt() / size
        except REFUSALS as refusal:
            result[f"{name}_refused"] = str(refusal).splitlines()[0]
            continue
        graphs[name] = captured([lambda s=s, function=function: function(*s[:3]) for s in sets])
        result[f"{name}_error"] = float(f"{error.item():.2e}")
        if name in ("apart", "fusioncc", "ended"):
            (group,) = fusioncc.plan_of(function)[0].groups
            result[f"{name}_schedule"] = group.schedule.kind + ", ended" * bool(group.epilogues)
            result[f"{name}_launches"] = group.after.kernels
            result[f"{name}_tiles"] = str(group.schedule.pools)
    timed = interleaved_us(list(graphs.values()), target_ms=100.0)
    for name, (us, spread) in zip(graphs, timed, strict=True):
        result[name], result[f"{name}_spread"] = round(us, 2), round(spread, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    every = ("eager", "compile", "apart", "fusioncc", "ended")
    parser.add_argument("--columns", default=",".join(every), help="also max_autotune")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    arguments = parser.parse_args()
    torch._inductor.config.max_autotune_gemm_backends = "TRITON,ATEN"
    rows = []
    for n in map(int, arguments.widths.split(",")):
        for m in map(int, arguments.rows.split(",")):
            for rank in RANKS:
                rows.append(row(m, n, rank, arguments.columns.split(",")))
                print(json.dumps(rows[-1]), flush=True)
                Path(arguments.out).write_text(
                    json.dumps({**facts(), "unit": "us", "k": K, "rows": rows}, indent=1) + "\n"
                )


if __name__ == "__main__":
    main()
