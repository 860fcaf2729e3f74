"""Timing on a CUDA card: CUDA-graph replay over rotated operands, medians with spread, facts about the card."""

import datetime
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

COLD_BYTES = 160 << 20
"""Operand sets are rotated until they hold this many bytes: over three times the L2 of an H200."""


def sets_needed(bytes_of_one: int) -> int:
    """Operand sets to rotate so that none is found in the L2 again."""
    return max(2, -(-COLD_BYTES // max(bytes_of_one, 1)) + 1)


def on_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, given a Parameter with memory of its own, the same at every call, in the place of each tensor but
    the first: weights that are packed move, and plain tensors are never packed."""
    held: dict[int, tuple[torch.Tensor, torch.nn.Parameter]] = {}

    def parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
        if id(tensor) not in held:
            held[id(tensor)] = (tensor, torch.nn.Parameter(tensor.clone(), requires_grad=False))
        return held[id(tensor)][1]

    return lambda x, *weights: function(x, *tree_map(parameter, weights))


def graph_us(calls: Sequence[Callable[[], Any]], target_ms: float = 60.0, rounds: int = 15) -> tuple[float, float]:
    """Median and spread (half the interquartile range) of one call, us; ``calls`` follow each other in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay(times: int) -> float:
        start.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / times

    replay(2)
    once = replay(2)
    times = max(1, int(target_ms / rounds / max(once, 1e-3)))
    samples = sorted(1000 * replay(times) / len(calls) for _ in range(rounds))
    quarter = len(samples) // 4
    return statistics.median(samples), (samples[-1 - quarter] - samples[quarter]) / 2


def command() -> str:
    """The command line of this run, less the name of the result file."""
    script, *arguments = sys.argv
    if "--out" in arguments:
        at = arguments.index("--out")
        del arguments[at : at + 2]
    return " ".join(["python", f"benchmarks/{Path(script).name}", *arguments])


def facts() -> dict[str, str]:
    """Card, driver, versions, date and the command: what a result file begins with."""
    import triton

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver[0] if driver else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "command": command(),
    }
