"""inline_qkv_fp32_adapters: schedule inline, tier fp32.

    x        [M (about 512), 4096] bf16, strides (4096, 1)
    w_0      [4096, 4096] bf16, strides (1, 4096)
    a_0      [4096, 16] fp32, strides (1, 4096)
    b_0      [16, 4096] fp32, strides (1, 16)
    out_0    [M, 4096] bf16 = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [4096, 1024] bf16, strides (1, 4096)
    a_1      [4096, 16] fp32, strides (1, 4096)
    b_1      [16, 1024] fp32, strides (1, 16)
    out_1    [M, 1024] bf16 = x @ w_1 + 2.0 * (x @ a_1) @ b_1
    w_2      [4096, 1024] bf16, strides (1, 4096)
    a_2      [4096, 16] fp32, strides (1, 4096)
    b_2      [16, 1024] fp32, strides (1, 16)
    out_2    [M, 1024] bf16 = x @ w_2 + 2.0 * (x @ a_2) @ b_2

    main_0: tile 64x128x64, 32 programs for a block of rows, 4 warps, 4 stages
    main_0: tile 64x128x64, 8 programs for a block of rows, 4 warps, 4 stages
    main_0: tile 64x128x64, 8 programs for a block of rows, 4 warps, 4 stages

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
def main_0(
    x_ptr,
    w_ptr,
    a_ptr,
    b_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
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
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    y = tl.zeros((BLOCK_M, 4 * RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        a = tl.load(a_tile)
        acc = tl.dot(x, w, acc)
        y = tl.dot(x, pieces_beside(a, x.dtype), y)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K
    y = tl.sum(tl.reshape(y, (BLOCK_M, RP, 4)), 2)

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    y_high, y_middle, y_low = in_pieces(y, x_ptr.dtype.element_ty)
    b_high, b_middle, b_low = in_pieces(b, x_ptr.dtype.element_ty)
    acc = tl.dot(y_high, b_low, acc)
    acc = tl.dot(y_middle, b_middle, acc)
    acc = tl.dot(y_low, b_high, acc)
    acc = tl.dot(y_high, b_middle, acc)
    acc = tl.dot(y_middle, b_high, acc)
    acc = tl.dot(y_high, b_high, acc)

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2, empty=torch.empty):
    """out_0, out_1, out_2 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    out_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_2 = empty((m, w_2.shape[1]), dtype=x.dtype, device=x.device)
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w_0.shape[1], 128),)](
        x_ptr=x,
        w_ptr=w_0,
        a_ptr=a_0,
        b_ptr=b_0,
        out_ptr=out_0,
        M=m,
        N=w_0.shape[1],
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w_0.stride(0),
        W_STRIDE_N=w_0.stride(1),
        A_STRIDE_K=a_0.stride(0),
        A_STRIDE_R=a_0.stride(1),
        B_STRIDE_R=b_0.stride(0),
        B_STRIDE_N=b_0.stride(1),
        SCALE=2.0,
        GROUP_M=8,
        BLOCK_M=64,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=4,
        num_stages=4,
    )
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w_1.shape[1], 128),)](
        x_ptr=x,
        w_ptr=w_1,
        a_ptr=a_1,
        b_ptr=b_1,
        out_ptr=out_1,
        M=m,
        N=w_1.shape[1],
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w_1.stride(0),
        W_STRIDE_N=w_1.stride(1),
        A_STRIDE_K=a_1.stride(0),
        A_STRIDE_R=a_1.stride(1),
        B_STRIDE_R=b_1.stride(0),
        B_STRIDE_N=b_1.stride(1),
        SCALE=2.0,
        GROUP_M=8,
        BLOCK_M=64,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=4,
        num_stages=4,
    )
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w_2.shape[1], 128),)](
        x_ptr=x,
        w_ptr=w_2,
        a_ptr=a_2,
        b_ptr=b_2,
        out_ptr=out_2,
        M=m,
        N=w_2.shape[1],
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w_2.stride(0),
        W_STRIDE_N=w_2.stride(1),
        A_STRIDE_K=a_2.stride(0),
        A_STRIDE_R=a_2.stride(1),
        B_STRIDE_R=b_2.stride(0),
        B_STRIDE_N=b_2.stride(1),
        SCALE=2.0,
        GROUP_M=8,
        BLOCK_M=64,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=4,
        num_stages=4,
    )
    return out_0, out_1, out_2


def eager(x, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x.to(a_0.dtype) @ a_0
    out_0 = x @ w_0 + 2.0 * (y_0 @ b_0)
    y_1 = x.to(a_1.dtype) @ a_1
    out_1 = x @ w_1 + 2.0 * (y_1 @ b_1)
    y_2 = x.to(a_2.dtype) @ a_2
    out_2 = x @ w_2 + 2.0 * (y_2 @ b_2)
    return out_0, out_1, out_2


NAME = "inline_qkv_fp32_adapters"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1, N_2 = 512, 4096, 4096, 1024, 1024
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1, N_2 = 131, 128, 256, 256, 256
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, 16), (1, 4096), torch.float32, 0.01562, 0.0),  # a_0
    ((16, N_0), (1, 16), torch.float32, 0.125, 0.0),  # b_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, 16), (1, 4096), torch.float32, 0.01562, 0.0),  # a_1
    ((16, N_1), (1, 16), torch.float32, 0.125, 0.0),  # b_1
    ((K, N_2), (1, 4096), HALF, 0.01562, 0.0),  # w_2
    ((K, 16), (1, 4096), torch.float32, 0.01562, 0.0),  # a_2
    ((16, N_2), (1, 16), torch.float32, 0.125, 0.0),  # b_2
)
RESULTS = ("out_0", "out_1", "out_2")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}, N_2={N_2}"
SETS = 5


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
