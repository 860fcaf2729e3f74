"""inline_norm_swapped: schedule inline, tier fp32.

    x        [16, 4096] bf16, strides (4096, 1)
    g        [4096] bf16, strides (1,)
    xn       [M, 4096] in registers = x * rsqrt(mean(x * x) + 1e-06) * g
    w_0      [4096, 4096] bf16, strides (1, 4096)
    a_0      [4096, 8] bf16, strides (1, 4096)
    b_0      [8, 4096] bf16, strides (1, 8)
    out_0    [M, 4096] bf16 = xn @ w_0 + 2.0 * (xn @ a_0) @ b_0
    w_1      [4096, 1024] bf16, strides (1, 4096)
    a_1      [4096, 8] bf16, strides (1, 4096)
    b_1      [8, 1024] bf16, strides (1, 8)
    out_1    [M, 1024] bf16 = xn @ w_1 + 2.0 * (xn @ a_1) @ b_1
    w_2      [4096, 1024] bf16, strides (1, 4096)
    a_2      [4096, 8] bf16, strides (1, 4096)
    b_2      [8, 1024] bf16, strides (1, 8)
    out_2    [M, 1024] bf16 = xn @ w_2 + 2.0 * (xn @ a_2) @ b_2

    mains_0: tile 16x32x128, transposed, 128 + 32 + 32 programs for a block of rows, 4 warps, 3 stages

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
def main_tile_0(
    tile,
    x_ptr,
    w_ptr,
    a_ptr,
    g_ptr,
    b_ptr,
    saved_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    G_STRIDE: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[None, :] * X_STRIDE_M + ks[:, None] * X_STRIDE_K
    w_tile = w_ptr + ks[None, :] * W_STRIDE_K + cols[:, None] * W_STRIDE_N
    a_tile = a_ptr + ks[None, :] * A_STRIDE_K + ranks[:, None] * A_STRIDE_R
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    y = tl.zeros((RP, BLOCK_M), tl.float32)
    squares = tl.zeros((BLOCK_K, BLOCK_M), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        a = tl.load(a_tile, mask=ranks[:, None] < R, other=0.0)
        wide = x.to(tl.float32)
        squares += wide * wide
        g = tl.load(g_ptr + (k + ks) * G_STRIDE).to(tl.float32)
        x = (wide * g[:, None]).to(x.dtype)
        acc = tl.dot(w, x, acc)
        y = tl.dot(a, x, y)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 0) / K + EPSILON)
    acc *= rstd[None, :]
    y *= rstd[None, :]

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    if col_block == 0:
        saved_tile = saved_ptr + rows[None, :] * R + ranks[:, None]
        tl.store(saved_tile, y.to(saved_ptr.dtype.element_ty), mask=(rows[None, :] < M) & (ranks[:, None] < R))
    y = tl.where(ranks[:, None] < R, y, 0.0)
    y *= SCALE
    b_tile = b_ptr + ranks[None, :] * B_STRIDE_R + cols[:, None] * B_STRIDE_N
    b = tl.load(b_tile, mask=ranks[None, :] < R, other=0.0)
    acc = tl.dot(b, y.to(b.dtype), acc)

    out_tile = out_ptr + rows[None, :] * N + cols[:, None]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=rows[None, :] < M)


@triton.jit
def mains_0(
    x_ptr,
    w_0_ptr,
    a_0_ptr,
    g_ptr,
    b_0_ptr,
    w_1_ptr,
    a_1_ptr,
    b_1_ptr,
    w_2_ptr,
    a_2_ptr,
    b_2_ptr,
    saved_0_ptr,
    out_0_ptr,
    saved_1_ptr,
    out_1_ptr,
    saved_2_ptr,
    out_2_ptr,
    M,
    N_0: tl.constexpr,
    N_1: tl.constexpr,
    N_2: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    G_STRIDE: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    end_0 = tl.cdiv(N_0, BLOCK_N)
    end_1 = end_0 + tl.cdiv(N_1, BLOCK_N)
    tile = tl.program_id(0)
    # No else: Triton gives the operand tiles of an if and of its else shared memory of their own.
    if tile < end_0:
        main_tile_0(
            tile,
            x_ptr,
            w_0_ptr,
            a_0_ptr,
            g_ptr,
            b_0_ptr,
            saved_0_ptr,
            out_0_ptr,
            M,
            N_0,
            K,
            R,
            RP,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            A_STRIDE_K,
            A_STRIDE_R,
            G_STRIDE,
            B_STRIDE_R,
            B_STRIDE_N,
            SCALE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_0 <= tile and tile < end_1:
        main_tile_0(
            tile - end_0,
            x_ptr,
            w_1_ptr,
            a_1_ptr,
            g_ptr,
            b_1_ptr,
            saved_1_ptr,
            out_1_ptr,
            M,
            N_1,
            K,
            R,
            RP,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            A_STRIDE_K,
            A_STRIDE_R,
            G_STRIDE,
            B_STRIDE_R,
            B_STRIDE_N,
            SCALE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_1 <= tile:
        main_tile_0(
            tile - end_1,
            x_ptr,
            w_2_ptr,
            a_2_ptr,
            g_ptr,
            b_2_ptr,
            saved_2_ptr,
            out_2_ptr,
            M,
            N_2,
            K,
            R,
            RP,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            A_STRIDE_K,
            A_STRIDE_R,
            G_STRIDE,
            B_STRIDE_R,
            B_STRIDE_N,
            SCALE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )


def launch(x, g, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2, empty=torch.empty):
    """out_0, out_1, out_2, saved_0, saved_1, saved_2 from tensors in the shapes of the header ([K, N] for weights);
    ``empty`` allocates."""
    m = x.shape[0]
    out_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    out_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_2 = empty((m, w_2.shape[1]), dtype=x.dtype, device=x.device)
    saved_0 = empty((m, a_0.shape[1]), dtype=x.dtype, device=x.device)
    saved_1 = empty((m, a_1.shape[1]), dtype=x.dtype, device=x.device)
    saved_2 = empty((m, a_2.shape[1]), dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(m, 16) * triton.cdiv(w_0.shape[1], 32)
    tiles += triton.cdiv(m, 16) * triton.cdiv(w_1.shape[1], 32)
    tiles += triton.cdiv(m, 16) * triton.cdiv(w_2.shape[1], 32)
    mains_0[(tiles,)](
        x_ptr=x,
        w_0_ptr=w_0,
        a_0_ptr=a_0,
        g_ptr=g,
        b_0_ptr=b_0,
        w_1_ptr=w_1,
        a_1_ptr=a_1,
        b_1_ptr=b_1,
        w_2_ptr=w_2,
        a_2_ptr=a_2,
        b_2_ptr=b_2,
        saved_0_ptr=saved_0,
        out_0_ptr=out_0,
        saved_1_ptr=saved_1,
        out_1_ptr=out_1,
        saved_2_ptr=saved_2,
        out_2_ptr=out_2,
        M=m,
        N_0=w_0.shape[1],
        N_1=w_1.shape[1],
        N_2=w_2.shape[1],
        K=x.shape[1],
        R=8,
        RP=16,
        EPSILON=1e-06,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w_0.stride(0),
        W_STRIDE_N=w_0.stride(1),
        A_STRIDE_K=a_0.stride(0),
        A_STRIDE_R=a_0.stride(1),
        G_STRIDE=g.stride(0),
        B_STRIDE_R=b_0.stride(0),
        B_STRIDE_N=b_0.stride(1),
        SCALE=2.0,
        BLOCK_M=16,
        BLOCK_N=32,
        BLOCK_K=128,
        num_warps=4,
        num_stages=3,
    )
    return out_0, out_1, out_2, saved_0, saved_1, saved_2


def eager(x, g, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    xn = ((wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-06)).to(x.dtype) * g).to(x.dtype)
    y_0 = xn @ a_0
    out_0 = xn @ w_0 + 2.0 * (y_0 @ b_0)
    y_1 = xn @ a_1
    out_1 = xn @ w_1 + 2.0 * (y_1 @ b_1)
    y_2 = xn @ a_2
    out_2 = xn @ w_2 + 2.0 * (y_2 @ b_2)
    return out_0, out_1, out_2, y_0, y_1, y_2


NAME = "inline_norm_swapped"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1, N_2 = 16, 4096, 4096, 1024, 1024
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1, N_2 = 16, 256, 64, 64, 64
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K,), (1,), HALF, 0.2, 1.0),  # g
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a_0
    ((8, N_0), (1, 8), HALF, 0.1768, 0.0),  # b_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a_1
    ((8, N_1), (1, 8), HALF, 0.1768, 0.0),  # b_1
    ((K, N_2), (1, 4096), HALF, 0.01562, 0.0),  # w_2
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a_2
    ((8, N_2), (1, 8), HALF, 0.1768, 0.0),  # b_2
)
RESULTS = ("out_0", "out_1", "out_2", "saved_0", "saved_1", "saved_2")
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
