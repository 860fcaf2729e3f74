"""Times of calls on a CUDA card: graphs of them, replayed in turns over operands that the L2 does not hold."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusioncc.runtime.samples import summary

cuda: Any = torch.cuda

COLD_BYTES = 160 << 20
"""Operand sets are rotated until they hold this many bytes: over three times the L2 of an H200."""


def sets_needed(bytes_of_one: int) -> int:
    """Operand sets to rotate so that none is found in the L2 again."""
    return max(2, -(-COLD_BYTES // max(bytes_of_one, 1)) + 1)


@dataclass(frozen=True)
class Captured:
    """A graph of ``calls`` that follow each other. It holds them, since a graph does not keep what its kernels read."""

    graph: Any
    calls: tuple[Callable[[], Any], ...]

    def ms(self, times: int) -> float:
        """Time of one of so many replays, ms."""
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / times


class SharedPool:
    """Memory that graphs share of which nothing is read after their replay. The allocator gives up a pool that no graph
    has any more, and takes its handle no second time: a graph of our own keeps it."""

    def __init__(self) -> None:
        self.handle: Any = cuda.graph_pool_handle()
        self._own = captured([lambda: torch.zeros(1, device="cuda")], self.handle)


def captured(calls: Sequence[Callable[[], Any]], pool: Any = None) -> Captured:
    """The calls in one graph; each has run once before. Graphs may share a ``pool`` of memory where nothing that they
    compute is read after their replay."""
    stream = cuda.Stream()
    with cuda.stream(stream), torch.no_grad():
        for call in calls:
            call()
    stream.synchronize()
    graph = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph, pool=pool, stream=stream):
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
    times = [repeats(graph, target_ms / rounds) for graph in graphs]
    samples: list[list[float]] = [[] for _ in graphs]
    turns, generator = list(enumerate(zip(graphs, times, strict=True))), random.Random(0)
    for _ in range(rounds):
        generator.shuffle(turns)
        for at, (each, count) in turns:
            samples[at].append(1000 * each.ms(count) / len(each.calls))
    return [summary(mine) for mine in samples]


def repeats(graph: Captured, target_ms: float) -> int:
    """Replays of a graph that take about so long; two pairs of them have warmed it up."""
    graph.ms(2)
    return max(1, int(target_ms / max(graph.ms(2), 1e-3)))
