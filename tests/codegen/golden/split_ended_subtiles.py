"""split_ended_subtiles: schedule split, tier fp32.

    x        [300, 256] bf16, strides (256, 1)
    w_0      [256, 192] bf16, strides (1, 256)
    a_0      [256, 12] bf16, strides (1, 256)
    b_0      [12, 192] bf16, strides (1, 12)
    out_0    in registers = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [256, 192] bf16, strides (1, 256)
    out_1    in registers = x @ w_1
    z        [300, 192] bf16, strides (192, 1)
    h_0      [M, 192] bf16 of out_0, out_1, z: mul, mul
    h_1      [M, 192] bf16 of out_0, out_1, z: mul, mul

    down_0: tile 64xRPx128, 1 programs for a block of rows, 4 warps, 4 stages
    main_0: tile 64x64x64, 3 tiles for a block of rows, TMA, 3 persistent programs, 4 warps, 3 stages

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
def down_0(
    x_ptr,
    a_ptr,
    y_ptr,
    M,
    K: tl.constexpr,
    R: tl.constexpr,
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
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        a = tl.load(a_tile, mask=ranks[None, :] < R, other=0.0)
        y = tl.dot(x, a, y)
        x_tile += BLOCK_K * X_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    y_tile = y_ptr + rows[:, None] * RP + ranks[None, :]
    tl.store(y_tile, y, mask=rows[:, None] < M)


@triton.jit
def main_0(
    x_ptr,
    w0_ptr,
    w1_ptr,
    b_ptr,
    z_ptr,
    h0_ptr,
    h1_ptr,
    y_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    W0_STRIDE_N: tl.constexpr,
    W1_STRIDE_N: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    Z_STRIDE_M: tl.constexpr,
    Z_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    WORKERS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [X_STRIDE_M, 1], [BLOCK_M, BLOCK_K])
    w0_desc = tl.make_tensor_descriptor(w0_ptr, [N, K], [W0_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    w1_desc = tl.make_tensor_descriptor(w1_ptr, [N, K], [W1_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    h0_desc = tl.make_tensor_descriptor(h0_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])
    h1_desc = tl.make_tensor_descriptor(h1_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, WORKERS):
        ranks = tl.arange(0, RP)
        row_blocks = tl.cdiv(M, BLOCK_M)
        row_block = tile % row_blocks
        col_block = tile // row_blocks
        rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
        safe_rows = rows % M
        cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)

        # The low-rank product opens the accumulator, which rounds once, after the K loop.
        y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
        y = tl.load(y_tile)
        y = tl.where(ranks[None, :] < R, y, 0.0)
        y *= SCALE
        b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
        b = tl.load(b_tile, mask=ranks[:, None] < R, other=0.0)
        acc0 = tl.dot(y.to(b.dtype), b)
        acc1 = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)

        for k in range(0, K, BLOCK_K):
            x = x_desc.load([row_block * BLOCK_M, k])
            w0 = w0_desc.load([col_block * BLOCK_N, k]).T
            w1 = w1_desc.load([col_block * BLOCK_N, k]).T
            acc0 = tl.dot(x, w0, acc0)
            acc1 = tl.dot(x, w1, acc1)

        z_tile = z_ptr + safe_rows[:, None] * Z_STRIDE_M + cols[None, :] * Z_STRIDE_N
        z = tl.load(z_tile)
        z = z.to(tl.float32)
        mul = acc0 * acc1
        mul_1 = mul * z
        # Stored in 2 parts, one after another: the shared memory of one is enough.
        h0_part0, h0_part1 = tl.split(tl.permute(tl.reshape(mul, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        h0_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], h0_part0.to(h0_desc.dtype))
        h0_desc.store([row_block * BLOCK_M, col_block * BLOCK_N + 1 * (BLOCK_N // 2)], h0_part1.to(h0_desc.dtype))
        # Stored in 2 parts, one after another: the shared memory of one is enough.
        h1_part0, h1_part1 = tl.split(tl.permute(tl.reshape(mul_1, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        h1_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], h1_part0.to(h1_desc.dtype))
        h1_desc.store([row_block * BLOCK_M, col_block * BLOCK_N + 1 * (BLOCK_N // 2)], h1_part1.to(h1_desc.dtype))


def launch(x, w_0, a_0, b_0, w_1, z, empty=torch.empty):
    """h_0, h_1 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    triton.set_allocator(scratch)
    m = x.shape[0]
    h_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    h_1 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    y_0 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 64),)](
        x_ptr=x,
        a_ptr=a_0,
        y_ptr=y_0,
        M=m,
        K=x.shape[1],
        R=12,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A_STRIDE_K=a_0.stride(0),
        A_STRIDE_R=a_0.stride(1),
        BLOCK_M=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    main_0[(min(3, triton.cdiv(m, 64) * triton.cdiv(w_0.shape[1], 64)),)](
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_1,
        b_ptr=b_0,
        z_ptr=z,
        h0_ptr=h_0,
        h1_ptr=h_1,
        y_ptr=y_0,
        M=m,
        N=w_0.shape[1],
        K=x.shape[1],
        R=12,
        RP=16,
        X_STRIDE_M=x.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_N=w_1.stride(1),
        B_STRIDE_R=b_0.stride(0),
        B_STRIDE_N=b_0.stride(1),
        Z_STRIDE_M=z.stride(0),
        Z_STRIDE_N=z.stride(1),
        SCALE=2.0,
        WORKERS=3,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
    )
    return h_0, h_1


aten = torch.ops.aten


def eager(x, w_0, a_0, b_0, w_1, z):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x @ a_0
    out_0 = x @ w_0 + 2.0 * (y_0 @ b_0)
    out_1 = x @ w_1
    v0_0 = aten.mul.Tensor(out_0, out_1)
    v0_1 = aten.mul.Tensor(v0_0, z)
    h_0 = v0_0
    h_1 = v0_1
    return h_0, h_1


NAME = "split_ended_subtiles"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1 = 300, 256, 192, 192
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1 = 131, 256, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (256, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 256), HALF, 0.0625, 0.0),  # w_0
    ((K, 12), (1, 256), HALF, 0.0625, 0.0),  # a_0
    ((12, N_0), (1, 12), HALF, 0.1443, 0.0),  # b_0
    ((K, N_1), (1, 256), HALF, 0.0625, 0.0),  # w_1
    ((M, N_0), (192, 1), HALF, 1, 0.0),  # z
)
RESULTS = ("h_0", "h_1")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}"
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
