"""Results stay right after every way of changing weights, without compiling by hand again."""

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import fusioncc
from fusioncc.backend import fusioncc as backend
from tests.lora_models import WIDTH, Lora, close, compiled, rows
from tests.shown import shown


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()
    if "fusioncc" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend)  # as installation does


def in_place(model: Lora) -> None:
    model.w.weight.mul_(1.5)
    model.b.weight.add_(0.1)


def data_copy(model: Lora) -> None:
    model.a.weight.data.copy_(torch.randn(8, WIDTH))


def data_assigned(model: Lora) -> None:
    model.w.weight.data = torch.randn(WIDTH, WIDTH)
    model.a.weight.data = torch.randn(8, WIDTH)


def data_assigned_in_another_layout(model: Lora) -> None:
    model.w.weight.data = torch.randn(WIDTH, WIDTH).t()
    model.b.weight.data = torch.randn(WIDTH, 16)[:, ::2]


def loaded(model: Lora) -> None:
    model.load_state_dict(Lora(seed=5).state_dict())


def loaded_by_assignment(model: Lora) -> None:
    model.load_state_dict(Lora(seed=5).state_dict(), assign=True)


def replaced(model: Lora) -> None:
    model.b.weight = nn.Parameter(torch.randn(WIDTH, 8))
    model.w = nn.Linear(WIDTH, WIDTH)


def replaced_by_another_rank(model: Lora) -> None:
    model.a.weight = nn.Parameter(torch.randn(4, WIDTH))
    model.b.weight = nn.Parameter(torch.randn(WIDTH, 4))


def swapped(model: Lora) -> None:
    torch.utils.swap_tensors(model.w.weight, nn.Parameter(torch.randn(WIDTH, WIDTH)))


def scale(model: Lora) -> None:
    model.scale = 0.25


CHANGES = (
    in_place,
    data_copy,
    data_assigned,
    data_assigned_in_another_layout,
    loaded,
    loaded_by_assignment,
    replaced,
    replaced_by_another_rank,
    swapped,
    scale,
)


@pytest.mark.parametrize("change", shown(CHANGES, 4, attrgetter("__name__")))
def test_a_changed_weight_is_the_one_that_is_used(change: Callable[[Lora], None]) -> None:
    model = Lora()
    run = compiled(model, schedule="split")
    with torch.no_grad():
        before = run(rows())
        close(before, model(rows()))
        change(model)
        after = run(rows())
        close(after, model(rows()))
    assert not torch.allclose(before, after, atol=1e-2)
    assert all(group.branches for plan in fusioncc.plan_of(run) for group in plan.groups)


def test_a_weight_can_be_swapped_after_optimize() -> None:
    model = Lora()
    run = fusioncc.optimize(model, (rows(),), schedule="inline", on_error="raise")
    with torch.no_grad():
        swapped(model)
        close(run(rows()), model(rows()))


def test_a_step_of_training() -> None:
    model = Lora()
    run = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        run(rows()).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        close(run(rows()), model(rows()))


def test_a_copy_has_weights_of_its_own() -> None:
    model = Lora()
    run = compiled(model)
    with torch.no_grad():
        run(rows())
        other = copy.deepcopy(run)
        model.w.weight.zero_()
        close(other(rows()), Lora()(rows()))
        close(run(rows()), model(rows()))


def test_another_dtype() -> None:
    model = Lora()
    run = compiled(model)
    x = rows(dtype=torch.bfloat16)
    with torch.no_grad():
        run(rows())
        model.to(torch.bfloat16)
        got, exact = run(x), copy.deepcopy(model).double()(x.double())
        eager = (model(x) - exact).square().mean().sqrt()
        assert got.dtype is torch.bfloat16
        assert (got - exact).square().mean().sqrt() <= 1.1 * eager
    assert [plan.groups[0].members[0].weight.dtype for plan in fusioncc.plan_of(run)] == ["fp32", "bf16"]


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x)


def with_adapters() -> Any:
    """A PEFT model with two adapters that are not zero, of different rank and scaling; ``default`` is active."""
    model = get_peft_model(Base(), LoraConfig(r=8, lora_alpha=12, target_modules=["w"]))
    model.add_adapter("other", LoraConfig(r=4, lora_alpha=2, target_modules=["w"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return model.eval()


def set_adapter(model: Any) -> None:
    model.set_adapter("other")


def other_weights(model: Any) -> None:
    layer = model.base_model.model.w
    for part in (layer.lora_A, layer.lora_B):
        part["default"].weight.data.copy_(torch.randn_like(part["default"].weight))


def scaling(model: Any) -> None:
    model.base_model.model.w.scale_layer(3.0)


def disabled(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def merged(model: Any) -> None:
    model.base_model.model.w.scale_layer(2.0)
    model.base_model.merge_adapter()


ADAPTED = (set_adapter, other_weights, scaling, disabled, merged)


@pytest.mark.exhaustive
@pytest.mark.parametrize("change", shown(ADAPTED, 2, attrgetter("__name__")))
def test_a_peft_adapter_is_changed_while_compiled(change: Callable[[Any], None]) -> None:
    model = with_adapters()
    run = compiled(model, schedule="auto")
    with torch.no_grad():
        before = run(rows())
        close(before, model(rows()))
        change(model)
        after = run(rows())
        close(after, model(rows()))
    assert not torch.allclose(before, after, atol=1e-2)
    assert fusioncc.plan_of(run)[0].groups[0].schedule.kind != "library"


def test_an_adapter_is_disabled_for_a_while() -> None:
    model = with_adapters()
    run = compiled(model)
    with torch.no_grad():
        adapted = run(rows())
        with model.disable_adapter():
            close(run(rows()), model(rows()))
            assert not torch.allclose(run(rows()), adapted, atol=1e-2)
        assert torch.equal(run(rows()), adapted)
