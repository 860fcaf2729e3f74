"""What ``fusioncc calibrate`` times on the current CUDA card: everything in CUDA-graph replay, medians."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from fusioncc.calibration import Series, Timings, Work
from fusioncc.runtime.calibration_kernels import copy, empty, gemm, hand_over, read_resident

cuda: Any = torch.cuda

ROUNDS, ROUND_MS = 9, 20.0
"""A time is the median of so many rounds; a round replays its graph for about so long. Brief, since the rates of a
profile are those of a card that its power does not hold back yet; the cost models take off what it sustains."""
COPY_BYTES, COPY_BLOCK = 1 << 30, 4096
"""Of one side of the copy: many times any L2; and floats that a program copies."""
L2_STEPS, L2_BLOCK, PROGRAMS_SM = 256, 4096, 4
"""Reads from the L2: blocks that each program reads, floats of a block, programs a multiprocessor."""
GEMM_SIZES = {"bf16": 8192, "tf32": 4096, "fp32": 4096}
"""Side of the square operands of the vendor's GEMMs."""
TILE_GEMM_SIZE, GROUP_M = 4096, 8
"""Side of the square operands of the emitted GEMMs, and row blocks that they walk together."""
TILES = (
    (16, 128, 64, 4, 4),
    (32, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
)
"""BLOCK_M, BLOCK_N, BLOCK_K, warps and stages of their tiles; those that fit the card are timed."""
FEW, MANY = 20, 220
"""Lengths of the two rows of a series."""


def measure() -> Timings:
    """Every timing, one after another, the largest GEMM while the card is cold."""
    bf16 = _vendor_gemm(GEMM_SIZES["bf16"], torch.bfloat16, "ieee")
    return Timings(
        copy=_copy(),
        l2=_l2(),
        bf16=bf16,
        tf32=_vendor_gemm(GEMM_SIZES["tf32"], torch.float32, "tf32"),
        fp32=_vendor_gemm(GEMM_SIZES["fp32"], torch.float32, "ieee"),
        tiles={f"{m}x{n}x{k}": _emitted_gemm(m, n, k, *rest) for m, n, k, *rest in tiles_for(_shared_bytes())},
        launches=_series(in_a_row),
        forks=_series(forked),
        flags=_flags(),
    )


def tiles_for(shared_bytes: int) -> tuple[tuple[int, int, int, int, int], ...]:
    """The tiles whose bf16 operands of all stages fit into so much shared memory."""
    return tuple(tile for tile in TILES if 2 * (tile[0] + tile[1]) * tile[2] * tile[4] <= shared_bytes)


def replay_us(call: Callable[[], Any]) -> float:
    """Median time of one replay of a graph of ``call``, us."""
    cuda.synchronize()  # its operands were made on another stream
    stream = cuda.Stream()
    with cuda.stream(stream):
        call()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        call()
    replayed_ms(graph, 1)
    times = max(1, int(ROUND_MS / max(replayed_ms(graph, 2), 1e-3)))
    return 1000 * statistics.median(replayed_ms(graph, times) for _ in range(ROUNDS))


def replayed_ms(graph: Any, times: int) -> float:
    """Time of one of so many replays, ms."""
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / times


def _shared_bytes() -> int:
    return int(cuda.get_device_properties().shared_memory_per_block_optin)


def _copy() -> Work:
    """By a kernel: a memcpy in a graph may go to a copy engine, which reached 2.7 TB/s on an H200."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    blocks = (COPY_BYTES // 4 // COPY_BLOCK,)
    return Work(2 * COPY_BYTES, replay_us(partial(copy[blocks], source, torch.empty_like(source), COPY_BLOCK)))


def _l2() -> Work:
    """A quarter of the L2, read by every multiprocessor."""
    found = cuda.get_device_properties()
    programs = PROGRAMS_SM * found.multi_processor_count
    blocks = found.L2_cache_size // 4 // (4 * L2_BLOCK)
    x = torch.ones(blocks * L2_BLOCK, device="cuda")
    sums = torch.empty(programs, device="cuda")
    us = replay_us(partial(read_resident[(programs,)], x, sums, L2_STEPS, blocks, L2_BLOCK, num_warps=8))
    return Work(4 * L2_BLOCK * L2_STEPS * programs, us)


def _vendor_gemm(size: int, dtype: torch.dtype, precision: str) -> Work:
    x, w = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    with fp32_precision(precision):
        return Work(2 * size**3, replay_us(partial(torch.mm, x, w.T, out=torch.empty_like(x))))


@contextmanager
def fp32_precision(precision: str) -> Iterator[None]:
    """torch's precision of fp32 GEMMs, inside."""
    matmul: Any = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _emitted_gemm(m: int, n: int, k: int, num_warps: int, num_stages: int) -> Work:
    size = TILE_GEMM_SIZE
    x, w = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    launch, options = gemm[(size // m * (size // n),)], {"num_warps": num_warps, "num_stages": num_stages}
    return Work(2 * size**3, replay_us(partial(launch, x, w, torch.empty_like(x), size, m, n, k, GROUP_M, **options)))


def _flags() -> Series:
    """Two hand-overs a round."""
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    short, long = (replay_us(partial(hand_over[(2,)], flag, rounds, num_warps=1)) for rounds in (FEW, MANY))
    return Series((2 * FEW, short), (2 * MANY, long))


def _series(row: Callable[[Any, int], None]) -> Series:
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    short, long = (replay_us(partial(row, word, count)) for count in (FEW, MANY))
    return Series((FEW, short), (MANY, long))


def in_a_row(word: Any, count: int) -> None:
    """``count`` empty kernels on one stream."""
    for _ in range(count):
        empty[(1,)](word)


def forked(word: Any, count: int) -> None:
    """The same, each with another one beside it on a second stream: an event recorded and waited for on each side."""
    main, side = cuda.current_stream(), cuda.Stream()
    for _ in range(count):
        side.wait_stream(main)
        with cuda.stream(side):
            empty[(1,)](word)
        empty[(1,)](word)
        main.wait_stream(side)
