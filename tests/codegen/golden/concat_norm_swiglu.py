"""concat_norm_swiglu: schedule concat, tier fp32.

    x        [16, 4096] bf16, strides (4096, 1)
    g        [4096] fp32, strides (1,)
    xn       [M, 4096] in registers = x * rsqrt(mean(x * x) + 1e-06) * g
    w_0      [4096, 14336] bf16, strides (1, 4096)
    out_0    in registers = xn @ w_0
    w_1      [4096, 14336] bf16, strides (1, 4096)
    out_1    in registers = xn @ w_1
    h        [M, 14336] bf16 of out_0, out_1: silu, mul

    main_0: tile 16x64x128, transposed, 224 programs for a block of rows, 4 warps, 3 stages

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
    g_ptr,
    h_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W0_STRIDE_K: tl.constexpr,
    W0_STRIDE_N: tl.constexpr,
    W1_STRIDE_K: tl.constexpr,
    W1_STRIDE_N: tl.constexpr,
    G_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    x_tile = x_ptr + safe_rows[None, :] * X_STRIDE_M + ks[:, None] * X_STRIDE_K
    w0_tile = w0_ptr + ks[None, :] * W0_STRIDE_K + cols[:, None] * W0_STRIDE_N
    w1_tile = w1_ptr + ks[None, :] * W1_STRIDE_K + cols[:, None] * W1_STRIDE_N
    acc0 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc1 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    squares = tl.zeros((BLOCK_K, BLOCK_M), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w0 = tl.load(w0_tile)
        w1 = tl.load(w1_tile)
        wide = x.to(tl.float32)
        squares += wide * wide
        g = tl.load(g_ptr + (k + ks) * G_STRIDE)
        x = (wide * g[:, None]).to(x.dtype)
        acc0 = tl.dot(w0, x, acc0)
        acc1 = tl.dot(w1, x, acc1)
        x_tile += BLOCK_K * X_STRIDE_K
        w0_tile += BLOCK_K * W0_STRIDE_K
        w1_tile += BLOCK_K * W1_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 0) / K + EPSILON)
    acc0 *= rstd[None, :]
    acc1 *= rstd[None, :]

    silu_1 = silu(acc0)
    mul = silu_1 * acc1
    h_tile = h_ptr + rows[None, :] * N + cols[:, None]
    tl.store(h_tile, mul.to(h_ptr.dtype.element_ty), mask=rows[None, :] < M)


def launch(x, g, w_0, w_1, empty=torch.empty):
    """h from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    main_0[(triton.cdiv(m, 16) * triton.cdiv(w_0.shape[1], 64),)](
        x_ptr=x,
        w0_ptr=w_0,
        w1_ptr=w_1,
        g_ptr=g,
        h_ptr=h,
        M=m,
        N=w_0.shape[1],
        K=x.shape[1],
        EPSILON=1e-06,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W0_STRIDE_K=w_0.stride(0),
        W0_STRIDE_N=w_0.stride(1),
        W1_STRIDE_K=w_1.stride(0),
        W1_STRIDE_N=w_1.stride(1),
        G_STRIDE=g.stride(0),
        BLOCK_M=16,
        BLOCK_N=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=3,
    )
    return (h,)


aten = torch.ops.aten


def eager(x, g, w_0, w_1):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    xn = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-06) * g).to(x.dtype)
    out_0 = xn @ w_0
    out_1 = xn @ w_1
    v0_0 = aten.silu.default(out_0)
    v0_1 = aten.mul.Tensor(v0_0, out_1)
    h = v0_1
    return (h,)


NAME = "concat_norm_swiglu"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1 = 16, 4096, 14336, 14336
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1 = 16, 256, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K,), (1,), torch.float32, 0.2, 1.0),  # g
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
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
