"""Small modules with low-rank branches, and what detection finds in them through every door."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fusioncc.passes.find_groups import Found
from fusioncc.pipeline import fingerprint
from tests.passes.doors import DOORS, found_in

M, K, N, R = 6, 64, 96, 4
BF16 = torch.bfloat16


class Model(nn.Module):
    """A function of its parameters and inputs."""

    def __init__(self, function: Callable[..., Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def lora(function: Callable[..., Any], dtype: torch.dtype = torch.float32, adapter: Any = None, **more: Any) -> Model:
    """A model with w [K, N], a [K, R], b [R, N] and a second adapter a2, b2 of rank 8."""
    low = adapter or dtype
    weights = {"w": t(K, N, dtype=dtype), "a": t(K, R, dtype=low), "b": t(R, N, dtype=low)}
    return Model(function, **{**weights, "a2": t(K, 8, dtype=low), "b2": t(8, N, dtype=low), **more})


def through_all(model: nn.Module, *args: torch.Tensor) -> Found:
    """What detection finds, the same through every door; names as export gives them."""
    found = {name: found_in(door(model, args)) for name, door in DOORS.items()}
    assert len({fingerprint(each) for each in found.values()}) == 1
    assert len({tuple(sorted(r.rule for r in each.rejections)) for each in found.values()}) == 1
    return found["export"]


X = t(M, K)


LORA = [("main", M, N, K), ("down", M, R, K), ("up", M, N, R)]


SECOND = [("down", M, 8, K), ("up", M, N, 8)]


def shapes(found: Found, group: int = 0) -> list[tuple[str, int, int, int]]:
    return [(member.role, member.m, member.n, member.k) for member in found.groups[group].members]
