"""k_concat: schedule k_concat, tier fp32.

    x        [2048, 4096] bf16, strides (4096, 1)
    a        [4096, 16] bf16, strides (1, 4096)
    xy       [M, 4112] bf16 = [x | 2.0 * (x @ a)]

    down_0: tile 32xRPx128, 4 programs for a block of rows, 4 warps, 4 stages
    up_0: tile 16x16, 1 programs for a block of rows, 4 warps, 1 stages

Why this schedule: A golden file.
"""

import math
import os
import sys

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import triton
import triton.language as tl


@triton.jit
def down_0(
    x_ptr,
    a_ptr,
    xy_ptr,
    y_ptr,
    M,
    RP: tl.constexpr,
    XY_STRIDE: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile // K_SPLIT
    k_slice = tile % K_SPLIT
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    xy_tile = xy_ptr + rows[:, None] * XY_STRIDE + ks[None, :]
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    a_tile += first_k * A_STRIDE_K
    xy_tile += first_k
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        a = tl.load(a_tile)
        y = tl.dot(x, a, y)
        tl.store(xy_tile, x, mask=rows[:, None] < M)
        xy_tile += BLOCK_K
        x_tile += BLOCK_K * X_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    y_tile = y_ptr + k_slice * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y_tile, y, mask=rows[:, None] < M)


@triton.jit
def up_0(
    y_ptr,
    xy_ptr,
    M,
    RP: tl.constexpr,
    XY_BEGIN: tl.constexpr,
    XY_STRIDE: tl.constexpr,
    SCALE: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ranks = tl.arange(0, RP)

    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    for _ in tl.static_range(1, K_SPLIT):
        y_tile += M * RP
        y += tl.load(y_tile)
    y *= SCALE
    y_tile = xy_ptr + XY_BEGIN + rows[:, None] * XY_STRIDE + ranks[None, :]
    tl.store(y_tile, y.to(xy_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, a, empty=torch.empty):
    """xy from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    xy = empty((m, x.shape[1] + 16), dtype=x.dtype, device=x.device)
    y = empty((4, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 32) * 4,)](
        x_ptr=x,
        a_ptr=a,
        xy_ptr=xy,
        y_ptr=y,
        M=m,
        RP=16,
        XY_STRIDE=xy.shape[1],
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        K_SPLIT=4,
        K_SLICE=triton.cdiv(x.shape[1], 512) * 128,
        BLOCK_M=32,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    up_0[(triton.cdiv(m, 16),)](
        y_ptr=y,
        xy_ptr=xy,
        M=m,
        RP=16,
        XY_BEGIN=x.shape[1],
        XY_STRIDE=xy.shape[1],
        SCALE=2.0,
        K_SPLIT=4,
        BLOCK_M=16,
        num_warps=4,
        num_stages=1,
    )
    return (xy,)


def eager(x, a):
    """The same columns, one operation after another; from fp64 operands they are the reference."""
    xy = torch.cat((x, 2.0 * (x @ a)), dim=1)
    return (xy,)


NAME = "k_concat"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K = 2048, 4096
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K = 67, 1024
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a
)
RESULTS = ("xy",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}"
SETS = 16


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
