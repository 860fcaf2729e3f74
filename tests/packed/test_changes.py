"""Packed weights are right after every change of a weight, and the parameters stay the user's."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.seam import FusionWarning
from tests.lora_models import WIDTH, close, kinds, rows
from tests.packed.models import BYTES, COLUMNS, PACKED, Attention, are_packed, optimized, weights

pytestmark = pytest.mark.exhaustive


def in_place(model: Attention) -> None:
    model.q.weight.mul_(1.5)


def in_inference_mode(model: Attention) -> None:
    with torch.inference_mode():
        model.k.weight.add_(0.1)


def through_data(model: Attention) -> None:
    model.v.weight.data.copy_(torch.randn(COLUMNS["v"], WIDTH))


def loaded(model: Attention) -> None:
    model.load_state_dict(Attention(seed=5).state_dict())


def bias_changed(model: Attention) -> None:
    model.v.bias.add_(1.0)


def bias_replaced(model: Attention) -> None:
    model.q.bias = nn.Parameter(torch.randn(COLUMNS["q"]))


def data_assigned(model: Attention) -> None:
    model.k.weight.data = torch.randn(COLUMNS["k"], WIDTH)


def loaded_by_assignment(model: Attention) -> None:
    model.load_state_dict(Attention(seed=5).state_dict(), assign=True)


def replaced(model: Attention) -> None:
    model.v.weight = nn.Parameter(torch.randn(COLUMNS["v"], WIDTH))


def swapped(model: Attention) -> None:
    torch.utils.swap_tensors(model.q.weight, nn.Parameter(torch.randn(COLUMNS["q"], WIDTH)))


def exchanged(model: Attention) -> None:
    """Two parameters of one shape trade places in the buffer."""
    model.k.weight.data, model.v.weight.data = model.v.weight.data, model.k.weight.data


SEEN = (in_place, in_inference_mode, through_data, loaded, loaded_by_assignment, bias_changed, bias_replaced)
PACKED_ANEW = {
    data_assigned: "given other memory",
    exchanged: "given other memory",
    replaced: "was replaced",
    swapped: "given other memory",
}


def run_before_and_after(model: Attention, change: Callable[[Attention], None], run: Any) -> None:
    before = run(rows())
    close(before, model(rows()))
    assert are_packed(model)
    change(model)
    for _ in range(2):
        after = run(rows())
        close(after, model(rows()))
    assert not all(torch.allclose(old, new, atol=1e-2) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("change", SEEN, ids=lambda change: change.__name__)
def test_what_is_written_or_new_as_a_whole_is_seen(change: Callable[[Attention], None], rest: str) -> None:
    model = Attention()
    run = optimized(model, rest)
    run_before_and_after(model, change, run)
    assert are_packed(model) and fusioncc.packed_of(run).reasons == ()
    assert {kind for plan in kinds(run) for kind in plan} == {"packed"}


@pytest.mark.parametrize("change", PACKED_ANEW, ids=lambda change: change.__name__)
def test_what_was_replaced_is_packed_anew_with_the_reason(change: Callable[[Attention], None], rest: str) -> None:
    model = Attention()
    run = optimized(model, rest)
    with pytest.warns(FusionWarning, match=PACKED_ANEW[change]):
        run_before_and_after(model, change, run)
    assert are_packed(model)
    (reason,) = fusioncc.packed_of(run).reasons
    assert reason.startswith("weights are packed anew: a parameter") and PACKED_ANEW[change] in reason
    assert fusioncc.packed_of(run).packed_bytes == BYTES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_a_cast_of_the_model_gives_its_weights_memory_of_their_own(dtype: torch.dtype, rest: str) -> None:
    model = Attention()
    run = optimized(model, rest, on_error="fallback")
    run(rows())
    model.to(dtype)
    assert not are_packed(model)
    for got, wanted in zip(run(rows(dtype=dtype)), model(rows(dtype=dtype)), strict=True):
        torch.testing.assert_close(got, wanted)
    assert all(weight.dtype is dtype for weight in weights(model))


def test_the_parameters_stay_the_same_objects_and_unpack_gives_them_memory_of_their_own(rest: str) -> None:
    model = Attention()
    objects, values = weights(model), [weight.clone() for weight in weights(model)]
    run = optimized(model, rest)
    packed = fusioncc.packed_of(run)
    assert packed.packed_bytes == 0
    run(rows())
    assert are_packed(model) and packed.packed_bytes == BYTES
    for step in (packed.unpack, packed.pack, packed.unpack):
        step()
        assert not are_packed(model)
        close(run(rows()), model(rows()))
        assert are_packed(model) == (step == packed.pack)
        assert all(now is was for now, was in zip(weights(model), objects, strict=True))
        assert all(torch.equal(now, was) for now, was in zip(weights(model), values, strict=True))
        assert all(weight.is_leaf and weight.requires_grad for weight in weights(model))
    assert packed.packed_bytes == 0


def test_weights_without_any_bias_are_packed_by_the_first_call(rest: str) -> None:
    """The last tensor that an operator is given is held by torch while it looks at its first call."""

    class Bare(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.q.bias = self.v.bias = None

    model = Bare()
    run = optimized(model, rest)
    close(run(rows()), model(rows()))
    assert are_packed(model) and fusioncc.packed_of(run).reasons == ()


def test_one_product_runs_until_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = Attention(), []
    run = optimized(model)
    real = fusioncc.runtime.packed.product
    monkeypatch.setattr("fusioncc.runtime.packed.product", lambda x, w, bias: calls.append(w.shape) or real(x, w, bias))
    run(rows())
    assert calls == [(WIDTH, sum(COLUMNS.values()))]
    fusioncc.packed_of(run).unpack()
    run(rows())
    assert calls[1:] == [(WIDTH, n) for n in COLUMNS.values()]


def test_a_copy_of_the_model_has_memory_of_its_own() -> None:
    model = Attention()
    run = optimized(model)
    run(rows())
    twin = copy.deepcopy(model)
    assert not are_packed(twin) and all(torch.equal(a, b) for a, b in zip(weights(twin), weights(model), strict=True))
    second = copy.deepcopy(run)
    model.q.weight.zero_()
    for _ in range(2):
        close(second(rows()), twin(rows()))
        close(run(rows()), model(rows()))


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_models_that_share_code_do_not_share_a_buffer() -> None:
    models = [Attention(), Attention(seed=9)]
    runs = [torch.compile(model, backend=backend, options={**PACKED, "rest": "eager"}) for model in models]
    for _ in range(3):
        for model, run in zip(models, runs, strict=True):
            close(run(rows()), model(rows()))
    assert all(map(are_packed, models))
    models[0].q.weight.zero_()
    close(runs[1](rows()), models[1](rows()))


def test_buffers_of_dead_models_are_dropped_when_another_is_packed() -> None:
    run = torch.compile(lambda model, x: model(x), backend=backend, options=PACKED)
    for seed in range(3):
        model = Attention(seed)
        close(run(model, rows()), model(rows()))
        assert fusioncc.packed_of(run).packed_bytes == BYTES
        del model
        gc.collect()


def test_two_shapes_share_a_buffer_and_rows_may_be_symbolic(rest: str) -> None:
    model = Attention()
    run = optimized(model, rest)
    for count in (4, 6, 9):
        close(run(rows(count)), model(rows(count)))
    assert [plan.groups[0].m_symbol != "" for plan in fusioncc.plan_of(run)] == [False, True]
    assert fusioncc.packed_of(run).packed_bytes == BYTES and fusioncc.packed_of(run).reasons == ()


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_weights_that_never_stay_are_left_alone_after_a_while() -> None:
    model = Attention()
    run = optimized(model)
    for _ in range(12):
        close(run(rows()), model(rows()))
        data_assigned(model)
    assert "they were packed 8 times" in fusioncc.packed_of(run).reasons[-1]
    close(run(rows()), model(rows()))
    assert not are_packed(model)
    fusioncc.packed_of(run).pack()
    close(run(rows()), model(rows()))
    assert are_packed(model)


def test_training_updates_the_weights_in_the_buffer(rest: str) -> None:
    model, plain = Attention(), Attention()
    run = optimized(model, rest)
    with torch.enable_grad():
        steps = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, plain)]
        for _ in range(3):
            for forward, step in zip((run, plain), steps, strict=True):
                sum(out.square().mean() for out in forward(rows())).backward()
                step.step()
                step.zero_grad()
    assert are_packed(model)
    close(list(model.state_dict().values()), list(plain.state_dict().values()))


def test_leading_dimensions_and_16_bits_leave_as_the_model_gives_them(rest: str) -> None:
    model = Attention(dtype=torch.bfloat16)
    x = rows(12, dtype=torch.bfloat16).view(3, 4, WIDTH)
    for got, wanted in zip(optimized(model, rest)(x), model(x), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        torch.testing.assert_close(got, wanted)


def test_an_output_may_be_written_without_changing_another() -> None:
    model = Attention()
    run = optimized(model)
    q, k, v = run(rows())
    q.zero_()
    close((k, v), model(rows())[1:])
    assert q.untyped_storage().data_ptr() != v.untyped_storage().data_ptr()


def test_a_state_dict_is_saved_and_read_back_by_torch_and_safetensors(tmp_path: Path) -> None:
    model = Attention()
    run = optimized(model)
    wanted = run(rows())
    assert are_packed(model)
    save_file(model.state_dict(), tmp_path / "state.safetensors")
    save_model(model, str(tmp_path / "model.safetensors"))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    whole = (tmp_path / "state.pt").stat().st_size
    assert whole < 2 * BYTES, "the buffer was written once for each weight"
    states = [load_file(tmp_path / "state.safetensors"), torch.load(tmp_path / "state.pt")]
    for state in states:
        for options in ({}, {"assign": True}):
            fresh = Attention(seed=3)
            fresh.load_state_dict(state, **options)
            close(fresh(rows()), wanted)
    fresh = Attention(seed=3)
    load_model(fresh, tmp_path / "model.safetensors")
    close(optimized(fresh)(rows()), wanted)
