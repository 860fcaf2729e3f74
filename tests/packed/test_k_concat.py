"""One product over ``[X | s X A]`` and W beside B: right on every kind of adapter, and after a weight has changed."""

import copy
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fusioncc
from fusioncc import FusionPass, Options
from fusioncc.api import dump_data
from fusioncc.capture import capture
from fusioncc.dump import write
from fusioncc.errors import IllegalScheduleError
from fusioncc.group import Group, Operand
from fusioncc.packing import concat_refusal, laid_out_alike
from fusioncc.seam import FusionWarning
from tests.cost_models.groups import bundle
from tests.lora_models import WIDTH, Lora, kinds, rows
from tests.shown import shown

BF16 = torch.bfloat16
ASKED: dict[str, Any] = {"schedule": "k_concat", "pack_weights": True, "rest": "eager", "on_error": "raise"}
BYTES = (WIDTH + 8) * WIDTH * 2


def frozen(**more: Any) -> Lora:
    return Lora(dtype=BF16, **more).requires_grad_(False)


def optimized(model: Any, **more: Any) -> Any:
    return fusioncc.optimize(model, **{**ASKED, **more})


def as_exact(run: Any, model: Any, x: torch.Tensor) -> Any:
    """``run(x)`` is as close to fp64 as the model itself."""
    got, plain, exact = run(x), model(x), copy.deepcopy(model).double()(x.double())
    results = ((each,) if isinstance(each, torch.Tensor) else each for each in (got, plain, exact))
    for one, two, true in zip(*results, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        assert (one - true).square().mean() <= 1.2 * (two - true).square().mean()
    return got


def are_packed(model: Lora) -> bool:
    w, b = model.w.weight, model.b.weight
    beside = w.data_ptr() + WIDTH * w.element_size() == b.data_ptr()
    return beside and w.stride() == b.stride() == (WIDTH + 8, 1)


class Attention(nn.Module):
    """q with a bias and an adapter of rank 12, k without an adapter, v with one of rank 8."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v = frozen(rank=12), frozen(seed=2, scale=0.5)
        self.k = nn.Linear(WIDTH, 32, dtype=BF16, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.q(x), self.k(x), self.v(x)


def test_an_adapter_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = frozen(), []
    run = optimized(model)
    real = fusioncc.runtime.packed.product
    monkeypatch.setattr("fusioncc.runtime.packed.product", lambda *given: calls.append(given[1].shape) or real(*given))
    as_exact(run, model, rows(8, dtype=BF16))
    assert calls == [(WIDTH + 8, WIDTH)] and are_packed(model)
    assert fusioncc.packed_of(run).packed_bytes == BYTES
    fusioncc.packed_of(run).unpack()
    as_exact(run, model, rows(8, dtype=BF16))
    assert calls[1:] == [(WIDTH, WIDTH)] and model.w.weight.is_contiguous() and not are_packed(model)


def test_several_mains_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = Attention(), []
    run = optimized(model)
    real = fusioncc.runtime.packed.product
    monkeypatch.setattr("fusioncc.runtime.packed.product", lambda *given: calls.append(given[1].shape) or real(*given))
    for _ in range(2):
        as_exact(run, model, rows(12, dtype=BF16).view(3, 4, WIDTH))
    assert calls == [(WIDTH + 16 + 8, WIDTH + 32 + WIDTH)] * 2
    assert {kind for plan in kinds(run) for kind in plan} == {"k_concat"}
    assert fusioncc.packed_of(run).packed_bytes == (WIDTH + 16 + 8) * (WIDTH + 32 + WIDTH) * 2


def test_weights_that_are_held_k_by_n_lie_turned() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            for name, shape in {"w": (WIDTH, 96), "a": (WIDTH, 8), "b": (8, 96)}.items():
                setattr(self, name, nn.Parameter(torch.randn(shape, dtype=BF16), requires_grad=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w + 2 * ((x @ self.a) @ self.b)

    model = Plain()
    run = optimized(model)
    for _ in range(2):
        as_exact(run, model, rows(8, dtype=BF16))
    assert kinds(run) == [["k_concat"], ["k_concat"]], "compiled again for other strides, once"
    assert fusioncc.packed_of(run).packed_bytes == (WIDTH + 8) * 96 * 2
    assert (tuple(model.w.shape), model.w.stride()) == ((WIDTH, 96), (1, WIDTH + 8))
    fusioncc.packed_of(run).unpack()
    as_exact(run, model, rows(8, dtype=BF16))
    assert model.w.is_contiguous() and len(kinds(run)) == 2, "what was compiled first fits again"


def in_place(model: Lora) -> None:
    model.w.weight.mul_(-1.5)


def through_data(model: Lora) -> None:
    model.b.weight.data.copy_(torch.randn(WIDTH, 8))


def down_replaced(model: Lora) -> None:
    model.a.weight = nn.Parameter(torch.randn(8, WIDTH, dtype=BF16), requires_grad=False)


def loaded(model: Lora) -> None:
    model.load_state_dict(frozen(seed=5).state_dict())


def up_replaced(model: Lora) -> None:
    model.b.weight = nn.Parameter(torch.randn(WIDTH, 8, dtype=BF16), requires_grad=False)


def data_assigned(model: Lora) -> None:
    model.w.weight.data = torch.randn(WIDTH, WIDTH, dtype=BF16)


CHANGES = (in_place, through_data, down_replaced, loaded, up_replaced, data_assigned)


@pytest.mark.parametrize("change", shown(CHANGES, 2, attrgetter("__name__")))
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_a_changed_weight_is_the_one_that_is_used(change: Callable[[Lora], None]) -> None:
    model = frozen()
    run = optimized(model)
    before = as_exact(run, model, rows(8, dtype=BF16))
    change(model)
    for _ in range(2):
        after = as_exact(run, model, rows(8, dtype=BF16))
    assert not torch.allclose(before, after, atol=1e-2) and are_packed(model)


def test_what_cannot_be_packed_runs_product_by_product() -> None:
    model = frozen()
    held = model.b.weight.detach()
    run = optimized(model)
    with pytest.warns(FusionWarning, match=r"one \[64, 8\] is aliased"):
        as_exact(run, model, rows(8, dtype=BF16))
    assert model.w.weight.is_contiguous() and held.data_ptr() == model.b.weight.data_ptr()


@pytest.mark.exhaustive
def test_a_plan_and_a_dump_are_read_back_and_the_plan_fits_the_packed_model_too(tmp_path: Path) -> None:
    model = frozen()
    options = {"schedule": "k_concat", "pack_weights": True, "rest": "eager"}
    plan = fusioncc.plan(model, (rows(8, dtype=BF16),), **options)
    assert any(f"2 parameters move into one buffer [64, 72], {BYTES} bytes" in note for note in plan.notes)
    assert fusioncc.Plan.from_json(plan.to_json()) == plan
    write(dump_data(model, (rows(8, dtype=BF16),), **options), tmp_path)
    after = (tmp_path / "after.txt").read_text()
    assert "torch.ops.fusioncc.packed" in after and model.w.weight.is_contiguous()
    run = optimized(model, plan=plan, schedule="auto")
    for _ in range(2):
        as_exact(run, model, rows(8, dtype=BF16))
    assert kinds(run) == [["k_concat"], ["k_concat"]] and are_packed(model)


def test_a_backward_that_needs_w_as_it_was_compiled_keeps_it_there() -> None:
    model, (x, same) = frozen(), (rows(8, dtype=BF16).requires_grad_() for _ in range(2))
    run = optimized(model, on_error="fallback")
    with torch.enable_grad():
        run(x).float().square().sum().backward()
        model(same).float().square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=0.05, atol=0.05)
    assert model.w.weight.is_contiguous()
    assert "unshared" in {each.rule for each in fusioncc.plan_of(run)[0].rejections}


@pytest.mark.exhaustive
def test_it_runs_on_request_only_and_not_where_eager_rounds() -> None:
    x = rows(8, dtype=BF16)
    (group,) = fusioncc.plan(frozen(), (x,), pack_weights=True, rest="eager").groups
    (candidate,) = (each for each in group.candidates if each.kind == "k_concat")
    assert candidate.legal and candidate.predicted_us and group.schedule.kind != "k_concat"
    with pytest.raises(IllegalScheduleError, match="rounding_tier"):
        fusioncc.plan(frozen(), (x,), numerics="eager", **ASKED)
    with pytest.raises(IllegalScheduleError, match="strides_are_free: Inductor's code has the strides"):
        fusioncc.plan(frozen(), (x,), **{**ASKED, "rest": "inductor"})
    with pytest.raises(IllegalScheduleError, match="asked_for: packing moves weights"):
        fusioncc.plan(frozen(), (x,), schedule="k_concat", on_error="raise")


@pytest.mark.exhaustive
def test_trainable_weights_are_refused() -> None:
    model = frozen()
    with pytest.raises(IllegalScheduleError, match=r"frozen: .* is trainable"):
        fusioncc.plan(Lora(dtype=BF16), (rows(8, dtype=BF16),), **ASKED)
    run = optimized(model, on_error="fallback")
    as_exact(run, model, rows(8, dtype=BF16))
    assert are_packed(model)
    fusioncc.packed_of(run).unpack()
    fusioncc.packed_of(run).pack()
    model.b.weight.requires_grad_()
    with torch.no_grad():
        as_exact(run, model, rows(8, dtype=BF16))
    assert model.w.weight.is_contiguous() and model.b.weight.is_contiguous()


def test_a_visible_kernel_does_not_write_what_another_has_written() -> None:
    graph = capture(frozen(), (rows(8, dtype=BF16),)).graph
    fusion = FusionPass(Options(schedule="k_concat", pack_weights=True, rest="eager"), form="visible")
    fusion(graph)
    (plan,) = fusion.plans
    assert plan.groups[0].schedule.kind == "library"
    assert "strides_are_free" in {each.rule for each in plan.rejections}


def test_a_copy_has_memory_of_its_own() -> None:
    model = frozen()
    run = optimized(model)
    run(rows(8, dtype=BF16))
    twin = copy.deepcopy(model)
    model.w.weight.zero_()
    as_exact(optimized(twin), twin, rows(8, dtype=BF16))
    assert twin.w.weight.any() and not model.w.weight.any()
    assert torch.equal(twin.state_dict()["w.weight"], frozen().w.weight)


@pytest.mark.exhaustive
def test_safetensors_take_it_unpacked_or_made_contiguous(tmp_path: Path) -> None:
    model = frozen()
    run = optimized(model)
    wanted = run(rows(8, dtype=BF16))
    with pytest.raises(ValueError, match="non contiguous"):
        save_file(model.state_dict(), tmp_path / "packed.safetensors")
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "whole.safetensors")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fusioncc.packed_of(run).unpack()
    save_file(model.state_dict(), tmp_path / "unpacked.safetensors")
    states = [load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "unpacked")]
    for state in (*states, torch.load(tmp_path / "state.pt")):
        fresh = frozen(seed=3)
        fresh.load_state_dict(state)
        assert torch.equal(optimized(fresh)(rows(8, dtype=BF16)), wanted)


ONE = bundle(64, 512, (1024, 8))


def _with(index: int, **changes: Any) -> Group:
    members = list(ONE.members)
    members[index] = replace(members[index], **changes)
    return replace(ONE, members=tuple(members))


def _two_read_one_down() -> Group:
    two = bundle(64, 512, (1024, 8), (1024, 8))
    return replace(two, branches=(two.branches[0], replace(two.branches[1], down=two.branches[0].down)))


REFUSED: dict[str, tuple[Group, str]] = {
    "no branch": (bundle(64, 512, (1024, 0)), "no low-rank branch to join"),
    "shared down": (_two_read_one_down(), "several branches read one down product"),
    "fp16": (bundle(64, 512, (1024, 8), dtype="fp16"), "which only bf16 has the range for; X is fp16"),
    "fp32": (bundle(64, 512, (1024, 8), dtype="fp32"), "which only bf16 has the range for; X is fp32"),
    "fp32 adapters": (bundle(64, 512, (1024, 8), adapter="fp32"), "the adapter is fp32"),
    "rows of X": (bundle(64, 500, (1024, 8)), "rows of 500 elements in bf16 are no multiple of 16 bytes"),
    "weight": (_with(0, weight=replace(ONE.members[0].weight, dtype="fp32")), "one GEMM has one dtype"),
    "strides": (_with(0, weight=replace(ONE.members[0].weight, strides=(2, 1040))), "contiguous along neither side"),
    "strides of B": (_with(2, weight=replace(ONE.members[2].weight, strides=(2, 16))), "a B [8, 1024] is contiguous"),
    "bias": (_with(0, bias=Operand("c", (1024,), (1,), "fp32")), "a vendor GEMM adds a bias of the dtype of X"),
    "up bias": (_with(2, bias=Operand("c", (1024,), (1,), "bf16")), "a bias behind the up product has no place"),
    "saved": (bundle(64, 512, (1024, 8), saved=True), "a down product is read elsewhere, unscaled"),
    "batch": (_with(0, batch=2), "batched members have no matrix"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_group_without_this_form_says_why(name: str) -> None:
    group, words = REFUSED[name]
    assert words in concat_refusal(group)


def test_a_lora_layer_has_this_form_before_and_after_it_was_packed() -> None:
    assert concat_refusal(ONE) == ""
    packed = _with(0, weight=replace(ONE.members[0].weight, strides=(1, 520)))
    assert packed != ONE and concat_refusal(packed) == "" and laid_out_alike(packed) == laid_out_alike(ONE)
