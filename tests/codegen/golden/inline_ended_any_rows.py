"""inline_ended_any_rows: schedule inline, tier fp32.

    x        [M (about 300), 200] bf16, strides (200, 1)
    w_0      [200, 136] bf16, strides (1, 200)
    a_0      [200, 12] bf16, strides (1, 200)
    b_0      [12, 136] bf16, strides (1, 12)
    out_0    in registers = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [200, 136] bf16, strides (1, 200)
    a_1      [200, 4] bf16, strides (1, 200)
    b_1      [4, 136] bf16, strides (1, 4)
    out_1    in registers = x @ w_1 + 2.0 * (x @ a_1) @ b_1
    z_0      [M, 1] bf16, strides (1, 1)
    z_1      [M, 136] bf16, strides (136, 1)
    z_2      [about 100, 136] bf16, strides (136, 1)
    h        [M, 136] bf16 of out_0, out_1, z_0, z_1, z_2: silu, mul, mul, add, mul

    main_0: tile 32x64x32, 3 programs for a block of rows, 4 warps, 3 stages

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
def main_0(
    x_ptr,
    w0_ptr,
    w1_ptr,
    a0_ptr,
    a1_ptr,
    b0_ptr,
    b1_ptr,
    z0_ptr,
    z1_ptr,
    z2_ptr,
    h_ptr,
    M,
    Z2_M,
    N: tl.constexpr,
    K: tl.constexpr,
    R0: tl.constexpr,
    R1: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W0_STRIDE_K: tl.constexpr,
    W0_STRIDE_N: tl.constexpr,
    W1_STRIDE_K: tl.constexpr,
    W1_STRIDE_N: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    B0_STRIDE_R: tl.constexpr,
    B0_STRIDE_N: tl.constexpr,
    B1_STRIDE_R: tl.constexpr,
    B1_STRIDE_N: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z1_STRIDE_M: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
    Z2_STRIDE_M: tl.constexpr,
    Z2_STRIDE_N: tl.constexpr,
    SCALE0: tl.constexpr,
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
    w0_tile = w0_ptr + ks[:, None] * W0_STRIDE_K + safe_cols[None, :] * W0_STRIDE_N
    w1_tile = w1_ptr + ks[:, None] * W1_STRIDE_K + safe_cols[None, :] * W1_STRIDE_N
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks0[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks1[None, :] * A1_STRIDE_R
    acc0 = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc1 = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    y0 = tl.zeros((BLOCK_M, RP0), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP1), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w0 = tl.load(w0_tile, mask=ks[:, None] < K - k, other=0.0)
        w1 = tl.load(w1_tile, mask=ks[:, None] < K - k, other=0.0)
        a0 = tl.load(a0_tile, mask=(ks[:, None] < K - k) & (ranks0[None, :] < R0), other=0.0)
        a1 = tl.load(a1_tile, mask=(ks[:, None] < K - k) & (ranks1[None, :] < R1), other=0.0)
        acc0 = tl.dot(x, w0, acc0)
        acc1 = tl.dot(x, w1, acc1)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        x_tile += BLOCK_K * X_STRIDE_K
        w0_tile += BLOCK_K * W0_STRIDE_K
        w1_tile += BLOCK_K * W1_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    y0 = tl.where(ranks0[None, :] < R0, y0, 0.0)
    y0 *= SCALE0
    b0_tile = b0_ptr + ranks0[:, None] * B0_STRIDE_R + safe_cols[None, :] * B0_STRIDE_N
    b0 = tl.load(b0_tile, mask=ranks0[:, None] < R0, other=0.0)
    acc0 = tl.dot(y0.to(b0.dtype), b0, acc0)
    y1 = tl.where(ranks1[None, :] < R1, y1, 0.0)
    y1 *= SCALE1
    b1_tile = b1_ptr + ranks1[:, None] * B1_STRIDE_R + safe_cols[None, :] * B1_STRIDE_N
    b1 = tl.load(b1_tile, mask=ranks1[:, None] < R1, other=0.0)
    acc1 = tl.dot(y1.to(b1.dtype), b1, acc1)

    z0 = tl.load(z0_ptr + safe_rows * Z0_STRIDE_M)[:, None].to(tl.float32)
    z1_tile = z1_ptr + safe_rows[:, None] * Z1_STRIDE_M + safe_cols[None, :] * Z1_STRIDE_N
    z1 = tl.load(z1_tile)
    z1 = z1.to(tl.float32)
    z2_tile = z2_ptr + (safe_rows % Z2_M)[:, None] * Z2_STRIDE_M + safe_cols[None, :] * Z2_STRIDE_N
    z2 = tl.load(z2_tile)
    z2 = z2.to(tl.float32)
    silu_1 = silu(acc0)
    mul = silu_1 * acc1
    mul_1 = mul * z0
    add = mul_1 + z1
    mul_2 = add * z2
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, mul_2.to(h_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


def launch(x, w_0, a_0, b_0, w_1, a_1, b_1, z_0, z_1, z_2, empty=torch.empty):
    """h from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    main_0[(triton.cdiv(m, 32) * triton.cdiv(w_0.shape[1], 64),)](
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_1,
        a0_ptr=a_0,
        a1_ptr=a_1,
        b0_ptr=b_0,
        b1_ptr=b_1,
        z0_ptr=z_0,
        z1_ptr=z_1,
        z2_ptr=z_2,
        h_ptr=h,
        M=m,
        Z2_M=z_2.shape[0],
        N=w_0.shape[1],
        K=x.shape[1],
        R0=12,
        R1=4,
        RP0=16,
        RP1=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W0_STRIDE_K=w_0.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_K=w_1.stride(0),
        W1_STRIDE_N=w_1.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        B0_STRIDE_R=b_0.stride(0),
        B0_STRIDE_N=b_0.stride(1),
        B1_STRIDE_R=b_1.stride(0),
        B1_STRIDE_N=b_1.stride(1),
        Z0_STRIDE_M=z_0.stride(0),
        Z1_STRIDE_M=z_1.stride(0),
        Z1_STRIDE_N=z_1.stride(1),
        Z2_STRIDE_M=z_2.stride(0),
        Z2_STRIDE_N=z_2.stride(1),
        SCALE0=2.0,
        SCALE1=2.0,
        GROUP_M=8,
        BLOCK_M=32,
        BLOCK_N=64,
        BLOCK_K=32,
        num_warps=4,
        num_stages=3,
    )
    return (h,)


aten = torch.ops.aten


def repeated(value, whole):
    """A matrix as often as it fits into the shape of ``whole``."""
    return value.repeat(*(size // own for size, own in zip(whole.shape, value.shape)))


def eager(x, w_0, a_0, b_0, w_1, a_1, b_1, z_0, z_1, z_2):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x @ a_0
    out_0 = x @ w_0 + 2.0 * (y_0 @ b_0)
    y_1 = x @ a_1
    out_1 = x @ w_1 + 2.0 * (y_1 @ b_1)
    v0_0 = aten.silu.default(out_0)
    v0_1 = aten.mul.Tensor(v0_0, out_1)
    v0_2 = aten.mul.Tensor(v0_1, z_0)
    v0_3 = aten.add.Tensor(v0_2, z_1, alpha=1)
    v0_4 = aten.mul.Tensor(v0_3, repeated(z_2, out_0))
    h = v0_4
    return (h,)


NAME = "inline_ended_any_rows"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1 = 300, 200, 136, 136
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1 = 69, 72, 136, 136
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 200), HALF, 0.07071, 0.0),  # w_0
    ((K, 12), (1, 200), HALF, 0.07071, 0.0),  # a_0
    ((12, N_0), (1, 12), HALF, 0.1443, 0.0),  # b_0
    ((K, N_1), (1, 200), HALF, 0.07071, 0.0),  # w_1
    ((K, 4), (1, 200), HALF, 0.07071, 0.0),  # a_1
    ((4, N_1), (1, 4), HALF, 0.25, 0.0),  # b_1
    ((M, 1), (1, 1), HALF, 1, 0.0),  # z_0
    ((M, N_0), (136, 1), HALF, 1, 0.0),  # z_1
    ((M // 3, N_0), (136, 1), HALF, 1, 0.0),  # z_2
)
RESULTS = ("h",)
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
