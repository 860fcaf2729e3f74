"""Memory for TMA descriptors that kernels make on the device.

Triton asks an allocator for it at every launch. The allocator is a context variable: a thread that did not set it has
none, and Inductor's launcher sets it only on its slow path. So the callable we return sets it on every call.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from fusioncc.descriptors import TMA_CAPABILITY


def with_descriptors(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` with the allocator set on every call; the same callable where no card has descriptors."""
    if not torch.cuda.is_available():
        return compiled
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < TMA_CAPABILITY:
        return compiled
    import triton

    @functools.wraps(compiled)
    def run(*args: Any) -> Any:
        triton.set_allocator(_allocate)
        return compiled(*args)

    return run


def _allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")
