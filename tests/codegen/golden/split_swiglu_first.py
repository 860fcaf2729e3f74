"""split_swiglu_first: schedule split, tier fp32.

    x        [64, 4096] bf16, strides (4096, 1)
    w_0      [4096, 14336] bf16, strides (1, 4096)
    a_0      [4096, 8] bf16, strides (1, 4096)
    b_0      [8, 14336] bf16, strides (1, 8)
    out_0    in registers = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [4096, 14336] bf16, strides (1, 4096)
    a_1      [4096, 8] bf16, strides (1, 4096)
    b_1      [8, 14336] bf16, strides (1, 8)
    out_1    in registers = x @ w_1 + 2.0 * (x @ a_1) @ b_1
    h        [M, 14336] bf16 of out_0, out_1: silu, mul

    down_0: tile 64xRPx128, 1 programs for a block of rows, 4 warps, 4 stages
    main_0: tile 64x64x64, 224 programs for a block of rows, 4 warps, 3 stages

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
def near_divide(a, b):
    # Within 2 units in the last place.
    return a / b


@triton.jit
def negated(x):
    # Triton's own minus is 0 - x, which is wrong for a zero.
    return x * -1.0


@triton.jit
def silu(x):
    return near_divide(x, 1.0 + tl.exp(negated(x)))


@triton.jit
def down_0(
    x_ptr,
    a0_ptr,
    a1_ptr,
    y0_ptr,
    y1_ptr,
    M,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks[None, :] * A1_STRIDE_R
    y0 = tl.zeros((BLOCK_M, RP), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        a0 = tl.load(a0_tile, mask=ranks[None, :] < R, other=0.0)
        a1 = tl.load(a1_tile, mask=ranks[None, :] < R, other=0.0)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        x_tile += BLOCK_K * X_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K

    y0_tile = y0_ptr + rows[:, None] * RP + ranks[None, :]
    tl.store(y0_tile, y0, mask=rows[:, None] < M)
    y1_tile = y1_ptr + rows[:, None] * RP + ranks[None, :]
    tl.store(y1_tile, y1, mask=rows[:, None] < M)


@triton.jit
def main_0(
    b0_ptr,
    b1_ptr,
    x_ptr,
    w0_ptr,
    w1_ptr,
    y0_ptr,
    y1_ptr,
    h_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    B0_STRIDE_R: tl.constexpr,
    B0_STRIDE_N: tl.constexpr,
    B1_STRIDE_R: tl.constexpr,
    B1_STRIDE_N: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W0_STRIDE_K: tl.constexpr,
    W0_STRIDE_N: tl.constexpr,
    W1_STRIDE_K: tl.constexpr,
    W1_STRIDE_N: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    ranks = tl.arange(0, RP)
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    # The low-rank product opens the accumulator, which rounds once, after the K loop.
    y0_tile = y0_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y0 = tl.load(y0_tile)
    y0 = tl.where(ranks[None, :] < R, y0, 0.0)
    y0 *= SCALE0
    b0_tile = b0_ptr + ranks[:, None] * B0_STRIDE_R + cols[None, :] * B0_STRIDE_N
    b0 = tl.load(b0_tile, mask=ranks[:, None] < R, other=0.0)
    acc0 = tl.dot(y0.to(b0.dtype), b0)
    y1_tile = y1_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y1 = tl.load(y1_tile)
    y1 = tl.where(ranks[None, :] < R, y1, 0.0)
    y1 *= SCALE1
    b1_tile = b1_ptr + ranks[:, None] * B1_STRIDE_R + cols[None, :] * B1_STRIDE_N
    b1 = tl.load(b1_tile, mask=ranks[:, None] < R, other=0.0)
    acc1 = tl.dot(y1.to(b1.dtype), b1)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w0_tile = w0_ptr + ks[:, None] * W0_STRIDE_K + cols[None, :] * W0_STRIDE_N
    w1_tile = w1_ptr + ks[:, None] * W1_STRIDE_K + cols[None, :] * W1_STRIDE_N
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w0 = tl.load(w0_tile)
        w1 = tl.load(w1_tile)
        acc0 = tl.dot(x, w0, acc0)
        acc1 = tl.dot(x, w1, acc1)
        x_tile += BLOCK_K * X_STRIDE_K
        w0_tile += BLOCK_K * W0_STRIDE_K
        w1_tile += BLOCK_K * W1_STRIDE_K

    silu_1 = silu(acc0)
    mul = silu_1 * acc1
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, mul.to(h_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, w_0, a_0, b_0, w_1, a_1, b_1, empty=torch.empty):
    """h from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    y_0 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    y_1 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 64),)](
        x_ptr=x,
        a0_ptr=a_0,
        a1_ptr=a_1,
        y0_ptr=y_0,
        y1_ptr=y_1,
        M=m,
        K=x.shape[1],
        R=8,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        BLOCK_M=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w_0.shape[1], 64),)](
        b0_ptr=b_0,
        b1_ptr=b_1,
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_1,
        y0_ptr=y_0,
        y1_ptr=y_1,
        h_ptr=h,
        M=m,
        N=w_0.shape[1],
        K=x.shape[1],
        R=8,
        RP=16,
        B0_STRIDE_R=b_0.stride(0),
        B0_STRIDE_N=b_0.stride(1),
        B1_STRIDE_R=b_1.stride(0),
        B1_STRIDE_N=b_1.stride(1),
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W0_STRIDE_K=w_0.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_K=w_1.stride(0),
        W1_STRIDE_N=w_1.stride(1),
        SCALE0=2.0,
        SCALE1=2.0,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
    )
    return (h,)


aten = torch.ops.aten


def eager(x, w_0, a_0, b_0, w_1, a_1, b_1):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x @ a_0
    out_0 = x @ w_0 + 2.0 * (y_0 @ b_0)
    y_1 = x @ a_1
    out_1 = x @ w_1 + 2.0 * (y_1 @ b_1)
    v0_0 = aten.silu.default(out_0)
    v0_1 = aten.mul.Tensor(v0_0, out_1)
    h = v0_1
    return (h,)


NAME = "split_swiglu_first"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1 = 64, 4096, 14336, 14336
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1 = 64, 256, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a_0
    ((8, N_0), (1, 8), HALF, 0.1768, 0.0),  # b_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a_1
    ((8, N_1), (1, 8), HALF, 0.1768, 0.0),  # b_1
)
RESULTS = ("h",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}"
SETS = 2


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
