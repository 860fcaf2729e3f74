"""What is not merged, and the refusal that says which weight is why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.errors import IllegalScheduleError
from fusioncc.seam import FusionWarning
from tests.lora_models import WIDTH, Lora, close, rows
from tests.merged.models import frozen, optimized

pytestmark = pytest.mark.exhaustive


def _trainable() -> Any:
    return Lora()


def _adapter_trainable() -> Any:
    model = frozen()
    model.b.requires_grad_()
    return model


class _Tied(Lora):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.relu(self.w(torch.relu(x)))


class _Two(Lora):
    def __init__(self) -> None:
        super().__init__()
        self.a2, self.b2 = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.b2(self.a2(x))


class _Int8(Lora):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Buffer(torch.randint(-128, 127, (WIDTH, WIDTH), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.codes.to(x.dtype) * 0.01) + self.scale * self.b(self.a(x))


def _aliased() -> Any:
    model = frozen()
    model.a.weight = nn.Parameter(model.w.weight[3:11], requires_grad=False)
    return model


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "trainable": (_trainable, "frozen", "is trainable"),
    "trainable adapter": (_adapter_trainable, "frozen", "is trainable"),
    "shared": (lambda: _Tied().requires_grad_(False), "unshared", "is shared"),
    "aliased": (_aliased, "unaliased", "is aliased"),
    "two adapters": (lambda: _Two().requires_grad_(False), "single_adapter", "2 adapters are added"),
    "int8": (lambda: _Int8().requires_grad_(False), "unquantised", "is quantised (int8)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_which(name: str, rest: str) -> None:
    build, rule, words = REFUSED[name]
    model = build()
    run = optimized(model, rest, on_error="fallback")
    close(run(rows()), model(rows()))
    (plan,) = fusioncc.plan_of(run)
    assert all(group.schedule.kind == "library" for group in plan.groups)
    assert any(each.rule == rule and words in each.reason for each in plan.rejections)
    assert fusioncc.merged_of(run).merged_bytes == 0
    offline = fusioncc.plan(model, (rows(),), schedule="merged", numerics="relaxed")
    assert any(each.rule == rule and words in each.reason for each in offline.rejections)


@pytest.mark.parametrize("grad", [True, False])
def test_trainable_is_trainable_with_and_without_gradients(grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        run = optimized(_adapter_trainable(), on_error="fallback")
        run(rows())
    assert "frozen" in {each.rule for each in fusioncc.plan_of(run)[0].rejections}


def test_a_frozen_model_that_passes_gradients_on_needs_its_weights_unmerged() -> None:
    model, (x, same) = frozen(), (rows().requires_grad_() for _ in range(2))
    run = optimized(model, on_error="fallback")
    with torch.enable_grad():
        run(x).square().sum().backward()
        model(same).square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=1e-4, atol=1e-4)
    assert "unshared" in {each.rule for each in fusioncc.plan_of(run)[0].rejections}


def test_the_tier_has_to_allow_it() -> None:
    run = fusioncc.optimize(frozen(), schedule="merged", on_error="raise", rest="eager")
    with pytest.raises(Exception, match="rounding_tier: merging rounds the sum to the dtype of W") as caught:
        run(rows())
    assert isinstance(caught.value.__cause__ or caught.value.inner_exception, IllegalScheduleError)  # type: ignore[attr-defined]


def test_tensors_that_only_a_call_can_judge_run_unmerged() -> None:
    with torch.inference_mode():
        uncounted = frozen()
    model = frozen()
    run = optimized(lambda which, x: which(x))
    with pytest.warns(FusionWarning, match="inference mode, where writes are not counted"), torch.inference_mode():
        close(run(uncounted, rows()), uncounted(rows()))
        uncounted.b.weight.add_(0.5)
        close(run(uncounted, rows()), uncounted(rows()))
    assert fusioncc.merged_of(run).merged_bytes == 0
    close(run(model, rows()), model(rows()))
