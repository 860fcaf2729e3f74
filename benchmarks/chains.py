"""Chains of elementwise ops and row reductions, every column in one run: eager, torch.compile, one kernel of fusioncc
in each of two tiers, and a plain copy of as many bytes.

    python benchmarks/chains.py --out benchmarks/results/chains.json
    TRITON_INTERPRET=1 python benchmarks/chains.py --dry --out dry.json    # all but the times, small, on a CPU

Microseconds, CUDA-graph replay, median and half the interquartile range; the columns of a row take turns. Inputs come
from memory, rotated out of L2; rows that say so get the same inputs in each call, which the cache holds as far as it is
large enough. The copy is the fastest of several and moves as many bytes as all inputs and outputs have. Errors are the
largest RMS of any output relative to fp64 on the card. Kernels are counted by the profiler, and so are those of three
executions of an FFN of six kernels.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from bundles import REFUSALS
from chain_cases import BY_NAME, CASES, Case, Tensors, as_tuple, ffn, ffn_inputs
from copy_ceiling import COPIES, source_of
from tables import table
from timing import captured, facts, interleaved_us, sets_needed

import fusioncc

Row = dict[str, Any]
Function = Callable[..., Any]
MIB = 1 << 20
COLUMNS = ("eager", "compile", "fusioncc", "fusioncc_eager")
"""What is timed unless asked otherwise; ``max_autotune`` is there on request."""
TIERS = {"fusioncc": "fp32", "fusioncc_eager": "eager"}
FFN, TINY_FFN = (1024, 4096, 12288), (8, 32, 64)
"""Rows, hidden and inner size."""
EXECUTIONS = 3


def settings() -> None:
    """What compiles alike in every process of a run: the cache of compiled kernels is shared, but not that of choices
    among them, which a busy card would have made."""
    torch._inductor.config.autotune_local_cache = False
    torch._inductor.config.compile_threads = 1
    torch._dynamo.config.recompile_limit = 64  # cases share functions, and columns compile each anew


def made(name: str, function: Function) -> Function:
    """A function as a column runs it; compiled at the first call."""
    if name == "eager":
        return function
    if name in TIERS:
        return fusioncc.optimize(
            function, rest="eager", chains="always", numerics=TIERS[name], on_error="raise", schedule="library"
        )
    if name not in ("compile", "max_autotune"):
        raise SystemExit(f"no column {name}; there are {', '.join(COLUMNS)}, max_autotune")
    mode = "max-autotune-no-cudagraphs" if name == "max_autotune" else None
    compiled: Function = torch.compile(function, dynamic=False, mode=mode)
    return compiled


def drawn(case: Case, device: str, seed: int = 0) -> Tensors:
    """Inputs of a case; on a CPU of its tiny size."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).bfloat16() if shape else draw(1)[0].clone()

    return case.inputs(draw, case.size if device == "cuda" else case.tiny)


def prepare(case: Case, names: Sequence[str], device: str) -> tuple[dict[str, Function], Row]:
    """Each column of a case, compiled and found to be what it claims; and what is known of the case without a time."""
    given = drawn(case, device)
    exact = case.exact(given)
    moved = sum(tensor.nbytes for tensor in (*given, *case.outputs(given)))
    known: Row = {"case": case.name, "label": case.label, "copied_bytes": moved}
    functions: dict[str, Function] = {}
    for name in names:
        function = made(name, case.function)
        try:
            with torch.no_grad():
                outputs = as_tuple(function(*given))
        except REFUSALS as refusal:
            known[f"{name}_refused"] = str(refusal).splitlines()[0]
            continue
        if name in TIERS and (refused := of_plan(function, known)):
            known[f"{name}_refused"] = refused
            continue
        functions[name] = function
        known[f"{name}_error"] = float(f"{farthest(outputs, exact):.3e}")
    return functions, known


def farthest(outputs: Tensors, exact: Tensors) -> float:
    """The largest error of an output, RMS relative to what is exact."""
    return max(float((o.double() - e).norm() / e.norm()) for o, e in zip(outputs, exact, strict=True))


def of_plan(function: Function, known: Row) -> str:
    """Why a compiled function is not one kernel; else its bytes and its kernel are noted."""
    (plan,) = fusioncc.plan_of(function)
    whole = len(plan.chains) == 1 and plan.chains[0].after.bytes == known["copied_bytes"]
    if not whole or not plan.chains[0].insertion:
        reasons = [each.reason for each in plan.rejections] + [each.why for each in plan.chains] + [plan.fallback]
        return next(filter(None, reasons), f"{len(plan.chains)} chains")
    (chain,) = plan.chains
    known |= {
        f"{at}_mib": round(cost.bytes / MIB, 4) for at, cost in (("before", chain.before), ("after", chain.after))
    }
    known |= {"kernel": chain.kernel, "predicted_us": round(chain.after_us, 2)}
    return ""


def timed(case: Case, functions: dict[str, Function], moved: int, cached: bool) -> Row:
    """The times of a case's columns and of the copies, which take turns."""
    read = sum(tensor.nbytes for tensor in drawn(case, "cuda"))
    count = 1 if cached else sets_needed(read)
    sets = [drawn(case, "cuda", seed) for seed in range(count)]
    sources = [source_of(moved, "cuda") for _ in range(1 if cached else sets_needed(moved // 2))]
    again = 4 if cached else 1
    graphs = {name: captured([lambda s=s, f=f: f(*s) for s in sets] * again) for name, f in functions.items()}
    copies = {name: captured([lambda s=s, f=f: f(s) for s in sources] * again) for name, f in COPIES.items()}
    taken = interleaved_us([*graphs.values(), *copies.values()])
    row: Row = {}
    for name, (us, spread) in zip(graphs, taken, strict=False):
        row[name], row[f"{name}_spread"] = round(us, 2), round(spread, 2)
    way, (us, spread) = min(zip(copies, taken[len(graphs) :], strict=True), key=lambda each: each[1][0])
    row |= {"copy": round(us, 2), "copy_spread": round(spread, 2), "copy_way": way}
    row["copy_gbs"] = round(moved / us / 1000)
    return row | {f"{name}_of_copy_percent": round(100 * row["copy"] / row[name], 1) for name in graphs}


def kernels(function: Function, given: Tensors, times: int = 1) -> list[str]:
    """Names of the kernels that some executions launch, in order; none on a CPU."""
    with torch.no_grad(), torch.profiler.profile() as profiler:
        for _ in range(times):
            function(*given)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    launched = sorted((each for each in events if each.get("cat") == "kernel"), key=lambda each: each["ts"])
    return [each["name"] for each in launched]


def launches(device: str) -> Row:
    """Kernels of some executions of the FFN, whose GEMMs the vendor's library computes: plain, and with one kernel for
    SiLU and mul."""
    generator = torch.Generator(device).manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, device=device).bfloat16()
    given = ffn_inputs(draw, *(FFN if device == "cuda" else TINY_FFN))
    fused = made("fusioncc", ffn)
    with torch.no_grad():
        exact = ffn(*(each.double() for each in given))
        error = {"plain_error": farthest((ffn(*given),), (exact,)), "fused_error": farthest((fused(*given),), (exact,))}
    (plan,) = fusioncc.plan_of(fused)
    plain, after = kernels(ffn, given, EXECUTIONS), kernels(fused, given, EXECUTIONS)
    once = {"plain_kernels": plain[: len(plain) // EXECUTIONS], "fused_kernels": after[: len(after) // EXECUTIONS]}
    chains = [each.kernel for each in plan.chains if each.insertion]
    return {"executions": EXECUTIONS, "plain": len(plain), "fused": len(after), "chains": chains, **once, **error}


def note(counted: Row) -> str:
    """A sentence about the FFN for the table."""
    return (
        f"{counted['executions']} executions of an FFN (gate, up, SiLU, mul, down, residual add) launch "
        f"{counted['plain']} kernels plain and {counted['fused']} through fusioncc."
    )


def prime(name: str, names: Sequence[str]) -> None:
    """Compile a case in a process of its own, for the caches."""
    settings()
    prepare(BY_NAME[name], names, "cuda")


def primed(cases: Sequence[Case], names: Sequence[str], jobs: int) -> None:
    """Compile the cases in several processes at once."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(prime, [case.name for case in cases], repeat(names)))


def rows_of(case: Case, functions: dict[str, Function], known: Row, device: str) -> list[Row]:
    """The rows of a case: inputs from memory, and from the cache where it has them."""
    moved = known["copied_bytes"]
    if device == "cpu":
        source = source_of(moved, device)
        assert all(torch.equal(copy(source), source) for copy in COPIES.values())
        return [{**known, "inputs": "none timed"}]
    ways = {"memory": False, "cache": True} if case.cached else {"memory": False}
    return [{**known, "inputs": way, **timed(case, functions, moved, cached)} for way, cached in ways.items()]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default=",".join(BY_NAME), help="cases, for example silu_mul,rms_norm")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--jobs", type=int, default=6, help="processes that compile first; 0: none")
    parser.add_argument("--dry", action="store_true", help="on a CPU: everything at a small size, nothing timed")
    arguments = parser.parse_args(given)
    cases = [case for case in CASES if case.name in arguments.only.split(",")]
    names = arguments.columns.split(",")
    device = "cpu" if arguments.dry else "cuda"
    settings()
    if not arguments.dry and arguments.jobs:
        primed(cases, names, arguments.jobs)
    body: Row = {"dry": True} if arguments.dry else facts()
    body |= {"unit": "us", "columns": names, "rows": []}

    def write() -> None:
        Path(arguments.out).write_text(json.dumps(body, indent=1) + "\n")

    compiled: dict[str, dict[str, Function]] = {}
    for case in cases:
        compiled[case.name], known = prepare(case, names, device)
        for row in rows_of(case, compiled[case.name], known, device):
            body["rows"].append(row)
            shown = "  ".join(f"{name} {row.get(name)}" for name in ("copy", *names))
            print(case.name, row["inputs"], shown, row.get("copy_gbs"), row.get("fusioncc_error"), flush=True)
            write()
    # The profiler comes last: it may slow down what follows it.
    kernels(torch.relu, (torch.ones(1, device=device),))
    for case in cases:
        counts = {f"{n}_kernels": len(kernels(f, drawn(case, device))) for n, f in compiled[case.name].items()}
        for row in body["rows"]:
            row |= counts if row["case"] == case.name else {}
    body["launches"] = launches(device)
    body["note"] = note(body["launches"])
    write()
    if not arguments.dry:
        print(table("chains", body))


if __name__ == "__main__":
    main()
