"""inline_residual: schedule inline, tier fp32.

    x        [300, 200] bf16, strides (200, 1)
    w        [200, 330] bf16, strides (1, 200)
    bias     [330] bf16, strides (1,)
    a        [200, 12] bf16, strides (1, 200)
    b        [12, 330] bf16, strides (1, 12)
    out      [M, 330] bf16 = x @ w + bias + 2.0 * (x @ a) @ b
    z_0      [300, 330] bf16, strides (336, 1)
    z_1      [1, 330] fp32, strides (330, 1)
    z_2      [300, 1] bf16, strides (1, 1)
    z_3      [] fp32
    h_0      [M, 330] bf16 of out, z_0, z_1, z_2, z_3: add, mul, mul, div
    h_1      [M, 330] fp32 of out, z_0, z_1, z_2, z_3: add, mul, mul, div

    main_0: tile 32x64x32, 6 programs for a block of rows, 4 warps, 3 stages

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
def divide(a, b):
    # As IEEE has it; Triton's own fp32 division is approximate.
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def main_0(
    x_ptr,
    w_ptr,
    a_ptr,
    b_ptr,
    bias_ptr,
    z0_ptr,
    z1_ptr,
    z2_ptr,
    z3_ptr,
    out_ptr,
    h0_ptr,
    h1_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    A_STRIDE_K: tl.constexpr,
    A_STRIDE_R: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    BIAS_STRIDE: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z0_STRIDE_N: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
    Z2_STRIDE_M: tl.constexpr,
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
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_cols = cols % N
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + safe_cols[None, :] * W_STRIDE_N
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[None, :] < K - k, other=0.0)
        w = tl.load(w_tile, mask=ks[:, None] < K - k, other=0.0)
        a = tl.load(a_tile, mask=(ks[:, None] < K - k) & (ranks[None, :] < R), other=0.0)
        acc = tl.dot(x, w, acc)
        y = tl.dot(x, a, y)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    y = tl.where(ranks[None, :] < R, y, 0.0)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + safe_cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile, mask=ranks[:, None] < R, other=0.0)
    acc = tl.dot(y.to(b.dtype), b, acc)

    bias = tl.load(bias_ptr + safe_cols * BIAS_STRIDE).to(tl.float32)
    acc += bias[None, :]
    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
    z0_tile = z0_ptr + safe_rows[:, None] * Z0_STRIDE_M + safe_cols[None, :] * Z0_STRIDE_N
    z0 = tl.load(z0_tile)
    z0 = z0.to(tl.float32)
    z1 = tl.load(z1_ptr + safe_cols * Z1_STRIDE_N)[None, :]
    z2 = tl.load(z2_ptr + safe_rows * Z2_STRIDE_M)[:, None].to(tl.float32)
    z3 = tl.load(z3_ptr)
    add = acc + z0
    mul = add * z1
    mul_1 = mul * z2
    div = divide(mul_1, z3)
    h0_tile = h0_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h0_tile, add.to(h0_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
    h1_tile = h1_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h1_tile, div, mask=(rows[:, None] < M) & (cols[None, :] < N))


def launch(x, w, bias, a, b, z_0, z_1, z_2, z_3, empty=torch.empty):
    """out, h_0, h_1 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    out = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    h_0 = empty((m, w.shape[1]), dtype=x.dtype, device=x.device)
    h_1 = empty((m, w.shape[1]), dtype=torch.float32, device=x.device)
    main_0[(triton.cdiv(m, 32) * triton.cdiv(w.shape[1], 64),)](
        x_ptr=x,
        w_ptr=w,
        a_ptr=a,
        b_ptr=b,
        bias_ptr=bias,
        z0_ptr=z_0,
        z1_ptr=z_1,
        z2_ptr=z_2,
        z3_ptr=z_3,
        out_ptr=out,
        h0_ptr=h_0,
        h1_ptr=h_1,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        R=12,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        BIAS_STRIDE=bias.stride(0),
        Z0_STRIDE_M=z_0.stride(0),
        Z0_STRIDE_N=z_0.stride(1),
        Z1_STRIDE_N=z_1.stride(1),
        Z2_STRIDE_M=z_2.stride(0),
        SCALE=2.0,
        GROUP_M=8,
        BLOCK_M=32,
        BLOCK_N=64,
        BLOCK_K=32,
        num_warps=4,
        num_stages=3,
    )
    return out, h_0, h_1


aten = torch.ops.aten


def eager(x, w, bias, a, b, z_0, z_1, z_2, z_3):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y = x @ a
    out = x @ w + bias + 2.0 * (y @ b)
    v0_0 = aten.add.Tensor(out, z_0, alpha=1)
    v0_1 = aten.mul.Tensor(v0_0, z_1)
    v0_2 = aten.mul.Tensor(v0_1, z_2)
    v0_3 = aten.div.Tensor(v0_2, z_3)
    h_0 = v0_0
    h_1 = v0_3
    return out, h_0, h_1


NAME = "inline_residual"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 300, 200, 330
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 67, 72, 138
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), HALF, 1, 0.0),  # x
    ((K, N), (1, 200), HALF, 0.07071, 0.0),  # w
    ((N,), (1,), HALF, 1, 0.0),  # bias
    ((K, 12), (1, 200), HALF, 0.07071, 0.0),  # a
    ((12, N), (1, 12), HALF, 0.1443, 0.0),  # b
    ((M, N), (336, 1), HALF, 1, 0.0),  # z_0
    ((1, N), (330, 1), torch.float32, 1, 0.0),  # z_1
    ((M, 1), (1, 1), HALF, 1, 0.0),  # z_2
    ((), (), torch.float32, 1, 0.0),  # z_3
)
RESULTS = ("out", "h_0", "h_1")
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


if __name__ == "__main__" and not CUDA:
    print(f"{NAME}: not checked: on a CPU a function or a dtype of it is not what it is on a card; run it there")
    sys.exit(0)
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
