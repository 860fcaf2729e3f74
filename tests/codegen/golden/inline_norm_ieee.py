"""inline_norm_ieee: schedule inline, tier relaxed.

    x        [48, 200] fp32, strides (200, 1)
    g        [200] fp32, strides (1,)
    xn       [M, 200] in registers = x * rsqrt(mean(x * x) + 1e-06) * g
    w        [200, 192] fp32, strides (1, 200)
    a        [200, 16] fp32, strides (1, 200)
    b        [16, 192] fp32, strides (1, 16)
    out      [M, 192] fp32 = xn @ w + 2.0 * (xn @ a) @ b

    main_0: tile 32x32x32, 6 programs for a block of rows, 4 warps, 2 stages

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
    a_ptr,
    g_ptr,
    b_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
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
    tile = tl.program_id(0)
    row_blocks = tl.cdiv(M, BLOCK_M)
    row_block = tile % row_blocks
    col_block = tile // row_blocks
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_lost = tl.zeros_like(acc)
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    y_lost = tl.zeros_like(y)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w = tl.load(w_tile, mask=ks[:, None] < K - k, other=0.0)
        a = tl.load(a_tile, mask=ks[:, None] < K - k, other=0.0)
        squares += x * x
        g = tl.load(g_ptr + (k + ks) * G_STRIDE, mask=ks < K - k, other=0.0)
        x = x * g[None, :]
        acc_step = tl.dot(x, w, input_precision="ieee")
        acc_step -= acc_lost
        acc_next = acc + acc_step
        acc_lost = tl.where(tl.abs(acc_next) < float("inf"), (acc_next - acc) - acc_step, 0.0)
        acc = acc_next
        y_step = tl.dot(x, a, input_precision="ieee")
        y_step -= y_lost
        y_next = y + y_step
        y_lost = tl.where(tl.abs(y_next) < float("inf"), (y_next - y) - y_step, 0.0)
        y = y_next
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 1) / K + EPSILON)
    acc *= rstd[:, None]
    acc_lost *= rstd[:, None]
    y *= rstd[:, None]

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    acc_step = tl.dot(y, b, input_precision="ieee")
    acc_step -= acc_lost
    acc_next = acc + acc_step
    acc_lost = tl.where(tl.abs(acc_next) < float("inf"), (acc_next - acc) - acc_step, 0.0)
    acc = acc_next

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc, mask=rows[:, None] < M)


def launch(x, g, w, a, b, empty=torch.empty):
    """out from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    main_0[(triton.cdiv(m, 32) * triton.cdiv(w.shape[1], 32),)](
        x_ptr=x,
        w_ptr=w,
        a_ptr=a,
        g_ptr=g,
        b_ptr=b,
        out_ptr=out,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        RP=16,
        EPSILON=1e-06,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        G_STRIDE=g.stride(0),
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        SCALE=2.0,
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=32,
        num_warps=4,
        num_stages=2,
    )
    return (out,)


def eager(x, g, w, a, b):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    xn = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-06) * g).to(x.dtype)
    y = xn @ a
    out = xn @ w + 2.0 * (y @ b)
    return (out,)


NAME = "inline_norm_ieee"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 48, 200, 192
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 48, 72, 64
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), torch.float32, 1, 0.0),  # x
    ((K,), (1,), torch.float32, 0.2, 1.0),  # g
    ((K, N), (1, 200), torch.float32, 0.07071, 0.0),  # w
    ((K, 16), (1, 200), torch.float32, 0.07071, 0.0),  # a
    ((16, N), (1, 16), torch.float32, 0.125, 0.0),  # b
)
RESULTS = ("out",)
RMS_LIMIT, MAX_LIMIT = 2.0, 4.0  # of eager's own error
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
