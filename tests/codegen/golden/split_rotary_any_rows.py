"""split_rotary_any_rows: schedule split, tier fp32.

    x        [M (about 2048), 4096] bf16, strides (4096, 1)
    w_0      [4096, 4096] bf16, strides (1, 4096)
    a_0      [4096, 16] bf16, strides (1, 4096)
    b_0      [16, 4096] bf16, strides (1, 16)
    out_0    in registers = x @ w_0 + 2.0 * (x @ a_0) @ b_0
    w_1      [4096, 1024] bf16, strides (1, 4096)
    a_1      [4096, 16] bf16, strides (1, 4096)
    b_1      [16, 1024] bf16, strides (1, 16)
    out_1    in registers = x @ w_1 + 2.0 * (x @ a_1) @ b_1
    w_2      [4096, 1024] bf16, strides (1, 4096)
    a_2      [4096, 16] bf16, strides (1, 4096)
    b_2      [16, 1024] bf16, strides (1, 16)
    out_2    [M, 1024] bf16 = x @ w_2 + 2.0 * (x @ a_2) @ b_2
    z_0      [about 512, 128] bf16, strides (128, 1)
    z_1      [about 512, 128] bf16, strides (128, 1)
    h_0      [M, 4096] bf16 of out_0, z_0, z_1: mul, rotate_half, mul, add
    z_0      [about 512, 128] bf16, strides (128, 1)
    z_1      [about 512, 128] bf16, strides (128, 1)
    h_1      [M, 1024] bf16 of out_1, z_0, z_1: mul, rotate_half, mul, add

    down_0: tile 64xRPx128, 2 programs for a block of rows, 4 warps, 4 stages
    mains_0: tile 128x128x64, 32 + 8 + 8 tiles for a block of rows, TMA, 3 persistent programs, 8 warps, 3 stages

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
def rotate_half(x, HEAD: tl.constexpr):
    # (-hi, lo) of the halves of every HEAD columns; the select keeps the layout of x, its condition always holds.
    heads = tl.reshape(x, (x.shape[0], x.shape[1] // HEAD, 2, HEAD // 2))
    lo, hi = tl.split(tl.permute(heads, (0, 1, 3, 2)))
    rotated = tl.permute(tl.join(hi * -1.0, lo), (0, 1, 3, 2))
    return tl.where(tl.program_id(0) >= 0, tl.reshape(rotated, (x.shape[0], x.shape[1])), x)


@triton.jit
def main_tile_0(
    tile,
    x_desc,
    w_desc,
    h_desc,
    b_ptr,
    z0_ptr,
    z1_ptr,
    y_ptr,
    M,
    Z0_M,
    Z1_M,
    N: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    Z0_N: tl.constexpr,
    Z1_N: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z0_STRIDE_N: tl.constexpr,
    Z1_STRIDE_M: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
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
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)

    # The low-rank product opens the accumulator, which rounds once, after the K loop.
    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    for _ in tl.static_range(1, K_SPLIT):
        y_tile += M * RP
        y += tl.load(y_tile)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    acc = tl.dot(y.to(b.dtype), b)

    for k in range(0, K, BLOCK_K):
        x = x_desc.load([row_block * BLOCK_M, k])
        w = w_desc.load([col_block * BLOCK_N, k]).T
        acc = tl.dot(x, w, acc)

    z0_tile = z0_ptr + (safe_rows % Z0_M)[:, None] * Z0_STRIDE_M + (cols % Z0_N)[None, :] * Z0_STRIDE_N
    z0 = tl.load(z0_tile)
    z0 = z0.to(tl.float32)
    z1_tile = z1_ptr + (safe_rows % Z1_M)[:, None] * Z1_STRIDE_M + (cols % Z1_N)[None, :] * Z1_STRIDE_N
    z1 = tl.load(z1_tile)
    z1 = z1.to(tl.float32)
    mul = acc * z0
    rotated = rotate_half(acc, 128)
    mul_1 = rotated * z1
    add = mul + mul_1
    h_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], add.to(h_desc.dtype))


@triton.jit
def main_tile_2(
    tile,
    x_desc,
    w_desc,
    out_desc,
    b_ptr,
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
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)

    # The low-rank product opens the accumulator, which rounds once, after the K loop.
    y_tile = y_ptr + safe_rows[:, None] * RP + ranks[None, :]
    y = tl.load(y_tile)
    for _ in tl.static_range(1, K_SPLIT):
        y_tile += M * RP
        y += tl.load(y_tile)
    y *= SCALE
    b_tile = b_ptr + ranks[:, None] * B_STRIDE_R + cols[None, :] * B_STRIDE_N
    b = tl.load(b_tile)
    acc = tl.dot(y.to(b.dtype), b)

    for k in range(0, K, BLOCK_K):
        x = x_desc.load([row_block * BLOCK_M, k])
        w = w_desc.load([col_block * BLOCK_N, k]).T
        acc = tl.dot(x, w, acc)

    out_desc.store([row_block * BLOCK_M, col_block * BLOCK_N], acc.to(out_desc.dtype))


@triton.jit
def down_0(
    x_ptr,
    a0_ptr,
    a1_ptr,
    a2_ptr,
    y0_ptr,
    y1_ptr,
    y2_ptr,
    M,
    RP: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    X_STRIDE_K: tl.constexpr,
    A0_STRIDE_K: tl.constexpr,
    A0_STRIDE_R: tl.constexpr,
    A1_STRIDE_K: tl.constexpr,
    A1_STRIDE_R: tl.constexpr,
    A2_STRIDE_K: tl.constexpr,
    A2_STRIDE_R: tl.constexpr,
    K_SPLIT: tl.constexpr,
    K_SLICE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    row_block = tile // K_SPLIT
    k_slice = tile % K_SPLIT
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    safe_rows = rows % M
    ks = tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, RP)

    x_tile = x_ptr + safe_rows[:, None] * X_STRIDE_M + ks[None, :] * X_STRIDE_K
    a0_tile = a0_ptr + ks[:, None] * A0_STRIDE_K + ranks[None, :] * A0_STRIDE_R
    a1_tile = a1_ptr + ks[:, None] * A1_STRIDE_K + ranks[None, :] * A1_STRIDE_R
    a2_tile = a2_ptr + ks[:, None] * A2_STRIDE_K + ranks[None, :] * A2_STRIDE_R
    first_k = k_slice * K_SLICE
    x_tile += first_k * X_STRIDE_K
    a0_tile += first_k * A0_STRIDE_K
    a1_tile += first_k * A1_STRIDE_K
    a2_tile += first_k * A2_STRIDE_K
    y0 = tl.zeros((BLOCK_M, RP), tl.float32)
    y1 = tl.zeros((BLOCK_M, RP), tl.float32)
    y2 = tl.zeros((BLOCK_M, RP), tl.float32)
    for k in range(0, K_SLICE, BLOCK_K):
        x = tl.load(x_tile)
        a0 = tl.load(a0_tile)
        a1 = tl.load(a1_tile)
        a2 = tl.load(a2_tile)
        y0 = tl.dot(x, a0, y0)
        y1 = tl.dot(x, a1, y1)
        y2 = tl.dot(x, a2, y2)
        x_tile += BLOCK_K * X_STRIDE_K
        a0_tile += BLOCK_K * A0_STRIDE_K
        a1_tile += BLOCK_K * A1_STRIDE_K
        a2_tile += BLOCK_K * A2_STRIDE_K

    y0_tile = y0_ptr + k_slice.to(tl.int64) * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y0_tile, y0, mask=rows[:, None] < M)
    y1_tile = y1_ptr + k_slice.to(tl.int64) * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y1_tile, y1, mask=rows[:, None] < M)
    y2_tile = y2_ptr + k_slice.to(tl.int64) * M * RP + rows[:, None] * RP + ranks[None, :]
    tl.store(y2_tile, y2, mask=rows[:, None] < M)


@triton.jit
def mains_0(
    x_ptr,
    w_0_ptr,
    w_1_ptr,
    w_2_ptr,
    b_0_ptr,
    z0_ptr,
    z1_ptr,
    b_1_ptr,
    b_2_ptr,
    h_0_ptr,
    h_1_ptr,
    out_ptr,
    y_0_ptr,
    y_1_ptr,
    y_2_ptr,
    M,
    Z0_M,
    Z1_M,
    N_0: tl.constexpr,
    N_1: tl.constexpr,
    N_2: tl.constexpr,
    K: tl.constexpr,
    RP: tl.constexpr,
    Z0_N: tl.constexpr,
    Z1_N: tl.constexpr,
    X_STRIDE_M: tl.constexpr,
    W_STRIDE_N: tl.constexpr,
    B_STRIDE_R: tl.constexpr,
    B_STRIDE_N: tl.constexpr,
    Z0_STRIDE_M: tl.constexpr,
    Z0_STRIDE_N: tl.constexpr,
    Z1_STRIDE_M: tl.constexpr,
    Z1_STRIDE_N: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP_M: tl.constexpr,
    WORKERS: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [X_STRIDE_M, 1], [BLOCK_M, BLOCK_K])
    w_0_desc = tl.make_tensor_descriptor(w_0_ptr, [N_0, K], [W_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    h_0_desc = tl.make_tensor_descriptor(h_0_ptr, [M, N_0], [N_0, 1], [BLOCK_M, BLOCK_N])
    w_1_desc = tl.make_tensor_descriptor(w_1_ptr, [N_1, K], [W_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    h_1_desc = tl.make_tensor_descriptor(h_1_ptr, [M, N_1], [N_1, 1], [BLOCK_M, BLOCK_N])
    w_2_desc = tl.make_tensor_descriptor(w_2_ptr, [N_2, K], [W_STRIDE_N, 1], [BLOCK_N, BLOCK_K])
    out_desc = tl.make_tensor_descriptor(out_ptr, [M, N_2], [N_2, 1], [BLOCK_M, BLOCK_N])
    end_0 = tl.cdiv(M, BLOCK_M) * tl.cdiv(N_0, BLOCK_N)
    end_1 = end_0 + tl.cdiv(M, BLOCK_M) * tl.cdiv(N_1, BLOCK_N)
    tiles = end_1 + tl.cdiv(M, BLOCK_M) * tl.cdiv(N_2, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, WORKERS):
        # No else: Triton gives the operand tiles of an if and of its else shared memory of their own.
        if tile < end_0:
            main_tile_0(
                tile,
                x_desc,
                w_0_desc,
                h_0_desc,
                b_0_ptr,
                z0_ptr,
                z1_ptr,
                y_0_ptr,
                M,
                Z0_M,
                Z1_M,
                N_0,
                K,
                RP,
                Z0_N,
                Z1_N,
                B_STRIDE_R,
                B_STRIDE_N,
                Z0_STRIDE_M,
                Z0_STRIDE_N,
                Z1_STRIDE_M,
                Z1_STRIDE_N,
                SCALE,
                GROUP_M,
                K_SPLIT,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
            )
        if end_0 <= tile and tile < end_1:
            main_tile_0(
                tile - end_0,
                x_desc,
                w_1_desc,
                h_1_desc,
                b_1_ptr,
                z0_ptr,
                z1_ptr,
                y_1_ptr,
                M,
                Z0_M,
                Z1_M,
                N_1,
                K,
                RP,
                Z0_N,
                Z1_N,
                B_STRIDE_R,
                B_STRIDE_N,
                Z0_STRIDE_M,
                Z0_STRIDE_N,
                Z1_STRIDE_M,
                Z1_STRIDE_N,
                SCALE,
                GROUP_M,
                K_SPLIT,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
            )
        if end_1 <= tile:
            main_tile_2(
                tile - end_1,
                x_desc,
                w_2_desc,
                out_desc,
                b_2_ptr,
                y_2_ptr,
                M,
                N_2,
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


def launch(x, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2, z_0, z_1, empty=torch.empty):
    """h_0, h_1, out_2 from tensors in the shapes of the header ([K, N] for weights); ``empty`` allocates."""
    triton.set_allocator(scratch)
    m = x.shape[0]
    h_0 = empty((m, w_0.shape[1]), dtype=x.dtype, device=x.device)
    h_1 = empty((m, w_1.shape[1]), dtype=x.dtype, device=x.device)
    out_2 = empty((m, w_2.shape[1]), dtype=x.dtype, device=x.device)
    y_0 = empty((2, m, 16), dtype=torch.float32, device=x.device)
    y_1 = empty((2, m, 16), dtype=torch.float32, device=x.device)
    y_2 = empty((2, m, 16), dtype=torch.float32, device=x.device)
    down_0[(triton.cdiv(m, 64) * 2,)](
        x_ptr=x,
        a0_ptr=a_0,
        a1_ptr=a_1,
        a2_ptr=a_2,
        y0_ptr=y_0,
        y1_ptr=y_1,
        y2_ptr=y_2,
        M=m,
        RP=16,
        X_STRIDE_M=x.stride(0),
        X_STRIDE_K=x.stride(1),
        A0_STRIDE_K=a_0.stride(0),
        A0_STRIDE_R=a_0.stride(1),
        A1_STRIDE_K=a_1.stride(0),
        A1_STRIDE_R=a_1.stride(1),
        A2_STRIDE_K=a_2.stride(0),
        A2_STRIDE_R=a_2.stride(1),
        K_SPLIT=2,
        K_SLICE=triton.cdiv(x.shape[1], 256) * 128,
        BLOCK_M=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=4,
    )
    tiles = triton.cdiv(m, 128) * triton.cdiv(w_0.shape[1], 128)
    tiles += triton.cdiv(m, 128) * triton.cdiv(w_1.shape[1], 128)
    tiles += triton.cdiv(m, 128) * triton.cdiv(w_2.shape[1], 128)
    mains_0[(min(3, tiles),)](
        x_ptr=x,
        w_0_ptr=w_0,
        w_1_ptr=w_1,
        w_2_ptr=w_2,
        b_0_ptr=b_0,
        z0_ptr=z_0,
        z1_ptr=z_1,
        b_1_ptr=b_1,
        b_2_ptr=b_2,
        h_0_ptr=h_0,
        h_1_ptr=h_1,
        out_ptr=out_2,
        y_0_ptr=y_0,
        y_1_ptr=y_1,
        y_2_ptr=y_2,
        M=m,
        Z0_M=z_0.shape[0],
        Z1_M=z_1.shape[0],
        N_0=w_0.shape[1],
        N_1=w_1.shape[1],
        N_2=w_2.shape[1],
        K=x.shape[1],
        RP=16,
        Z0_N=z_0.shape[1],
        Z1_N=z_1.shape[1],
        X_STRIDE_M=x.stride(0),
        W_STRIDE_N=w_0.stride(1),
        B_STRIDE_R=b_0.stride(0),
        B_STRIDE_N=b_0.stride(1),
        Z0_STRIDE_M=z_0.stride(0),
        Z0_STRIDE_N=z_0.stride(1),
        Z1_STRIDE_M=z_1.stride(0),
        Z1_STRIDE_N=z_1.stride(1),
        SCALE=2.0,
        GROUP_M=8,
        WORKERS=3,
        K_SPLIT=2,
        BLOCK_M=128,
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


def eager(x, w_0, a_0, b_0, w_1, a_1, b_1, w_2, a_2, b_2, z_0, z_1):
    """The same sums, one operation after another; from fp64 operands it is the reference."""
    y_0 = x @ a_0
    out_0 = x @ w_0 + 2.0 * (y_0 @ b_0)
    y_1 = x @ a_1
    out_1 = x @ w_1 + 2.0 * (y_1 @ b_1)
    y_2 = x @ a_2
    out_2 = x @ w_2 + 2.0 * (y_2 @ b_2)
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


NAME = "split_rotary_any_rows"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong
M, K, N_0, N_1, N_2 = 2048, 4096, 4096, 1024, 1024
if not CUDA:  # the interpreter is slow: a few tiles and the same tails
    M, K, N_0, N_1, N_2 = 260, 512, 256, 256, 256
OPERANDS = (  # shape, strides, dtype, standard deviation, mean
    ((M, K), (4096, 1), HALF, 1, 0.0),  # x
    ((K, N_0), (1, 4096), HALF, 0.01562, 0.0),  # w_0
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a_0
    ((16, N_0), (1, 16), HALF, 0.125, 0.0),  # b_0
    ((K, N_1), (1, 4096), HALF, 0.01562, 0.0),  # w_1
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a_1
    ((16, N_1), (1, 16), HALF, 0.125, 0.0),  # b_1
    ((K, N_2), (1, 4096), HALF, 0.01562, 0.0),  # w_2
    ((K, 16), (1, 4096), HALF, 0.01562, 0.0),  # a_2
    ((16, N_2), (1, 16), HALF, 0.125, 0.0),  # b_2
    ((M // 4, 128), (128, 1), HALF, 1, 0.0),  # z_0
    ((M // 4, 128), (128, 1), HALF, 1, 0.0),  # z_1
)
RESULTS = ("h_0", "h_1", "out_2")
RMS_LIMIT, MAX_LIMIT = 1.1, 3.0  # of eager's own error
GUARD = 4096  # elements around each buffer
SIZES = f"M={M}, K={K}, N_0={N_0}, N_1={N_1}, N_2={N_2}"
SETS = 4


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
