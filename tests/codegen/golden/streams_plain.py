"""streams_plain: schedule streams, tier fp32.

    x        [64, 4096] bf16, strides (4096, 1)
    w_0      [4096, 4096] bf16, strides (1, 4096)
    out_0    [M, 4096] bf16 = x @ w_0
    w_1      [4096, 1024] bf16, strides (1, 4096)
    out_1    [M, 1024] bf16 = x @ w_1
    w_2      [4096, 1024] bf16, strides (1, 4096)
    out_2    [M, 1024] bf16 = x @ w_2

    Streams: the vendor's x @ w_0 on the current one; each on one of its own: the vendor's x @ w_1, the vendor's x @
        w_2; what follows waits for all.

Why this schedule: A golden file.
"""

import contextlib
import math
import os
import sys

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import triton


@torch.no_grad()
def multiply(x, w, out, bias=None):
    """``out = x @ w + bias`` by the vendor's GEMM: fp32 sums, rounded once where ``out`` is narrower."""
    if bias is not None:
        torch.addmm(bias, x, w, out=out)
    elif x.dtype == out.dtype:
        torch.mm(x, w, out=out)
    elif x.is_cuda:
        torch.mm(x, w, out_dtype=out.dtype, out=out)
    else:
        torch.mm(x.to(out.dtype), w.to(out.dtype), out=out)


SIDES = {}  # side streams of each stream that forked, made once


@contextlib.contextmanager
def forked(device, count):
    """``count`` side streams behind all that the current stream has been given so far; it waits for them in the end,
    also when a launch fails. A CPU has none: what is launched runs in order."""
    if device.type != "cuda":
        yield [None] * count
        return
    current = torch.cuda.current_stream(device)
    streams = SIDES.setdefault(current, [])
    streams += [torch.cuda.Stream(device) for _ in range(count - len(streams))]
    sides, fork = streams[:count], current.record_event()
    for side in sides:
        side.wait_event(fork)
    try:
        yield sides
    finally:
        for side in sides:
            current.wait_event(side.record_event())


@contextlib.contextmanager
def on(side, *tensors):
    """What is launched inside runs on ``side``, and the allocator knows that it uses ``tensors`` there.

    In a captured graph the join alone orders their reuse: a recorded tensor would hold its memory until the end of the
    capture.
    """
    if side is None:
        yield
        return
    if not torch.cuda.is_current_stream_capturing():
        for tensor in tensors:
            tensor.record_stream(side)
    with torch.cuda.stream(side):
        yield


def launch(x, w_0, w_1, w_2, empty=torch.empty):
    """out_0, out_1, out_2 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    out_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_2 = empty((m, w_2.shape[1]), dtype=x.dtype, device=x.device)
    with forked(x.device, 2) as sides:
        with on(sides[0], x, w_1, out_1):
            multiply(x, w_1, out_1)
        with on(sides[1], x, w_2, out_2):
            multiply(x, w_2, out_2)
        multiply(x, w_0, out_0)
    return out_0, out_1, out_2


def eager(x, w_0, w_1, w_2):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    out_0 = x @ w_0
    out_1 = x @ w_1
    out_2 = x @ w_2
    return out_0, out_1, out_2


NAME = "streams_plain"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1, N_2 = 64, 4096, 4096, 1024, 1024
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1, N_2 = 64, 128, 128, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, N_2), (1, 4096), HALF, 0.01562, 0.0),  # w_2
)
RESULTS = ("out_0", "out_1", "out_2")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}, N_2={N_2}"
SETS = 6


def draw(seed):
    """Random operands; M, K and N may be smaller than in the group, the strides are the group's own."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    operands = []
    for shape, stride, dtype, spread, mean in OPERANDS:
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        values = torch.randn(extent, generator=generator, device=DEVICE) * spread + mean
        values = values > 0 if dtype == torch.bool else values.to(dtype)
        operands.append(values.as_strided(shape, stride))
    return operands


def deviation(value, exact):
    """RMS and maximum of the error, relative to the RMS of the exact result."""
    exact = exact.double()
    error, size = value.double() - exact, exact.square().mean().sqrt()
    return (error.square().mean().sqrt() / size).item(), (error.abs().max() / size).item()


def check(operands):
    """What is wrong with the kernels' results, or nothing."""
    buffers = []

    def guarded(shape, dtype, device):
        dtype = HALF if dtype == torch.bfloat16 else dtype
        poison = math.nan if dtype.is_floating_point else 85
        buffers.append(torch.full((math.prod(shape) + 2 * GUARD,), poison, device=device).to(dtype))
        return buffers[-1][GUARD:-GUARD].view(shape)

    results = launch(*operands, empty=guarded)
    torch.set_default_dtype(torch.float64)
    exact = eager(*(operand.double() if operand.is_floating_point() else operand for operand in operands))
    torch.set_default_dtype(torch.float32)
    for name, result, plain, truth in zip(RESULTS, results, eager(*operands), exact):
        (rms, worst), (eager_rms, eager_worst) = deviation(result, truth), deviation(plain.to(result.dtype), truth)
        if not (rms <= RMS_LIMIT * eager_rms and worst <= MAX_LIMIT * eager_worst):
            return f"{name}: RMS error {rms:.2e}, maximum {worst:.2e}; eager has {eager_rms:.2e} and {eager_worst:.2e}"
    for edge in (edge.float() for buffer in buffers for edge in (buffer[:GUARD], buffer[-GUARD:])):
        if not (edge.isnan() | (edge == 85)).all():
            return "a kernel wrote outside its buffers"
    return ""


if __name__ == "__main__":
    problem = check(draw(0))
    if problem:
        sys.exit(f"{NAME}: WRONG: {problem}")
    print(f"{NAME}: right for {SIZES}, " + ("on the card" if CUDA else "interpreted on the CPU with fp16 for bf16"))
    if CUDA:
        sets = [draw(seed) for seed in range(SETS)]  # rotated, so that weights come from memory and not from L2
        for label, run in (("eager", eager), ("launch", launch)):
            ms = triton.testing.do_bench_cudagraph(lambda: [run(*operands) for operands in sets], return_mode="median")
            print(f"{label}: {1000 * ms / SETS:.1f} us")
