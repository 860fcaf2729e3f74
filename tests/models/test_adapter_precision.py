"""fp32 adapters over a bf16 base keep fp32 accuracy: the base weight is 0, so that the adapter's part shows."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import fusioncc
from tests.lora_models import compiled
from tests.models.builders import in_fp64, rms
from tests.shown import shown

WIDTH, ROWS = 256, 8
FP32_FRACTION = 1e-5
"""RMS error of an fp32 product of this size over its own RMS; products rounded to bf16 have 2e-3."""


class Base(nn.Module):
    """One bf16 projection of weight 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        nn.init.zeros_(self.w.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x)


class Wide(nn.Module):
    """``X @ W + 1.5 * (X @ A) @ B`` with bf16 X and W, fp32 A and B, and an fp32 sum."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.w = Base().w
        self.a = nn.Linear(WIDTH, rank, bias=False)
        self.b = nn.Linear(rank, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x) + 1.5 * self.b(self.a(x.to(self.a.weight.dtype)))


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2)).bfloat16()


@pytest.mark.parametrize("schedule", ["inline", "split"])
@pytest.mark.parametrize("rank", shown([4, 64], 1))
def test_an_fp32_sum_has_fp32_error(rank: int, schedule: str) -> None:
    model, x = Wide(rank), inputs()
    run = compiled(model, schedule=schedule)
    with torch.no_grad():
        got, exact = run(x), in_fp64(model)(x.double())
    assert got.dtype is torch.float32
    assert rms(got - exact) <= FP32_FRACTION * rms(exact)
    assert fusioncc.plan_of(run)[0].groups[0].schedule.kind == schedule


@pytest.mark.parametrize("schedule", shown(["inline", "split"], 1))
def test_a_peft_layer_rounds_once_at_its_end(schedule: str) -> None:
    torch.manual_seed(0)
    model = get_peft_model(Base(), LoraConfig(r=8, lora_alpha=12, target_modules=["w"])).eval()
    nn.init.normal_(model.base_model.model.w.lora_B["default"].weight, std=0.1)
    run, x = compiled(model, schedule=schedule), inputs()
    with torch.no_grad():
        got, exact = run(x), in_fp64(model)(x.double())
    assert got.dtype is torch.bfloat16
    differing = (got != exact.bfloat16()).double().mean()
    assert differing < 0.005, "an intermediate was rounded to bf16: then a third of the elements differ"
