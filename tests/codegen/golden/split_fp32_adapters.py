"""split_fp32_adapters: schedule split, tier fp32.

    x        [256, 512] bf16, strides (512, 1)
    w        [512, 256] bf16, strides (1, 512)
    a        [512, 16] fp32, strides (1, 512)
    b        [16, 256] fp32, strides (1, 16)
    out      [M, 256] bf16 = x @ w + 2.0 * (x @ a) @ b

    down_0: tile 32xRPx64, 1 programs for a block of rows, 4 warps, 3 stages
    main_0: tile 64x64x64, 4 programs for a block of rows, 4 warps, 2 stages

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
def in_pieces(a, dtype: tl.constexpr):
    # Three 8-bit significands hold the 24 bits of fp32: high + middle + low is a itself, down to about 2**-110.
    high = a.to(dtype)
    rest = a - high.to(tl.float32)
    middle = rest.to(dtype)
    low = (rest - middle.to(tl.float32)).to(dtype)
    return high, middle, low


@triton.jit
def pieces_beside(a, dtype: tl.constexpr):
    # The pieces of each column, and zeros as the fourth, beside one another.
    high, middle, low = in_pieces(a, dtype)
    pieces = tl.join(tl.join(high, middle), tl.join(low, tl.zeros_like(low)))
    return tl.reshape(pieces, (a.shape[0], 4 * a.shape[1]))


@triton.jit
def down_0(
    x_ptr,
    a_ptr,
    y_ptr,
    M,
    K: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    y = tl.zeros((BLOCK_M, 4 * RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        a = tl.load(a_tile)
        y = tl.dot(x, pieces_beside(a, x.dtype), y)
        x_tile += BLOCK_K * X_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K
    y = tl.sum(tl.reshape(y, (BLOCK_M, RP, 4)), 2)

    y_tile = y_ptr + rows[:, None] * RP + ranks[None, :]
    tl.store(y_tile, y, mask=rows[:, None] < M)


@triton.jit
def main_0(
    b_ptr,
    x_ptr,
    w_ptr,
    y_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    ranks = tl.arange(0, RP)
    row_blocks = tl.cdiv(M, BLOCK_M)
    row_block = tile % row_blocks
    col_block = tile // row_blocks
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    # The low-rank product opens the accumulator, which rounds once, after the K loop.
    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    y_high, y_middle, y_low = in_pieces(y, x_ptr.dtype.element_ty)
    b_high, b_middle, b_low = in_pieces(b, x_ptr.dtype.element_ty)
    acc = tl.dot(y_high, b_low)
    acc = tl.dot(y_middle, b_middle, acc)
    acc = tl.dot(y_low, b_high, acc)
    acc = tl.dot(y_high, b_middle, acc)
    acc = tl.dot(y_middle, b_high, acc)
    acc = tl.dot(y_high, b_high, acc)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        acc = tl.dot(x, w, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, w, a, b, empty=torch.empty):
    """out from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    y = empty((1, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 32),)](
        x_ptr=x,
        a_ptr=a,
        y_ptr=y,
        M=m,
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        BLOCK_M=32,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
    )
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w.shape[1], 64),)](
        b_ptr=b,
        x_ptr=x,
        w_ptr=w,
        y_ptr=y,
        out_ptr=out,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        RP=16,
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        SCALE=2.0,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=64,
        num_warps=4,
        num_stages=2,
    )
    return (out,)


def eager(x, w, a, b):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y = x.to(a.dtype) @ a
    out = x @ w + 2.0 * (y @ b)
    return (out,)


NAME = "split_fp32_adapters"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 256, 512, 256
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 131, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (512, 1), HALF, 1, 0.0),  # x
    ((K, N), (1, 512), HALF, 0.04419, 0.0),  # w
    ((K, 16), (1, 512), torch.float32, 0.04419, 0.0),  # a
    ((16, N), (1, 16), torch.float32, 0.125, 0.0),  # b
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
