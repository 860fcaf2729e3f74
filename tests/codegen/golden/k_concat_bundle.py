"""k_concat_bundle: schedule k_concat, tier fp32.

    x        [300, 200] bf16, strides (200, 1)
    a_0      [200, 12] bf16, strides (1, 200)
    scale_0  [] bf16
    a_1      [200, 8] bf16, strides (1, 200)
    a_bias_1 [8] bf16, strides (1,)
    a_2      [200, 16] bf16, strides (1, 200)
    xy       [M, 240] bf16 = [x | 2.0 * scale_0 * (x @ a_0) | 2.0 * (x @ a_1) + 0.5 * a_bias_1 | 2.0 * (x @ a_2)]

    down_0: tile 16xRPx32, transposed, 1 programs for a block of rows, 4 warps, 3 stages
    up_0: tile 16x16, 1 programs for a block of rows, 4 warps, 1 stages

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
def down_0(
    x_ptr,
    a0_ptr,
    a1_ptr,
    a2_ptr,
    xy_ptr,
    y0_ptr,
    y1_ptr,
    y2_ptr,
    M,
    K: tl.constexpr,
    R0: tl.constexpr,
    R1: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
    RP2: tl.constexpr,
    XY_STRIDE: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    A2_STRIDE_K: tl.constexpr,
    A2_STRIDE_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks0 = tl.arange(0, RP0)
    ranks1 = tl.arange(0, RP1)
    ranks2 = tl.arange(0, RP2)

    x_tile = x_ptr + safe_rows[None, :] * X_STRIDE_M + ks[:, None] * X_STRIDE_K
    a0_tile = a0_ptr + ks[None, :] * A0_STRIDE_K + ranks0[:, None] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[None, :] * A1_STRIDE_K + ranks1[:, None] * A1_STRIDE_R
    a2_tile = a2_ptr + ks[None, :] * A2_STRIDE_K + ranks2[:, None] * A2_STRIDE_R
    xy_tile = xy_ptr + rows[None, :] * XY_STRIDE + ks[:, None]
    y0 = tl.zeros((RP0, BLOCK_M), tl.float32)
    y1 = tl.zeros((RP1, BLOCK_M), tl.float32)
    y2 = tl.zeros((RP2, BLOCK_M), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile, mask=ks[:, None] < K - k, other=0.0)
        a0 = tl.load(a0_tile, mask=(ks[None, :] < K - k) & (ranks0[:, None] < R0), other=0.0)
        a1 = tl.load(a1_tile, mask=(ks[None, :] < K - k) & (ranks1[:, None] < R1), other=0.0)
        a2 = tl.load(a2_tile, mask=ks[None, :] < K - k, other=0.0)
        y0 = tl.dot(a0, x, y0)
        y1 = tl.dot(a1, x, y1)
        y2 = tl.dot(a2, x, y2)
        tl.store(xy_tile, x, mask=(rows[None, :] < M) & (ks[:, None] < K - k))
        xy_tile += BLOCK_K
        x_tile += BLOCK_K * X_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K
        a2_tile += BLOCK_K * A2_STRIDE_K

    y0_tile = y0_ptr + rows[None, :] * RP0 + ranks0[:, None]
    tl.store(y0_tile, y0, mask=rows[None, :] < M)
    y1_tile = y1_ptr + rows[None, :] * RP1 + ranks1[:, None]
    tl.store(y1_tile, y1, mask=rows[None, :] < M)
    y2_tile = y2_ptr + rows[None, :] * RP2 + ranks2[:, None]
    tl.store(y2_tile, y2, mask=rows[None, :] < M)


@triton.jit
def up_0(
    scale0_ptr,
    a_bias1_ptr,
    y0_ptr,
    xy_ptr,
    y1_ptr,
    y2_ptr,
    M,
    R0: tl.constexpr,
    R1: tl.constexpr,
    RP0: tl.constexpr,
    RP1: tl.constexpr,
    RP2: tl.constexpr,
    XY_BEGIN0: tl.constexpr,
    XY_STRIDE: tl.constexpr,
    XY_BEGIN1: tl.constexpr,
    XY_WIDTH1: tl.constexpr,
    XY_BEGIN2: tl.constexpr,
    A_BIAS1_STRIDE: tl.constexpr,
    SCALE0: tl.constexpr,
    SCALE1: tl.constexpr,
    A_BIAS_SCALE1: tl.constexpr,
    SCALE2: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ranks0 = tl.arange(0, RP0)
    ranks1 = tl.arange(0, RP1)
    ranks2 = tl.arange(0, RP2)

    y0_tile = y0_ptr + safe_rows[:, None] * RP0 + ranks0[None, :]
    y0 = tl.load(y0_tile)
    y0 = tl.where(ranks0[None, :] < R0, y0, 0.0)
    y0 *= SCALE0 * tl.load(scale0_ptr).to(tl.float32)
    y0_tile = xy_ptr + XY_BEGIN0 + rows[:, None] * XY_STRIDE + ranks0[None, :]
    tl.store(y0_tile, y0.to(xy_ptr.dtype.element_ty), mask=rows[:, None] < M)

    y1_tile = y1_ptr + safe_rows[:, None] * RP1 + ranks1[None, :]
    y1 = tl.load(y1_tile)
    y1 = tl.where(ranks1[None, :] < R1, y1, 0.0)
    y1 *= SCALE1
    a_bias1 = tl.load(a_bias1_ptr + ranks1 * A_BIAS1_STRIDE, mask=ranks1 < R1, other=0.0).to(tl.float32)
    y1 += a_bias1[None, :] * A_BIAS_SCALE1
    y1_tile = xy_ptr + XY_BEGIN1 + rows[:, None] * XY_STRIDE + ranks1[None, :]
    tl.store(y1_tile, y1.to(xy_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (ranks1[None, :] < XY_WIDTH1))

    y2_tile = y2_ptr + safe_rows[:, None] * RP2 + ranks2[None, :]
    y2 = tl.load(y2_tile)
    y2 *= SCALE2
    y2_tile = xy_ptr + XY_BEGIN2 + rows[:, None] * XY_STRIDE + ranks2[None, :]
    tl.store(y2_tile, y2.to(xy_ptr.dtype.element_ty), mask=rows[:, None] < M)


def launch(x, a_0, scale_0, a_1, a_bias_1, a_2, empty=torch.empty):
    """xy from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    xy = empty((m, x.shape[1] + 40), dtype=x.dtype, device=x.device)
    y_0 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    y_1 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    y_2 = empty((1, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 16),)](
        x_ptr=x,
        a0_ptr=a_0,
        a1_ptr=a_1,
        a2_ptr=a_2,
        xy_ptr=xy,
        y0_ptr=y_0,
        y1_ptr=y_1,
        y2_ptr=y_2,
        M=m,
        K=x.shape[1],
        R0=12,
        R1=8,
        RP0=16,
        RP1=16,
        RP2=16,
        XY_STRIDE=xy.shape[1],
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        A2_STRIDE_K=a_2.stride(0),
        A2_STRIDE_R=a_2.stride(1),
        BLOCK_M=16,
        BLOCK_K=32,
        num_warps=4,
        num_stages=3,
    )
    up_0[(triton.cdiv(m, 16),)](
        scale0_ptr=scale_0,
        a_bias1_ptr=a_bias_1,
        y0_ptr=y_0,
        xy_ptr=xy,
        y1_ptr=y_1,
        y2_ptr=y_2,
        M=m,
        R0=12,
        R1=8,
        RP0=16,
        RP1=16,
        RP2=16,
        XY_BEGIN0=x.shape[1],
        XY_STRIDE=xy.shape[1],
        XY_BEGIN1=x.shape[1] + 16,
        XY_WIDTH1=8,
        XY_BEGIN2=x.shape[1] + 24,
        A_BIAS1_STRIDE=a_bias_1.stride(0),
        SCALE0=2.0,
        SCALE1=2.0,
        A_BIAS_SCALE1=0.5,
        SCALE2=2.0,
        BLOCK_M=16,
        num_warps=4,
        num_stages=1,
    )
    return (xy,)


def eager(x, a_0, scale_0, a_1, a_bias_1, a_2):
    """The same columns, one operation after another; from fp64 operands they are the reference."""
    xy = torch.cat(
        (x, 2.0 * scale_0 * (x @ a_0), x.new_zeros(x.shape[0], 4), 2.0 * (x @ a_1) + 0.5 * a_bias_1, 2.0 * (x @ a_2)),
        dim=1,
    )
    return (xy,)


NAME = "k_concat_bundle"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K = 300, 200
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K = 35, 72
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (200, 1), HALF, 1, 0.0),  # x
    ((K, 12), (1, 200), HALF, 0.07071, 0.0),  # a_0
    ((), (), HALF, 0.2, 1.0),  # scale_0
    ((K, 8), (1, 200), HALF, 0.07071, 0.0),  # a_1
    ((8,), (1,), HALF, 4, 0.0),  # a_bias_1
    ((K, 16), (1, 200), HALF, 0.07071, 0.0),  # a_2
)
RESULTS = ("xy",)
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}"
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
