"""horizontal_split: schedule horizontal, tier fp32.

    x        [1, 4096] bf16, strides (4096, 1)
    w        [4096, 28672] bf16, strides (1, 4096)
    a        [4096, 8] bf16, strides (1, 4096)
    b        [8, 28672] bf16, strides (1, 8)
    out      [M, 28672] bf16 = x @ w + 2.0 * (x @ a) @ b

    bundle_0: tile 16x32x128, transposed and 16xRPx128, transposed, 3584 + 8 programs for a block of rows, 4 warps, 4
        stages
    up_0: tile 16x64, 448 programs for a block of rows, 4 warps, 2 stages

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
    product_ptr,
    M,
    N: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    k_slice = tile % K_SPLIT
    tile = tile // K_SPLIT
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    x_tile = x_ptr + safe_rows[None, :] * X_STRIDE_M + ks[:, None] * X_STRIDE_K
    w_tile = w_ptr + ks[None, :] * W_STRIDE_K + cols[:, None] * W_STRIDE_N
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    w_tile += first_k * W_STRIDE_K
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        acc = tl.dot(w, x, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    product_tile = product_ptr + k_slice * M * N + rows[None, :] * N + cols[:, None]
    tl.store(product_tile, acc, mask=rows[None, :] < M)


@triton.jit
def down_tile_0(
    tile,
    x_ptr,
    a_ptr,
    y_ptr,
    M,
    R: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    k_slice = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[None, :] * X_STRIDE_M + ks[:, None] * X_STRIDE_K
    a_tile = a_ptr + ks[None, :] * A_STRIDE_K + ranks[:, None] * A_STRIDE_R
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    a_tile += first_k * A_STRIDE_K
    y = tl.zeros((RP, BLOCK_M), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        a = tl.load(a_tile, mask=ranks[:, None] < R, other=0.0)
        y = tl.dot(a, x, y)
        x_tile += BLOCK_K * X_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    y_tile = y_ptr + k_slice * M * RP + rows[None, :] * RP + ranks[:, None]
    tl.store(y_tile, y, mask=rows[None, :] < M)


@triton.jit
def bundle_0(
    x_ptr,
    w_ptr,
    a_ptr,
    product_ptr,
    y_ptr,
    M,
    N: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    K_SPLIT_0: tl.constexpr,
    K_SLICE_0: tl.constexpr,
    K_SLICE_1: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    end_0 = tl.cdiv(N, BLOCK_N) * K_SPLIT_0
    tile = tl.program_id(0)
    # No else: Triton gives the operand tiles of an if and of its else shared memory of their own.
    if tile < end_0:
        main_tile_0(
            tile,
            x_ptr,
            w_ptr,
            product_ptr,
            M,
            N,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            K_SPLIT_0,
            K_SLICE_0,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_0 <= tile:
        down_tile_0(
            tile - end_0,
            x_ptr,
            a_ptr,
            y_ptr,
            M,
            R,
            RP,
            X_STRIDE_M,
            X_STRIDE_K,
            A_STRIDE_K,
            A_STRIDE_R,
            K_SLICE_1,
            BLOCK_M,
            BLOCK_K,
        )


@triton.jit
def up_0(
    b_ptr,
    product_ptr,
    y_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    PRODUCT_SLICES: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tl.program_id(0)
    ranks = tl.arange(0, RP)
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)

    acc_tile = product_ptr + safe_rows[:, None] * N + cols[None, :]
    acc = tl.load(acc_tile)
    for _ in tl.static_range(1, PRODUCT_SLICES):
        acc_tile += M * N
        acc += tl.load(acc_tile)
    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    for _ in tl.static_range(1, K_SPLIT):
        y_tile += M * RP
        y += tl.load(y_tile)
    y = tl.where(ranks[None, :] < R, y, 0.0)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile, mask=ranks[:, None] < R, other=0.0)
    acc = tl.dot(y.to(b.dtype), b, acc)

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, w, a, b, empty=torch.empty):
    """out from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    y = empty((8, m, 16), dtype=torch.float32, device=x.device)
    product = empty((4, m, w.shape[1]), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(m, 16) * triton.cdiv(w.shape[1], 32) * 4
    tiles += triton.cdiv(m, 16) * 8
    bundle_0[(tiles,)](
        x_ptr=x,
        w_ptr=w,
        a_ptr=a,
        product_ptr=product,
        y_ptr=y,
        M=m,
        N=w.shape[1],
        R=8,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        K_SPLIT_0=4,
        K_SLICE_0=triton.cdiv(x.shape[1], 512) * 128,
        K_SLICE_1=triton.cdiv(x.shape[1], 1024) * 128,
        BLOCK_M=16,
        BLOCK_N=32,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    up_0[(triton.cdiv(m, 16) * triton.cdiv(w.shape[1], 64),)](
        b_ptr=b,
        product_ptr=product,
        y_ptr=y,
        out_ptr=out,
        M=m,
        N=w.shape[1],
        R=8,
        RP=16,
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        SCALE=2.0,
        PRODUCT_SLICES=4,
        K_SPLIT=8,
        BLOCK_M=16,
        BLOCK_N=64,
        num_warps=4,
        num_stages=2,
    )
    return (out,)


def eager(x, w, a, b):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y = x @ a
    out = x @ w + 2.0 * (y @ b)
    return (out,)


NAME = "horizontal_split"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 1, 4096, 28672
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 1, 2048, 64
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N), (1, 4096), HALF, 0.01562, 0.0),  # w
    ((K, 8), (1, 4096), HALF, 0.01562, 0.0),  # a
    ((8, N), (1, 8), HALF, 0.1768, 0.0),  # b
)
RESULTS = ("out",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N={N}"
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
