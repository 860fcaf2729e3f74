"""A model whose products share an input, and how it is compiled for packing."""

from typing import Any

import torch
from torch import nn

import fusioncc
from tests.lora_models import WIDTH

COLUMNS = {"q": WIDTH, "k": 32, "v": 32}
BYTES = sum(COLUMNS.values()) * WIDTH * 4
PACKED: dict[str, Any] = {"schedule": "packed", "pack_weights": True, "on_error": "raise"}


class Attention(nn.Module):
    """``q(x), relu(k(x)), v(x)``; ``k`` has no bias."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.q = nn.Linear(width, COLUMNS["q"], dtype=dtype)
        self.k = nn.Linear(width, COLUMNS["k"], dtype=dtype, bias=False)
        self.v = nn.Linear(width, COLUMNS["v"], dtype=dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q(x), torch.relu(self.k(x)), self.v(x)


def optimized(model: Any, rest: str = "eager", **more: Any) -> Any:
    return fusioncc.optimize(model, rest=rest, **{**PACKED, **more})


def weights(model: Attention) -> list[nn.Parameter]:
    return [model.q.weight, model.k.weight, model.v.weight]


def are_packed(model: Attention) -> bool:
    """Whether the weights lie one behind the other."""
    given, begin = weights(model), model.q.weight.data_ptr()
    for weight in given:
        if weight.data_ptr() != begin:
            return False
        begin += weight.nbytes
    return True
