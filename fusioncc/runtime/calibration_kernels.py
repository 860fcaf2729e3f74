"""The Triton kernels that ``fusioncc calibrate`` times."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def empty(word_ptr):
    """An empty kernel: what remains is the launch."""


@triton.jit
def copy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Each program copies one block of X."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


@triton.jit
def read_resident(x_ptr, sums_ptr, steps, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program reads ``steps`` blocks of X, which stays in the L2; neighbours begin at different blocks."""
    program = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(steps):
        block = (program + step) % BLOCKS
        total += tl.load(x_ptr + block * BLOCK + offsets, cache_modifier=".cg")  # not from the L1
    tl.store(sums_ptr + program, tl.sum(total))


@triton.jit
def gemm(
    x_ptr, w_ptr, out_ptr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """``out = x @ w.T`` for square operands, SIZE a multiple of every block; rows of w are columns of out."""
    tile = tl.program_id(0)
    group_size = GROUP_M * (SIZE // BLOCK_N)
    row_block = tile // group_size * GROUP_M + tile % GROUP_M
    col_block = tile % group_size // GROUP_M
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + rows[:, None] * SIZE + ks[None, :]
    w_tile = w_ptr + ks[:, None] + cols[None, :] * SIZE
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, SIZE, BLOCK_K):
        acc = tl.dot(tl.load(x_tile), tl.load(w_tile), acc)
        x_tile += BLOCK_K
        w_tile += BLOCK_K
    tl.store(out_ptr + rows[:, None] * SIZE + cols[None, :], acc.to(out_ptr.dtype.element_ty))


@triton.jit
def hand_over(flag_ptr, rounds):
    """Two programs, both resident, hand a flag to each other: one raises it, the other one lowers it again.

    Each waits for what the other one does next, and nothing else, so both end; the flag is left as it was, at zero.
    """
    mine = tl.program_id(0)
    for _ in range(rounds):
        while tl.atomic_add(flag_ptr, 0, sem="acquire") != mine:
            pass
        tl.atomic_xchg(flag_ptr, 1 - mine, sem="release")
