"""Merged weights are right after every change of a weight that can be seen, and dropped on request."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.runtime.merged import merge
from tests.lora_models import WIDTH, Lora, close, kinds, rows
from tests.merged.models import BYTES, MERGED, frozen, optimized

pytestmark = pytest.mark.exhaustive


def in_place(model: Lora) -> None:
    model.w.weight.mul_(1.5)


def in_place_down(model: Lora) -> None:
    model.a.weight.add_(0.1)


def in_place_up(model: Lora) -> None:
    model.b.weight[0].zero_()


def in_inference_mode(model: Lora) -> None:
    with torch.inference_mode():
        model.b.weight.add_(0.1)


def data_assigned(model: Lora) -> None:
    model.w.weight.data = torch.randn(WIDTH, WIDTH)


def loaded(model: Lora) -> None:
    model.load_state_dict(Lora(seed=5).state_dict())


def loaded_by_assignment(model: Lora) -> None:
    model.load_state_dict(Lora(seed=5).requires_grad_(False).state_dict(), assign=True)


def replaced(model: Lora) -> None:
    model.b.weight = nn.Parameter(torch.randn(WIDTH, 8), requires_grad=False)


def swapped(model: Lora) -> None:
    torch.utils.swap_tensors(model.w.weight, nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False))


def hot_swapped(model: Lora) -> None:
    other = Lora(seed=7).requires_grad_(False)
    model.a, model.b = other.a, other.b


CHANGES = (
    in_place,
    in_place_down,
    in_place_up,
    in_inference_mode,
    data_assigned,
    loaded,
    loaded_by_assignment,
    replaced,
    swapped,
    hot_swapped,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_weight_is_the_one_that_is_used(change: Callable[[Lora], None], rest: str) -> None:
    model = frozen()
    run = optimized(model, rest)
    before = run(rows())
    close(before, model(rows()))
    assert torch.equal(run(rows()), before)
    change(model)
    after = run(rows())
    close(after, model(rows()))
    assert not torch.allclose(before, after, atol=1e-2)
    assert {kind for plan in kinds(run) for kind in plan} == {"merged"}
    assert fusioncc.merged_of(run).merged_bytes == BYTES


def test_new_memory_where_the_old_lay_is_not_taken_for_it(rest: str) -> None:
    """The new weight has the pointer and the version of the old one, as when the allocator gives memory out again."""
    model, memory = frozen(), np.ones((WIDTH, WIDTH), dtype=np.float32)
    run = optimized(model, rest)
    seen = []
    for value in (1.0, -2.0):
        memory[:] = value
        model.w.weight = nn.Parameter(torch.from_numpy(memory), requires_grad=False)
        seen.append((model.w.weight.data_ptr(), model.w.weight._version))
        close(run(rows()), model(rows()))
        model.w.weight = None  # type: ignore[assignment]
        gc.collect()
    assert seen[0] == seen[1]


def test_another_scale_is_right_and_says_why_it_is_not_merged() -> None:
    """Dynamo makes a number that has changed an input, a new tensor in every call."""
    model = frozen()
    run = optimized(model, on_error="fallback")
    close(run(rows()), model(rows()))
    model.scale = 0.25
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"], ["library"]]
    assert "checkable" in {each.rule for each in fusioncc.plan_of(run)[1].rejections}


def test_the_weights_stay_as_they_are(rest: str) -> None:
    model = frozen()
    state = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    run = optimized(model, rest)
    run(rows())
    assert fusioncc.merged_of(run).merged_bytes == BYTES
    for held in (model.state_dict(), run._orig_mod.state_dict()):
        assert held.keys() == state.keys()
        assert all(held[name].data_ptr() == at and torch.equal(held[name], was) for name, (at, was) in state.items())


def test_one_product_is_run_until_it_is_unmerged(rest: str) -> None:
    model = frozen()
    run = optimized(model, rest)
    merged = fusioncc.merged_of(run)
    assert merged.merged_bytes == 0
    expected = model(rows())
    close(run(rows()), expected)
    matrix = merge(model.w.weight.t(), model.a.weight.t(), model.b.weight.t(), 1.5, ())
    exact = torch.addmm(model.w.bias, rows(), matrix)
    assert torch.equal(run(rows()), exact)
    merged.unmerge()
    assert merged.merged_bytes == 0
    close(run(rows()), expected)
    assert merged.merged_bytes == 0
    merged.refresh()
    assert torch.equal(run(rows()), exact)
    assert merged.merged_bytes == BYTES


def test_a_write_through_data_is_not_seen_before_refresh(rest: str) -> None:
    model = frozen()
    run = optimized(model, rest)
    before = run(rows())
    model.b.weight.data.add_(0.5)
    assert torch.equal(run(rows()), before)
    fusioncc.merged_of(run).refresh()
    close(run(rows()), model(rows()))


def test_a_scale_tensor_is_looked_at_too() -> None:
    class Scaled(Lora):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Buffer(torch.tensor(1.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w(x) + self.factor * self.b(self.a(x))

    model = Scaled().requires_grad_(False)
    run = optimized(model)
    close(run(rows()), model(rows()))
    model.factor.fill_(-2.0)
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"]]


def test_a_copy_and_another_model_of_the_class_have_buffers_of_their_own() -> None:
    model, other = frozen(), frozen(seed=9)
    run, second = optimized(model), optimized(other)
    close(run(rows()), model(rows()))
    twin = copy.deepcopy(run)
    model.w.weight.zero_()
    for _ in range(2):
        close(second(rows()), other(rows()))
        close(twin(rows()), Lora()(rows()))
        close(run(rows()), model(rows()))
    fusioncc.merged_of(run).unmerge()
    assert fusioncc.merged_of(second).merged_bytes == BYTES
    close(run(rows()), model(rows()))


def test_models_that_share_code_do_not_share_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("fusioncc.runtime.merged.merge", lambda *args: made.append(args) or merge(*args))
    options = {**MERGED, "rest": "eager"}
    models = [frozen(), frozen(seed=9)]
    runs = [torch.compile(model, backend=backend, options=options) for model in models]
    for _ in range(3):
        for model, run in zip(models, runs, strict=True):
            close(run(rows()), model(rows()))
    assert len(made) == 2


def test_buffers_of_dead_weights_are_dropped() -> None:
    run = torch.compile(lambda model, x: model(x), backend=backend, options=MERGED)
    model = frozen()
    run(model, rows())
    merged = fusioncc.merged_of(run)
    assert merged.merged_bytes == BYTES
    del model
    torch.compiler.reset()
    gc.collect()
    assert merged.merged_bytes == 0


def test_two_shapes_share_a_buffer_and_rows_may_be_symbolic() -> None:
    model = frozen()
    run = optimized(model)
    for count in (4, 6, 9):
        close(run(rows(count)), model(rows(count)))
    assert [plan.groups[0].m_symbol != "" for plan in fusioncc.plan_of(run)] == [False, True]
    assert fusioncc.merged_of(run).merged_bytes == BYTES


def test_several_mains_leading_dimensions_and_16_bits(rest: str) -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = Lora(1, dtype=torch.bfloat16), Lora(2, dtype=torch.bfloat16)
            self.v = nn.Linear(WIDTH, 32, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> Any:
            return self.q(x), self.k(x), self.v(x)

    model = Three().requires_grad_(False)
    x = rows(12, dtype=torch.bfloat16).view(3, 4, WIDTH)
    run = optimized(model, rest)
    exact = copy.deepcopy(model).double()(x.double())
    for got, plain, true in zip(run(x), model(x), exact, strict=True):
        assert got.dtype is torch.bfloat16 and got.shape == plain.shape
        assert (got - true).square().mean() <= 1.5 * (plain - true).square().mean()
    assert kinds(run) == [["merged"]]
    assert fusioncc.merged_of(run).merged_bytes == 2 * WIDTH * WIDTH * 2


def test_the_sum_is_rounded_once() -> None:
    w, a, b = torch.randn(40, 24), torch.randn(40, 4), torch.randn(4, 24)
    exact = w.double() + 0.5 * 3.0 * a.double() @ b.double()
    merged = merge(w, a, b, 0.5, (torch.tensor([3.0]),))
    assert torch.equal(merged, exact.float())
    transposed = merge(w.t().contiguous().t(), a, b, 0.5, (torch.tensor([3.0]),))
    assert transposed.stride() == (1, 40)
    torch.testing.assert_close(transposed, merged, rtol=2e-7, atol=0)


def test_a_slice_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a, b = torch.randn(41, 24), torch.randn(41, 4), torch.randn(4, 24)
    whole = merge(w, a, b, 2.0, ())
    monkeypatch.setattr("fusioncc.runtime.merged.SLICE", 24 * 7)
    torch.testing.assert_close(merge(w, a, b, 2.0, ()), whole, rtol=2e-7, atol=0)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x)


def test_a_peft_adapter_is_swapped_for_another() -> None:
    model: Any = get_peft_model(Base(), LoraConfig(r=8, lora_alpha=12, target_modules=["w"]))
    model.add_adapter("other", LoraConfig(r=8, lora_alpha=2, target_modules=["w"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.3)
    model = model.eval().requires_grad_(False)
    run = optimized(model)
    for name in ("default", "other", "default"):
        model.set_adapter(name, inference_mode=True)
        close(run(rows()), model(rows()))
    assert {kind for plan in kinds(run) for kind in plan} == {"merged"}
