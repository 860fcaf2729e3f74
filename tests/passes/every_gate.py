"""SiLU·mul of every bf16 number, and how many bf16 numbers lie between two results."""

import torch
import torch.nn.functional as F
from torch import nn


class SiluMul(nn.Module):
    """``silu(gate) * up``."""

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


def every_gate(columns: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Every bf16 number as a gate, a row each, and random ups, [65536, columns]."""
    gates = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    ups = torch.randn(gates.numel(), columns, generator=torch.Generator().manual_seed(0)).bfloat16()
    return gates[:, None].expand_as(ups).contiguous().to(device), ups.to(device)


def units_apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """In units in the last place, elementwise: 0 for two NaNs and for zeros of either sign."""
    assert torch.equal(one.isnan(), other.isnan()), "NaN in one of them only"
    places = [each.view(torch.int16).int() for each in (one, other)]
    first, second = (torch.where(place < 0, -(2**15) - place, place) for place in places)
    return (first - second).abs().masked_fill(one.isnan(), 0)


def check_silu_mul(fused: torch.Tensor, eager: torch.Tensor) -> None:
    """At most one element of a million is off, and by no more than one unit."""
    units = units_apart(fused, eager)
    off = int(units.count_nonzero())
    assert units.max() <= 1, f"{int(units.max())} units apart"
    assert off * 1_000_000 <= units.numel(), f"{off} of {units.numel()} elements are off"
