"""two_pool_stripes: schedule two_pool, tier fp32.

    x        [2048, 4096] bf16, strides (4096, 1)
    w        [4096, 4096] bf16, strides (1, 4096)
    a        [4096, 16] bf16, strides (1, 4096)
    b        [16, 4096] bf16, strides (1, 16)
    out      [M, 4096] bf16 = x @ w + 2.0 * (x @ a) @ b

    two_pool_0: tile 128x256x64 and 128xRPx64, 16 tiles for a block of rows, TMA, 132 persistent programs, 8 warps, 3
        stages

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


def scratch(size, alignment, stream):
    """Memory for the descriptors that the kernels make."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit
def main_tile_0(
    tile,
    x_desc,
    w_desc,
    out_desc,
    b_ptr,
    counters_ptr,
    y_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP_M: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    ranks = tl.arange(0, RP)
    # Grouped ordering: GROUP_M row blocks walk the columns together and share W's tiles in L2.
    row_blocks = tl.cdiv(M, BLOCK_M)
    group_size = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_row_block = tile // group_size * GROUP_M
    group_rows = min(row_blocks - first_row_block, GROUP_M)
    row_block = first_row_block + tile % group_size % group_rows
    col_block = tile % group_size // group_rows
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)

    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = x_desc.load([row_block * BLOCK_M, k])
        w = w_desc.load([col_block * BLOCK_N, k]).T
        acc = tl.dot(x, w, acc)

    # A running worker has taken the down tiles of these rows; it does not wait for anyone.
    while tl.atomic_add(counters_ptr + 3 + row_block, 0, sem="acquire") < K_SPLIT:
        pass
    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    for _ in tl.static_range(1, K_SPLIT):
        y_tile += M * RP
        y += tl.load(y_tile)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    acc = tl.dot(y.to(b.dtype), b, acc)

    out_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], acc.to(out_desc.dtype))


@triton.jit
def down_tile_0(
    tile,
    x_ptr,
    a_ptr,
    y_ptr,
    M,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_block = tile // K_SPLIT
    k_slice = tile % K_SPLIT
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    a_tile += first_k * A_STRIDE_K
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        a = tl.load(a_tile)
        y = tl.dot(x, a, y)
        x_tile += BLOCK_K * X_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    y_tile = y_ptr + k_slice * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y_tile, y, mask=rows[:, None] < M)


@triton.jit
def two_pool_0(
    x_ptr,
    w_ptr,
    a_ptr,
    b_ptr,
    out_ptr,
    counters_ptr,
    y_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP_M: tl.constexpr,
    DOWN_WORKERS: tl.constexpr,
    LATE: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [X_STRIDE_M, 1], [BLOCK_M, BLOCK_K])
    w_desc = tl.make_tensor_descriptor(w_ptr, [N, K], [W_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    out_desc = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    down_tiles = tl.cdiv(M, BLOCK_M) * K_SPLIT
    worker = tl.atomic_add(counters_ptr, 1, sem="relaxed")
    if worker < DOWN_WORKERS:
        down_tile = tl.atomic_add(counters_ptr + 1, 1, sem="relaxed")
        while down_tile < down_tiles:
            down_tile_0(
                down_tile,
                x_ptr,
                a_ptr,
                y_ptr,
                M,
                RP,
                X_STRIDE_M,
                X_STRIDE_K,
                A_STRIDE_K,
                A_STRIDE_R,
                K_SPLIT,
                K_SLICE,
                BLOCK_M,
                BLOCK_K,
            )
            tl.debug_barrier()
            tl.atomic_add(counters_ptr + 3 + down_tile // K_SPLIT, 1, sem="release")
            down_tile = tl.atomic_add(counters_ptr + 1, 1, sem="relaxed")
    workers = tl.num_programs(0)
    others = tl.maximum(workers - DOWN_WORKERS, 0)
    late = LATE * others
    # Down workers sit out the first LATE turns: they have no tile then.
    for turn in range(LATE + tl.cdiv(tl.maximum(tiles - late, 0), workers)):
        tile = late + (turn - LATE) * workers + worker
        if turn < LATE:
            tile = tl.where(worker < DOWN_WORKERS, tiles, turn * others + worker - DOWN_WORKERS)
        if tile < tiles:
            main_tile_0(
                tile,
                x_desc,
                w_desc,
                out_desc,
                b_ptr,
                counters_ptr,
                y_ptr,
                M,
                N,
                K,
                RP,
                B_STRIDE_R,
                B_STRIDE_N,
                SCALE,
                GROUP_M,
                K_SPLIT,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
            )


def launch(x, w, a, b, empty=torch.empty):
    """out from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    triton.set_allocator(scratch)
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    y = empty((4, m, 16), dtype=torch.float32, device=x.device)
    counters = torch.zeros((4, m), dtype=torch.int32, device=x.device)
    two_pool_0[(min(132, triton.cdiv(m, 128) * triton.cdiv(w.shape[1], 256)),)](
        x_ptr=x,
        w_ptr=w,
        a_ptr=a,
        b_ptr=b,
        out_ptr=out,
        counters_ptr=counters,
        y_ptr=y,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        W_STRIDE_N=w.stride(1),
        X_STRIDE_K=x.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        SCALE=2.0,
        GROUP_M=2,
        DOWN_WORKERS=64,
        LATE=1,
        K_SPLIT=4,
        K_SLICE=triton.cdiv(x.shape[1], 256) * 64,
        BLOCK_M=128,
        BLOCK_N=256,
        BLOCK_K=64,
        num_warps=8,
        num_stages=3,
    )
    return (out,)


def eager(x, w, a, b):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y = x @ a
    out = x @ w + 2.0 * (y @ b)
    return (out,)


NAME = "two_pool_stripes"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 2048, 4096, 4096
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 259, 512, 512
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N), (1, 4096), HALF, 0.01562, 0.0),  # w
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a
    ((16, N), (1, 16), HALF, 0.125, 0.0),  # b
)
RESULTS = ("out",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N={N}"
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
