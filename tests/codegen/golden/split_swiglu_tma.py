"""split_swiglu_tma: schedule split, tier fp32.

    x        [2048, 4096] bf16, strides (4096, 1)
    w_0      [4096, 14336] bf16, strides (1, 4096)
    a_0      [4096, 16] bf16, strides (1, 4096)
    b_0      [16, 14336] bf16, strides (1, 16)
    out_0    in registers = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [4096, 14336] bf16, strides (1, 4096)
    a_1      [4096, 16] bf16, strides (1, 4096)
    b_1      [16, 14336] bf16, strides (1, 16)
    out_1    in registers = x @ w_1 + 2.0 * (x @ a_1) @ b_1
    h        [M, 14336] bf16 of out_0, out_1: silu, mul

    down_0: tile 64xRPx128, 2 programs for a block of rows, 4 warps, 4 stages
    main_0: tile 128x128x64, 112 tiles for a block of rows, TMA, 3 persistent programs, 8 warps, 3 stages, starts during
        the launch before

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

if triton.knobs.runtime.interpret:  # one launch after another, nothing to wait for
    DEPENDENT = {}

    def gdc_launch_dependents():
        pass

    def gdc_wait():
        pass
else:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    DEPENDENT = {"launch_pdl": True}  # starts while the launch before it still runs


def scratch(size, alignment, stream):
    """Memory for the descriptors that the kernels make."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


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
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # The next launch may start now: it waits for this one where it reads what is written here.
    gdc_launch_dependents()
    tile = tl.program_id(0)
    row_block = tile // K_SPLIT
    k_slice = tile % K_SPLIT
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks[None, :] * A1_STRIDE_R
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    a0_tile += first_k * A0_STRIDE_K
    a1_tile += first_k * A1_STRIDE_K
    y0 = tl.zeros((BLOCK_M, RP), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        a0 = tl.load(a0_tile)
        a1 = tl.load(a1_tile)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        x_tile += BLOCK_K * X_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K

    y0_tile = y0_ptr + k_slice * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y0_tile, y0, mask=rows[:, None] < M)
    y1_tile = y1_ptr + k_slice * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y1_tile, y1, mask=rows[:, None] < M)


@triton.jit
def main_0(
    x_ptr,
    w0_ptr,
    w1_ptr,
    b0_ptr,
    b1_ptr,
    h_ptr,
    y0_ptr,
    y1_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    W0_STRIDE_N: tl.constexpr,
    W1_STRIDE_N: tl.constexpr,
    B0_STRIDE_R: tl.constexpr,
    B0_STRIDE_N: tl.constexpr,
    B1_STRIDE_R: tl.constexpr,
    B1_STRIDE_N: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    GROUP_M: tl.constexpr,
    WORKERS: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [X_STRIDE_M, 1], [BLOCK_M, BLOCK_K])
    w0_desc = tl.make_tensor_descriptor(w0_ptr, [N, K], [W0_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    w1_desc = tl.make_tensor_descriptor(w1_ptr, [N, K], [W1_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    h_desc = tl.make_tensor_descriptor(h_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, WORKERS):
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

        acc0 = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        acc1 = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            x = x_desc.load([row_block * BLOCK_M, k])
            w0 = w0_desc.load([col_block * BLOCK_N, k]).T
            w1 = w1_desc.load([col_block * BLOCK_N, k]).T
            acc0 = tl.dot(x, w0, acc0)
            acc1 = tl.dot(x, w1, acc1)

        # The launch before may still run; what it writes is complete from here on.
        gdc_wait()
        y0_tile = y0_ptr + safe_rows[:, None] * RP + ranks[None, :]
        y0 = tl.load(y0_tile)
        for _ in tl.static_range(1, K_SPLIT):
            y0_tile += M * RP
            y0 += tl.load(y0_tile)
        y0 *= SCALE0
        b0_tile = b0_ptr + ranks[:, None] * B0_STRIDE_R + cols[None, :] * B0_STRIDE_N
        b0 = tl.load(b0_tile)
        acc0 = tl.dot(y0.to(b0.dtype), b0, acc0)
        y1_tile = y1_ptr + safe_rows[:, None] * RP + ranks[None, :]
        y1 = tl.load(y1_tile)
        for _ in tl.static_range(1, K_SPLIT):
            y1_tile += M * RP
            y1 += tl.load(y1_tile)
        y1 *= SCALE1
        b1_tile = b1_ptr + ranks[:, None] * B1_STRIDE_R + cols[None, :] * B1_STRIDE_N
        b1 = tl.load(b1_tile)
        acc1 = tl.dot(y1.to(b1.dtype), b1, acc1)

        silu_1 = silu(acc0)
        mul = silu_1 * acc1
        h_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], mul.to(h_desc.dtype))

    # The launch before may still run; what it writes is complete from here on.
    gdc_wait()


def launch(x, w_0, a_0, b_0, w_1, a_1, b_1, empty=torch.empty):
    """h from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    triton.set_allocator(scratch)
    m = x.shape[0]
    h = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    y_0 = empty((2, m, 16), dtype=torch.float32, device=x.device)
    y_1 = empty((2, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 64) * 2,)](
        x_ptr=x,
        a0_ptr=a_0,
        a1_ptr=a_1,
        y0_ptr=y_0,
        y1_ptr=y_1,
        M=m,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        K_SPLIT=2,
        K_SLICE=triton.cdiv(x.shape[1], 256) * 128,
        BLOCK_M=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    main_0[(min(3, triton.cdiv(m, 128) * triton.cdiv(w_0.shape[1], 128)),)](
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_1,
        b0_ptr=b_0,
        b1_ptr=b_1,
        h_ptr=h,
        y0_ptr=y_0,
        y1_ptr=y_1,
        M=m,
        N=w_0.shape[1],
        K=x.shape[1],
        RP=16,
        X_STRIDE_M=x.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_N=w_1.stride(1),
        B0_STRIDE_R=b_0.stride(0),
        B0_STRIDE_N=b_0.stride(1),
        B1_STRIDE_R=b_1.stride(0),
        B1_STRIDE_N=b_1.stride(1),
        SCALE0=2.0,
        SCALE1=2.0,
        GROUP_M=8,
        WORKERS=3,
        K_SPLIT=2,
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=8,
        num_stages=3,
        **DEPENDENT,
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


NAME = "split_swiglu_tma"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1 = 2048, 4096, 14336, 14336
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1 = 259, 512, 256, 256
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a_0
    ((16, N_0), (1, 16), HALF, 0.125, 0.0),  # b_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a_1
    ((16, N_1), (1, 16), HALF, 0.125, 0.0),  # b_1
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
