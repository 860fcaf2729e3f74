"""RMSNorm in front of the projections of a Llama-8B layer, in bf16, every column in one run, with and without adapters.

    python benchmarks/norms.py --out benchmarks/results/norms.json

``qkv`` is the norm with q, k and v behind it, ``gate_up`` with ``silu(gate) * up``. ``apart`` is fusioncc with
``norms="never"``, ``auto`` with its default, ``normed`` with ``always`` and a kind that has such tiles: ``concat``, or
with adapters ``inline``. Microseconds, CUDA-graph replay, weights rotated out of L2, median and half the interquartile
range; the columns of a row take turns. Errors are RMS relative to fp64 on the card.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import captured, facts, interleaved_us, sets_needed

import fusioncc

K = 4096
SITES = {"qkv": (4096, 1024, 1024), "gate_up": (14336, 14336)}
ROWS = (1, 4, 16, 64)
RANKS = (0, 16)
EPS = 1e-5
Member = tuple[torch.Tensor, ...]
Results = tuple[torch.Tensor, ...]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm as Llama has it: squares in fp32, the weight behind the cast."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def product(x: torch.Tensor, w: torch.Tensor, *adapter: torch.Tensor) -> torch.Tensor:
    """A projection; with ``A`` and ``B`` its branch too."""
    out = F.linear(x, w)
    return out + 2.0 * F.linear(F.linear(x, adapter[0]), adapter[1]) if adapter else out


def qkv(x: torch.Tensor, weight: torch.Tensor, members: list[Member]) -> Results:
    """Every projection of the normed rows; a member is ``(W,)`` or ``(W, A, B)``."""
    rows = normed(x, weight)
    return tuple(product(rows, *each) for each in members)


def gate_up(x: torch.Tensor, weight: torch.Tensor, members: list[Member]) -> Results:
    """``silu(gate) * up`` of the normed rows."""
    gate, up = qkv(x, weight, members)
    return (F.silu(gate) * up,)


def operands(m: int, widths: tuple[int, ...], rank: int) -> list[tuple[torch.Tensor, torch.Tensor, list[Member]]]:
    """Sets of x, the norm's weight and the members; enough of them to leave the L2 cold."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).bfloat16()

    def member(n: int) -> Member:
        w = draw(n, K, scale=K**-0.5)
        return (w, draw(rank, K, scale=K**-0.5), draw(n, rank)) if rank else (w,)

    count = sets_needed(2 * K * (sum(widths) + m))
    return [(draw(m, K), 1 + draw(K, scale=0.1), [member(n) for n in widths]) for _ in range(count)]


def row(site: str, m: int, rank: int, names: list[str]) -> dict[str, Any]:
    """One size through every column, timed in turns."""
    layer: Callable[..., Results] = {"qkv": qkv, "gate_up": gate_up}[site]
    sets = operands(m, SITES[site], rank)
    x, weight, members = sets[0]
    exact = layer(x.double(), weight.double(), [tuple(each.double() for each in member) for member in members])
    size = sum(each.square().mean() for each in exact)
    result: dict[str, Any] = {"site": site, "m": m, "rank": rank}
    graphs = {}
    for name in names:
        torch._dynamo.reset()
        norms = {"apart": "never", "auto": "auto", "normed": "always"}.get(name)
        options = {"on_error": "raise", "norms": norms}
        if name == "normed":
            options["schedule"] = "inline" if rank else "concat"
        ours: dict[str, Any] = {"backend": "fusioncc", "options": options} if norms else {}
        function = torch.compile(layer, dynamic=False, **ours)
        with torch.no_grad():
            found = function(x, weight, members)
        error = sum((a.double() - b).square().mean() for a, b in zip(found, exact, strict=True))
        result[f"{name}_error"] = float(f"{(error / size).sqrt().item():.2e}")
        graphs[name] = captured([lambda s=s, function=function: function(*s) for s in sets])
        if norms:
            (group,) = fusioncc.plan_of(function)[0].groups
            result[f"{name}_schedule"] = group.schedule.kind + ", normed" * bool(group.norm is not None)
            result[f"{name}_launches"] = group.after.kernels
            result[f"{name}_tiles"] = str(group.schedule.pools)
    for name, (us, spread) in zip(graphs, interleaved_us(list(graphs.values()), target_ms=60.0), strict=True):
        result[name], result[f"{name}_spread"] = round(us, 2), round(spread, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--columns", default="compile,apart,auto,normed")
    parser.add_argument("--sites", default=",".join(SITES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    arguments = parser.parse_args()
    rows = []
    for site in arguments.sites.split(","):
        for m in map(int, arguments.rows.split(",")):
            for rank in RANKS:
                rows.append(row(site, m, rank, arguments.columns.split(",")))
                print(json.dumps({k: v for k, v in rows[-1].items() if "tiles" not in k}), flush=True)
                body = {**facts(), "unit": "us", "k": K, "rows": rows}
                Path(arguments.out).write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
