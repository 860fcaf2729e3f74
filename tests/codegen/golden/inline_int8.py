"""inline_int8: schedule inline, tier fp32.

    x        [64, 256] bf16, strides (256, 1)
    w        [256, 256] bf16, strides (1, 256)
    a        [256, 8] bf16, strides (1, 256)
    b        [8, 256] bf16, strides (1, 8)
    out      in registers = x @ w + 2.0 * (x @ a) @ b
    h        [M, 256] int8 of out: mul, round, clamp, to

    main_0: tile 64x64x64, 4 programs for a block of rows, 4 warps, 3 stages

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
from triton.language.extra import libdevice


@triton.jit
def at_least(x, low):
    # NaN stays; of two zeros the positive one is larger.
    if x.dtype == tl.float32:
        return tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x != x, x, tl.maximum(x, low))


@triton.jit
def at_most(x, high):
    if x.dtype == tl.float32:
        return tl.minimum(x, high, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x != x, x, tl.minimum(x, high))


@triton.jit
def main_0(
    x_ptr,
    w_ptr,
    a_ptr,
    b_ptr,
    h_ptr,
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
    SCALE: tl.constexpr,
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
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    a_tile = a_ptr + ks[:, None] * A_STRIDE_K + ranks[None, :] * A_STRIDE_R
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    y = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        a = tl.load(a_tile, mask=ranks[None, :] < R, other=0.0)
        acc = tl.dot(x, w, acc)
        y = tl.dot(x, a, y)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K
        a_tile += BLOCK_K * A_STRIDE_K

    # The low-rank product joins in the same accumulator, before the only rounding of the sum.
    y = tl.where(ranks[None, :] < R, y, 0.0)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile, mask=ranks[:, None] < R, other=0.0)
    acc = tl.dot(y.to(b.dtype), b, acc)

    mul = acc * 8.0
    round = libdevice.rint(mul)
    clamp = at_most(at_least(round, -128.0), 127.0)
    cast = clamp.to(tl.int32).to(tl.int8)
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, cast, mask=rows[:, None] < M)


def launch(x, w, a, b, empty=torch.empty):
    """h from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h = empty((m, w.shape[1]), dtype=torch.int8, device=x.device)
    main_0[(triton.cdiv(m, 64) * triton.cdiv(w.shape[1], 64),)](
        x_ptr=x,
        w_ptr=w,
        a_ptr=a,
        b_ptr=b,
        h_ptr=h,
        M=m,
        N=w.shape[1],
        K=x.shape[1],
        R=8,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w.stride(0),
        W_STRIDE_N=w.stride(1),
        A_STRIDE_K=a.stride(0),
        A_STRIDE_R=a.stride(1),
        B_STRIDE_R=b.stride(0),
        B_STRIDE_N=b.stride(1),
        SCALE=2.0,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
    )
    return (h,)


aten = torch.ops.aten


def cast(value, dtype):
    """``value`` in another dtype; floats of the reference, in which the default dtype is fp64, stay fp64."""
    exact = dtype.is_floating_point and torch.get_default_dtype() == torch.float64
    return value.to(torch.float64 if exact else dtype)


def eager(x, w, a, b):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y = x @ a
    out = x @ w + 2.0 * (y @ b)
    v0_0 = aten.mul.Tensor(out, 8.0)
    v0_1 = aten.round.default(v0_0)
    v0_2 = aten.clamp.default(v0_1, -128, 127)
    v0_3 = cast(v0_2, torch.int8)
    h = v0_3
    return (h,)


NAME = "inline_int8"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N = 64, 256, 256
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N = 64, 128, 128
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (256, 1), HALF, 1, 0.0),  # x
    ((K, N), (1, 256), HALF, 0.0625, 0.0),  # w
    ((K, 8), (1, 256), HALF, 0.0625, 0.0),  # a
    ((8, N), (1, 8), HALF, 0.1768, 0.0),  # b
)
RESULTS = ("h",)
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
