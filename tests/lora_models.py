"""Small plain-torch models with low-rank branches, and compiling them strictly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fusioncc
from fusioncc.backend import fusioncc as backend

WIDTH = 64


class Lora(nn.Module):
    """``X @ W + scale * (X @ A) @ B``, X ``[..., WIDTH]``."""

    def __init__(self, seed: int = 0, rank: int = 8, scale: float = 1.5, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.w = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.a = nn.Linear(WIDTH, rank, bias=False, dtype=dtype)
        self.b = nn.Linear(rank, WIDTH, bias=False, dtype=dtype)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x) + self.scale * self.b(self.a(x))


def rows(count: int = 4, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """X ``[count, WIDTH]``."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compiled(model: Any, **options: Any) -> Callable[..., Any]:
    """Compiled with emitted kernels for every group that has a branch; failures raise."""
    return torch.compile(model, backend=backend, options={"schedule": "inline", "on_error": "raise", **options})


def kinds(of: Any) -> list[list[str]]:
    """Kinds of schedule by plan and group."""
    return [[group.schedule.kind for group in plan.groups] for plan in fusioncc.plan_of(of)]


def close(got: Any, wanted: Any) -> None:
    """Equal as far as fp32 allows (sums of ``WIDTH`` products in another order)."""
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
