"""inline_norm_ragged: schedule inline, tier fp32.

    x        [M (about 50), 200] bf16, strides (200, 1)
    g        [200] bf16, strides (2,)
    xn       [M, 200] in registers = x * rsqrt(mean(x * x) + 1e-05) * g
    w        [200, 330] bf16, strides (1, 200)
    bias     [330] bf16, strides (1,)
    a_0      [200, 12] bf16, strides (1, 200)
    a_bias_0 [12] bf16, strides (1,)
    b_0      [12, 330] bf16, strides (1, 12)
    a_1      [200, 4] bf16, strides (1, 200)
    b_1      [4, 330] bf16, strides (1, 4)
    out      [M, 330] bf16 = xn @ w + bias + 2.0 * (xn @ a_0) @ b_0 + 0.5 * a_bias_0 @ b_0 + 2.0 * (xn @ a_1) @ b_1

    main_0: tile 32x32x32, 11 programs for a block of rows, 4 warps, 2 stages

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
def main_0(
    x_ptr,
    w_ptr,
    a0_ptr,
    a1_ptr,
    g_ptr,
    a_bias0_ptr,
    b0_ptr,
    b1_ptr,
    bias_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R0: tl.constexpr,
    R1: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    G_STRIDE: tl.constexpr,
    A_BIAS0_STRIDE: tl.constexpr,
    B0_STRIDE_R: tl.constexpr,
    B0_STRIDE_N: tl.constexpr,
    B1_STRIDE_R: tl.constexpr,
    B1_STRIDE_N: tl.constexpr,
    BIAS_STRIDE: tl.constexpr,
    SCALE0: tl.constexpr,
    A_BIAS_SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    # Grouped ordering: GROUP_M row blocks walk the columns together and share W's tiles in L2.
    row_blocks = tl.cdiv(M, BLOCK_M)
    group_size = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_row_block = tile // group_size * GROUP_M
    group_rows = min(row_blocks - first_row_block, GROUP_M)
    row_block = first_row_block + tile % group_size % group_rows
    col_block = tile % group_size // group_rows
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_cols = cols % N
    ks = tl.arange(0, BLOCK_K)
    ranks0 = tl.arange(0, RP0)
    ranks1 = tl.arange(0, RP1)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + safe_cols[None, :] * W_STRIDE_N
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks0[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks1[None, :] * A1_STRIDE_R
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    y0 = tl.zeros((BLOCK_M, RP0), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP1), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w = tl.load(w_tile, mask=ks[:, None] < K - k, other=0.0)
        a0 = tl.load(a0_tile, mask=(ks[:, None] < K - k) & (ranks0[None, :] < R0), other=0.0)
        a1 = tl.load(a1_tile, mask=(ks[:, None] < K - k) & (ranks1[None, :] < R1), other=0.0)
        wide = x.to(tl.float32)
        squares += wide * wide
        g = tl.load(g_ptr + (k + ks) * G_STRIDE, mask=ks < K - k, other=0.0).to(tl.float32)
        x = (wide * g[None, :]).to(x.dtype)
        acc = tl.dot(x, w, acc)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 1) / K + EPSILON)
    acc *= rstd[:, None]
    y0 *= rstd[:, None]
    y1 *= rstd[:, None]

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    a_bias0 = tl.load(a_bias0_ptr + ranks0 * A_BIAS0_STRIDE, mask=ranks0 < R0, other=0.0).to(tl.float32)
    y0 = tl.where(ranks0[None, :] < R0, y0, 0.0)
    y0 *= SCALE0
    y0 += a_bias0[None, :] * A_BIAS_SCALE0
    b0_tile = b0_ptr + ranks0[:, None] * B0_STRIDE_R + safe_cols[None, :] * B0_STRIDE_N
    b0 = tl.load(b0_tile, mask=ranks0[:, None] < R0, other=0.0)
    acc = tl.dot(y0.to(b0.dtype), b0, acc)
    y1 = tl.where(ranks1[None, :] < R1, y1, 0.0)
    y1 *= SCALE1
    b1_tile = b1_ptr + ranks1[:, None] * B1_STRIDE_R + safe_cols[None, :] * B1_STRIDE_N
    b1 = tl.load(b1_tile, mask=ranks1[:, None] < R1, other=0.0)
    acc = tl.dot(y1.to(b1.dtype), b1, acc)

    bias = tl.load(bias_ptr + safe_cols * BIAS_STRIDE).to(tl.float32)
    acc += bias[None, :]
    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


def launch(x, g, w, bias, a_0, a_bias_0, b_0, a_1, b_1, empty=torch.empty):
    """out from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    main_0[(triton.cdiv(m, 32) * triton.cdiv(w.shape[1], 32),)](
        x_ptr=x,
        w_ptr=w,
        a0_ptr=a_0,
        a1_ptr=a_1,
        g_ptr=g,
        a_bias0_ptr=a_bias_0,
        b0_ptr=b_0,
        b1_ptr=b_1,
        bias_ptr=bias,
        out_ptr=out,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        R0=12,
        R1=4,
        RP0=16,
        RP1=16,
        EPSILON=1e-05,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        G_STRIDE=g.stride(0),
        A_BIAS0_STRIDE=a_bias_0.stride(0),
        B0_STRIDE_R=b_0.stride(0),
        B0_STRIDE_N=b_0.stride(1),
        B1_STRIDE_R=b_1.stride(0),
        B1_STRIDE_N=b_1.stride(1),
        BIAS_STRIDE=bias.stride(0),
        SCALE0=2.0,
        A_BIAS_SCALE0=0.5,
        SCALE1=2.0,
        GROUP_M=8,
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=32,
        num_warps=4,
        num_stages=2,
    )
    return (out,)


def eager(x, g, w, bias, a_0, a_bias_0, b_0, a_1, b_1):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    xn = ((wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-05)).to(x.dtype) * g).to(x.dtype)
    y_0 = xn @ a_0
    y_1 = xn @ a_1
    out = xn @ w + bias + 2.0 * (y_0 @ b_0) + 0.5 * (a_bias_0 @ b_0) + 2.0 * (y_1 @ b_1)
    return (out,)


NAME = "inline_norm_ragged"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 50, 200, 330
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 50, 72, 74
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), HALF, 1, 0.0),  # x
    ((K,), (2,), HALF, 0.2, 1.0),  # g
    ((K, N), (1, 200), HALF, 0.07071, 0.0),  # w
    ((N,), (1,), HALF, 1, 0.0),  # bias
    ((K, 12), (1, 200), HALF, 0.07071, 0.0),  # a_0
    ((12,), (1,), HALF, 4, 0.0),  # a_bias_0
    ((12, N), (1, 12), HALF, 0.1443, 0.0),  # b_0
    ((K, 4), (1, 200), HALF, 0.07071, 0.0),  # a_1
    ((4, N), (1, 4), HALF, 0.25, 0.0),  # b_1
)
RESULTS = ("out",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N={N}"
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
