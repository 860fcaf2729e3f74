"""split_two_endings: schedule split, tier fp32.

    x        [48, 200] bf16, strides (200, 1)
    w_0      [200, 136] bf16, strides (1, 200)
    bias_0   [136] bf16, strides (1,)
    a_0      [200, 8] bf16, strides (1, 200)
    b_0      [8, 136] bf16, strides (1, 8)
    out_0    in registers = x @ w_0 + bias_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [200, 72] bf16, strides (1, 200)
    out_1    in registers = x @ w_1
    w_2      [200, 136] bf16, strides (1, 200)
    a_2      [200, 16] bf16, strides (1, 200)
    b_2      [16, 136] bf16, strides (1, 16)
    b_bias_2 [136] bf16, strides (1,)
    out_2    in registers = x @ w_2 + 2.0 * (x @ a_2) @ b_2 + 0.5 * b_bias_2
    w_3      [200, 72] bf16, strides (1, 200)
    out_3    [M, 72] bf16 = x @ w_3
    h_0      [M, 136] bf16 of out_0, out_2: silu, mul
    h_1      [M, 72] bf16 of out_1: relu

    down_0: tile 32xRPx64, 1 programs for a block of rows, 4 warps, 3 stages
    mains_0: tile 32x64x32, 3 + 2 + 2 programs for a block of rows, 4 warps, 3 stages

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
def at_least(x, low):
    # NaN stays; of two zeros the positive one is larger.
    if x.dtype == tl.float32:
        return tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x != x, x, tl.maximum(x, low))


@triton.jit
def main_tile_0(
    tile,
    b0_ptr,
    b1_ptr,
    x_ptr,
    w0_ptr,
    w1_ptr,
    bias0_ptr,
    b_bias1_ptr,
    y0_ptr,
    y1_ptr,
    h_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R0: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
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
    BIAS0_STRIDE: tl.constexpr,
    B_BIAS1_STRIDE: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    B_BIAS1_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    ranks0 = tl.arange(0, RP0)
    ranks1 = tl.arange(0, RP1)
    row_blocks = tl.cdiv(M, BLOCK_M)
    row_block = tile % row_blocks
    col_block = tile // row_blocks
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_cols = cols % N
    ks = tl.arange(0, BLOCK_K)

    # The low-rank product opens the accumulator, which rounds once, after the K loop.
    y0_tile = y0_ptr + safe_rows[:, None] * RP0 + ranks0[None, :]
    y0 = tl.load(y0_tile)
    y0 = tl.where(ranks0[None, :] < R0, y0, 0.0)
    y0 *= SCALE0
    b0_tile = b0_ptr + ranks0[:, None] * B0_STRIDE_R + safe_cols[None, :] * B0_STRIDE_N
    b0 = tl.load(b0_tile, mask=ranks0[:, None] < R0, other=0.0)
    acc0 = tl.dot(y0.to(b0.dtype), b0)
    y1_tile = y1_ptr + safe_rows[:, None] * RP1 + ranks1[None, :]
    y1 = tl.load(y1_tile)
    y1 *= SCALE1
    b1_tile = b1_ptr + ranks1[:, None] * B1_STRIDE_R + safe_cols[None, :] * B1_STRIDE_N
    b1 = tl.load(b1_tile)
    acc1 = tl.dot(y1.to(b1.dtype), b1)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w0_tile = w0_ptr + ks[:, None] * W0_STRIDE_K + safe_cols[None, :] * W0_STRIDE_N
    w1_tile = w1_ptr + ks[:, None] * W1_STRIDE_K + safe_cols[None, :] * W1_STRIDE_N
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w0 = tl.load(w0_tile, mask=ks[:, None] < K - k, other=0.0)
        w1 = tl.load(w1_tile, mask=ks[:, None] < K - k, other=0.0)
        acc0 = tl.dot(x, w0, acc0)
        acc1 = tl.dot(x, w1, acc1)
        x_tile += BLOCK_K * X_STRIDE_K
        w0_tile += BLOCK_K * W0_STRIDE_K
        w1_tile += BLOCK_K * W1_STRIDE_K

    bias0 = tl.load(bias0_ptr + safe_cols * BIAS0_STRIDE).to(tl.float32)
    acc0 += bias0[None, :]
    b_bias1 = tl.load(b_bias1_ptr + safe_cols * B_BIAS1_STRIDE).to(tl.float32)
    acc1 += b_bias1[None, :] * B_BIAS1_SCALE
    silu_1 = silu(acc0)
    mul = silu_1 * acc1
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, mul.to(h_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def main_tile_1(
    tile,
    x_ptr,
    w_ptr,
    h_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_blocks = tl.cdiv(M, BLOCK_M)
    row_block = tile % row_blocks
    col_block = tile // row_blocks
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_cols = cols % N
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + safe_cols[None, :] * W_STRIDE_N
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w = tl.load(w_tile, mask=ks[:, None] < K - k, other=0.0)
        acc = tl.dot(x, w, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    relu = at_least(acc, 0.0)
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, relu.to(h_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def main_tile_3(
    tile,
    x_ptr,
    w_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_blocks = tl.cdiv(M, BLOCK_M)
    row_block = tile % row_blocks
    col_block = tile // row_blocks
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_cols = cols % N
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + safe_cols[None, :] * W_STRIDE_N
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w = tl.load(w_tile, mask=ks[:, None] < K - k, other=0.0)
        acc = tl.dot(x, w, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def down_0(
    x_ptr,
    a0_ptr,
    a1_ptr,
    y0_ptr,
    y1_ptr,
    M,
    K: tl.constexpr,
    R0: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks0 = tl.arange(0, RP0)
    ranks1 = tl.arange(0, RP1)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks0[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks1[None, :] * A1_STRIDE_R
    y0 = tl.zeros((BLOCK_M, RP0), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP1), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        a0 = tl.load(a0_tile, mask=(ks[:, None] < K - k) & (ranks0[None, :] < R0), other=0.0)
        a1 = tl.load(a1_tile, mask=ks[:, None] < K - k, other=0.0)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        x_tile += BLOCK_K * X_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K

    y0_tile = y0_ptr + rows[:, None] * RP0 + ranks0[None, :]
    tl.store(y0_tile, y0, mask=rows[:, None] < M)
    y1_tile = y1_ptr + rows[:, None] * RP1 + ranks1[None, :]
    tl.store(y1_tile, y1, mask=rows[:, None] < M)


@triton.jit
def mains_0(
    b0_ptr,
    b1_ptr,
    x_ptr,
    w0_ptr,
    w1_ptr,
    bias0_ptr,
    b_bias1_ptr,
    w_1_ptr,
    w_2_ptr,
    y0_ptr,
    y1_ptr,
    h_0_ptr,
    h_1_ptr,
    out_ptr,
    M,
    N_0: tl.constexpr,
    N_1: tl.constexpr,
    N_2: tl.constexpr,
    K: tl.constexpr,
    R0: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
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
    BIAS0_STRIDE: tl.constexpr,
    B_BIAS1_STRIDE: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    B_BIAS1_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    end_0 = tl.cdiv(M, BLOCK_M) * tl.cdiv(N_0, BLOCK_N)
    end_1 = end_0 + tl.cdiv(M, BLOCK_M) * tl.cdiv(N_1, BLOCK_N)
    tile = tl.program_id(0)
    # No else: Triton gives the operand tiles of an if and of its else shared memory of their own.
    if tile < end_0:
        main_tile_0(
            tile,
            b0_ptr,
            b1_ptr,
            x_ptr,
            w0_ptr,
            w1_ptr,
            bias0_ptr,
            b_bias1_ptr,
            y0_ptr,
            y1_ptr,
            h_0_ptr,
            M,
            N_0,
            K,
            R0,
            RP0,
            RP1,
            B0_STRIDE_R,
            B0_STRIDE_N,
            B1_STRIDE_R,
            B1_STRIDE_N,
            X_STRIDE_M,
            X_STRIDE_K,
            W0_STRIDE_K,
            W0_STRIDE_N,
            W1_STRIDE_K,
            W1_STRIDE_N,
            BIAS0_STRIDE,
            B_BIAS1_STRIDE,
            SCALE0,
            SCALE1,
            B_BIAS1_SCALE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_0 <= tile and tile < end_1:
        main_tile_1(
            tile - end_0,
            x_ptr,
            w_1_ptr,
            h_1_ptr,
            M,
            N_1,
            K,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_1 <= tile:
        main_tile_3(
            tile - end_1,
            x_ptr,
            w_2_ptr,
            out_ptr,
            M,
            N_2,
            K,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )


def launch(x, w_0, bias_0, a_0, b_0, w_1, w_2, a_2, b_2, b_bias_2, w_3, empty=torch.empty):
    """h_0, h_1, out_3 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    h_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_3 = empty((m, w_3.shape[1]), dtype=x.dtype, device=x.device)
    y_0 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    y_2 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 32),)](
        x_ptr=x,
        a0_ptr=a_0,
        a1_ptr=a_2,
        y0_ptr=y_0,
        y1_ptr=y_2,
        M=m,
        K=x.shape[1],
        R0=8,
        RP0=16,
        RP1=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_2.stride(0),
        A1_STRIDE_R=a_2.stride(1),
        BLOCK_M=32,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
    )
    tiles = triton.cdiv(m, 32) * triton.cdiv(w_0.shape[1], 64)
    tiles += triton.cdiv(m, 32) * triton.cdiv(w_1.shape[1], 64)
    tiles += triton.cdiv(m, 32) * triton.cdiv(w_3.shape[1], 64)
    mains_0[(tiles,)](
        b0_ptr=b_0,
        b1_ptr=b_2,
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_2,
        bias0_ptr=bias_0,
        b_bias1_ptr=b_bias_2,
        w_1_ptr=w_1,
        w_2_ptr=w_3,
        y0_ptr=y_0,
        y1_ptr=y_2,
        h_0_ptr=h_0,
        h_1_ptr=h_1,
        out_ptr=out_3,
        M=m,
        N_0=w_0.shape[1],
        N_1=w_1.shape[1],
        N_2=w_3.shape[1],
        K=x.shape[1],
        R0=8,
        RP0=16,
        RP1=16,
        B0_STRIDE_R=b_0.stride(0),
        B0_STRIDE_N=b_0.stride(1),
        B1_STRIDE_R=b_2.stride(0),
        B1_STRIDE_N=b_2.stride(1),
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W0_STRIDE_K=w_0.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_K=w_2.stride(0),
        W1_STRIDE_N=w_2.stride(1),
        BIAS0_STRIDE=bias_0.stride(0),
        B_BIAS1_STRIDE=b_bias_2.stride(0),
        W_STRIDE_K=w_1.stride(0),
        W_STRIDE_N=w_1.stride(1),
        SCALE0=2.0,
        SCALE1=2.0,
        B_BIAS1_SCALE=0.5,
        BLOCK_M=32,
        BLOCK_N=64,
        BLOCK_K=32,
        num_warps=4,
        num_stages=3,
    )
    return h_0, h_1, out_3


aten = torch.ops.aten


def eager(x, w_0, bias_0, a_0, b_0, w_1, w_2, a_2, b_2, b_bias_2, w_3):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x @ a_0
    out_0 = x @ w_0 + bias_0 + 2.0 * (y_0 @ b_0)
    out_1 = x @ w_1
    y_2 = x @ a_2
    out_2 = x @ w_2 + 2.0 * (y_2 @ b_2) + 0.5 * b_bias_2
    out_3 = x @ w_3
    v0_0 = aten.silu.default(out_0)
    v0_1 = aten.mul.Tensor(v0_0, out_2)
    h_0 = v0_1
    v1_0 = aten.relu.default(out_1)
    h_1 = v1_0
    return h_0, h_1, out_3


NAME = "split_two_endings"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_2, N_1, N_3 = 48, 200, 136, 136, 72, 72
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_2, N_1, N_3 = 48, 136, 136, 136, 72, 72
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 200), HALF, 0.07071, 0.0),  # w_0
    ((N_0,), (1,), HALF, 1, 0.0),  # bias_0
    ((K, 8), (1, 200), HALF, 0.07071, 0.0),  # a_0
    ((8, N_0), (1, 8), HALF, 0.1768, 0.0),  # b_0
    ((K, N_1), (1, 200), HALF, 0.07071, 0.0),  # w_1
    ((K, N_2), (1, 200), HALF, 0.07071, 0.0),  # w_2
    ((K, 16), (1, 200), HALF, 0.07071, 0.0),  # a_2
    ((16, N_2), (1, 16), HALF, 0.125, 0.0),  # b_2
    ((N_2,), (1,), HALF, 2, 0.0),  # b_bias_2
    ((K, N_3), (1, 200), HALF, 0.07071, 0.0),  # w_3
)
RESULTS = ("h_0", "h_1", "out_3")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_2={N_2}, N_1={N_1}, N_3={N_3}"
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
