"""Timing on a CUDA card: CUDA-graph replay over rotated operands, medians with spread, facts about the card."""

import datetime
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Captured:
    """A graph of ``calls`` that follow each other. It holds them, since a graph does not keep what its kernels read."""

    graph: torch.cuda.CUDAGraph
    calls: tuple[Callable[[], Any], ...]


def captured(calls: Sequence[Callable[[], Any]], pool: Any = None) -> Captured:
    """The calls in one graph; each has run once before. Graphs may share a ``pool`` of memory where nothing that they
    compute is read after their replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, pool=pool, stream=stream):
        for call in calls:
            call()
    return Captured(graph, tuple(calls))


def graph_us(calls: Sequence[Callable[[], Any]], target_ms: float = 60.0, rounds: int = 15) -> tuple[float, float]:
    """Median and spread (half the interquartile range) of one call, us; ``calls`` follow each other in one graph."""
    (timed,) = interleaved_us([captured(calls)], target_ms, rounds)
    return timed


def interleaved_us(graphs: Sequence[Captured], target_ms: float = 60.0, rounds: int = 15) -> list[tuple[float, float]]:
    """Median and spread of one of the calls in each graph, us. Rounds go through all graphs, in an order drawn anew for
    each: a card that warms up and is clocked down does so for all of them, and what a graph finds it at depends on the
    one before. ``target_ms`` is the time for one graph."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay(captured: Captured, times: int) -> float:
        start.record()
        for _ in range(times):
            captured.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / times

    once = [(replay(graph, 2), replay(graph, 2))[1] for graph in graphs]
    times = [max(1, int(target_ms / rounds / max(each, 1e-3))) for each in once]
    samples: list[list[float]] = [[] for _ in graphs]
    turns, generator = list(enumerate(zip(graphs, times, strict=True))), random.Random(0)
    for _ in range(rounds):
        generator.shuffle(turns)
        for at, (each, count) in turns:
            samples[at].append(1000 * replay(each, count) / len(each.calls))
    return [_summary(sorted(mine)) for mine in samples]


def _summary(samples: list[float]) -> tuple[float, float]:
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
