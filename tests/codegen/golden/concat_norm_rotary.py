"""concat_norm_rotary: schedule concat, tier fp32.

    x        [64, 4096] bf16, strides (4096, 1)
    g        [4096] bf16, strides (1,)
    xn       [M, 4096] in registers = x * rsqrt(mean(x * x) + 1e-06) * g
    w_0      [4096, 4096] bf16, strides (1, 4096)
    out_0    in registers = xn @ w_0
    w_1      [4096, 1024] bf16, strides (1, 4096)
    out_1    in registers = xn @ w_1
    w_2      [4096, 1024] bf16, strides (1, 4096)
    out_2    [M, 1024] bf16 = xn @ w_2
    z_0      [64, 128] bf16, strides (128, 1)
    z_1      [64, 128] bf16, strides (128, 1)
    h_0      [M, 4096] bf16 of out_0, z_0, z_1: mul, rotate_half, mul, add
    z_0      [64, 128] bf16, strides (128, 1)
    z_1      [64, 128] bf16, strides (128, 1)
    h_1      [M, 1024] bf16 of out_1, z_0, z_1: mul, rotate_half, mul, add

    mains_0: tile 64x128x64, 32 + 8 + 8 programs for a block of rows, 8 warps, 3 stages

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
def rotate_half(x, HEAD: tl.constexpr):
    # (-hi, lo) of the halves of every HEAD columns; the select keeps the layout of x, its condition always holds.
    heads = tl.reshape(x, (x.shape[0], x.shape[1] // HEAD, 2, HEAD // 2))
    lo, hi = tl.split(tl.permute(heads, (0, 1, 3, 2)))
    rotated = tl.permute(tl.join(hi * -1.0, lo), (0, 1, 3, 2))
    return tl.where(tl.program_id(0) >= 0, tl.reshape(rotated, (x.shape[0], x.shape[1])), x)


@triton.jit
def main_tile_0(
    tile,
    x_ptr,
    w_ptr,
    g_ptr,
    z0_ptr,
    z1_ptr,
    h_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    Z0_N: tl.constexpr,
    Z1_N: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    G_STRIDE: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z0_STRIDE_N: tl.constexpr,
    Z1_STRIDE_M: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        wide = x.to(tl.float32)
        squares += wide * wide
        g = tl.load(g_ptr + (k + ks) * G_STRIDE).to(tl.float32)
        x = (wide * g[None, :]).to(x.dtype)
        acc = tl.dot(x, w, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 1) / K + EPSILON)
    acc *= rstd[:, None]

    z0_tile = z0_ptr + safe_rows[:, None] * Z0_STRIDE_M + (cols % Z0_N)[None, :] * Z0_STRIDE_N
    z0 = tl.load(z0_tile)
    z0 = z0.to(tl.float32)
    z1_tile = z1_ptr + safe_rows[:, None] * Z1_STRIDE_M + (cols % Z1_N)[None, :] * Z1_STRIDE_N
    z1 = tl.load(z1_tile)
    z1 = z1.to(tl.float32)
    mul = acc * z0
    rotated = rotate_half(acc, 128)
    mul_1 = rotated * z1
    add = mul + mul_1
    h_tile = h_ptr + rows[:, None] * N + cols[None, :]
    tl.store(h_tile, add.to(h_ptr.dtype.element_ty), mask=rows[:, None] < M)


@triton.jit
def main_tile_2(
    tile,
    x_ptr,
    w_ptr,
    g_ptr,
    out_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    G_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    col_block = tile
    rows = tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    w_tile = w_ptr + ks[:, None] * W_STRIDE_K + cols[None, :] * W_STRIDE_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_tile)
        w = tl.load(w_tile)
        wide = x.to(tl.float32)
        squares += wide * wide
        g = tl.load(g_ptr + (k + ks) * G_STRIDE).to(tl.float32)
        x = (wide * g[None, :]).to(x.dtype)
        acc = tl.dot(x, w, acc)
        x_tile += BLOCK_K * X_STRIDE_K
        w_tile += BLOCK_K * W_STRIDE_K

    # The norm scales the rows of X, which is to scale the rows of its products.
    rstd = tl.rsqrt(tl.sum(squares, 1) / K + EPSILON)
    acc *= rstd[:, None]

    out_tile = out_ptr + rows[:, None] * N + cols[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=rows[:, None] < M)


@triton.jit
def mains_0(
    x_ptr,
    w_0_ptr,
    g_ptr,
    z0_ptr,
    z1_ptr,
    w_1_ptr,
    w_2_ptr,
    h_0_ptr,
    h_1_ptr,
    out_ptr,
    M,
    N_0: tl.constexpr,
    N_1: tl.constexpr,
    N_2: tl.constexpr,
    K: tl.constexpr,
    Z0_N: tl.constexpr,
    Z1_N: tl.constexpr,
    EPSILON: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    W_STRIDE_K: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    G_STRIDE: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z0_STRIDE_N: tl.constexpr,
    Z1_STRIDE_M: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    end_0 = tl.cdiv(N_0, BLOCK_N)
    end_1 = end_0 + tl.cdiv(N_1, BLOCK_N)
    tile = tl.program_id(0)
    # No else: Triton gives the operand tiles of an if and of its else shared memory of their own.
    if tile < end_0:
        main_tile_0(
            tile,
            x_ptr,
            w_0_ptr,
            g_ptr,
            z0_ptr,
            z1_ptr,
            h_0_ptr,
            M,
            N_0,
            K,
            Z0_N,
            Z1_N,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            G_STRIDE,
            Z0_STRIDE_M,
            Z0_STRIDE_N,
            Z1_STRIDE_M,
            Z1_STRIDE_N,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_0 <= tile and tile < end_1:
        main_tile_0(
            tile - end_0,
            x_ptr,
            w_1_ptr,
            g_ptr,
            z0_ptr,
            z1_ptr,
            h_1_ptr,
            M,
            N_1,
            K,
            Z0_N,
            Z1_N,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            G_STRIDE,
            Z0_STRIDE_M,
            Z0_STRIDE_N,
            Z1_STRIDE_M,
            Z1_STRIDE_N,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    if end_1 <= tile:
        main_tile_2(
            tile - end_1,
            x_ptr,
            w_2_ptr,
            g_ptr,
            out_ptr,
            M,
            N_2,
            K,
            EPSILON,
            X_STRIDE_M,
            X_STRIDE_K,
            W_STRIDE_K,
            W_STRIDE_N,
            G_STRIDE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )


def launch(x, g, w_0, w_1, w_2, z_0, z_1, empty=torch.empty):
    """h_0, h_1, out_2 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    m = x.shape[0]
    h_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    h_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_2 = empty((m, w_2.shape[1]), dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(m, 64) * triton.cdiv(w_0.shape[1], 128)
    tiles += triton.cdiv(m, 64) * triton.cdiv(w_1.shape[1], 128)
    tiles += triton.cdiv(m, 64) * triton.cdiv(w_2.shape[1], 128)
    mains_0[(tiles,)](
        x_ptr=x,
        w_0_ptr=w_0,
        g_ptr=g,
        z0_ptr=z_0,
        z1_ptr=z_1,
        w_1_ptr=w_1,
        w_2_ptr=w_2,
        h_0_ptr=h_0,
        h_1_ptr=h_1,
        out_ptr=out_2,
        M=m,
        N_0=w_0.shape[1],
        N_1=w_1.shape[1],
        N_2=w_2.shape[1],
        K=x.shape[1],
        Z0_N=z_0.shape[1],
        Z1_N=z_1.shape[1],
        EPSILON=1e-06,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        W_STRIDE_K=w_0.stride(0),
        W_STRIDE_N=w_0.stride(1),
        G_STRIDE=g.stride(0),
        Z0_STRIDE_M=z_0.stride(0),
        Z0_STRIDE_N=z_0.stride(1),
        Z1_STRIDE_M=z_1.stride(0),
        Z1_STRIDE_N=z_1.stride(1),
        BLOCK_M=64,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=8,
        num_stages=3,
    )
    return h_0, h_1, out_2


aten = torch.ops.aten


def rotated(value, head):
    """(-hi, lo) of the halves of every ``head`` columns."""
    lo, hi = value.unflatten(-1, (-1, 2, head // 2)).unbind(-2)
    return torch.stack((-hi, lo), -2).flatten(-3)


def repeated(value, whole):
    """A matrix as often as it fits into the shape of ``whole``."""
    return value.repeat(*(size // own for size, own in zip(whole.shape, value.shape)))


def eager(x, g, w_0, w_1, w_2, z_0, z_1):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    xn = ((wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-06)).to(x.dtype) * g).to(x.dtype)
    out_0 = xn @ w_0
    out_1 = xn @ w_1
    out_2 = xn @ w_2
    v0_0 = aten.mul.Tensor(out_0, repeated(z_0, out_0))
    v0_1 = rotated(out_0, 128)
    v0_2 = aten.mul.Tensor(v0_1, repeated(z_1, out_0))
    v0_3 = aten.add.Tensor(v0_0, v0_2, alpha=1)
    h_0 = v0_3
    v1_0 = aten.mul.Tensor(out_1, repeated(z_0, out_1))
    v1_1 = rotated(out_1, 128)
    v1_2 = aten.mul.Tensor(v1_1, repeated(z_1, out_1))
    v1_3 = aten.add.Tensor(v1_0, v1_2, alpha=1)
    h_1 = v1_3
    return h_0, h_1, out_2


NAME = "concat_norm_rotary"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1, N_2 = 64, 4096, 4096, 1024, 1024
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1, N_2 = 64, 128, 256, 256, 256
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K,), (1,), HALF, 0.2, 1.0),  # g
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, N_2), (1, 4096), HALF, 0.01562, 0.0),  # w_2
    ((M, 128), (128, 1), HALF, 1, 0.0),  # z_0
    ((M, 128), (128, 1), HALF, 1, 0.0),  # z_1
)
RESULTS = ("h_0", "h_1", "out_2")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}, N_2={N_2}"
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
