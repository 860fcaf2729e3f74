"""Copies of a buffer, the least that moving bytes takes: torch's own and a Triton kernel with several tiles."""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

Copy = Callable[[torch.Tensor], torch.Tensor]


@triton.jit
def copy_kernel(source_ptr, copy_ptr, M, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """``copy[i] = source[i]`` for i < M, BLOCK elements a program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M
    tl.store(copy_ptr + at, tl.load(source_ptr + at, mask=inside), mask=inside)


def _copied(source: torch.Tensor, block: int, warps: int) -> torch.Tensor:
    copy = torch.empty_like(source)
    copy_kernel[(triton.cdiv(source.numel(), block),)](source, copy, source.numel(), BLOCK=block, num_warps=warps)
    return copy


COPIES: dict[str, Copy] = {
    "torch": lambda source: torch.empty_like(source).copy_(source),
    **{
        f"{block}x{warps}": partial(_copied, block=block, warps=warps)
        for block, warps in ((1024, 4), (2048, 4), (4096, 8))
    },
}
"""By name; those in Triton are named after the elements and the warps of a program."""


def source_of(moved: int, device: str) -> torch.Tensor:
    """Random numbers of 4 bytes, so many that reading and writing them moves ``moved`` bytes."""
    return torch.randint(2**30, (-(-moved // 8),), dtype=torch.int32, device=device)
