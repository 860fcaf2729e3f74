"""Merged weights: right after every change of a weight that can be seen, through every door, and dropped on request."""

import copy
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import fusioncc
from fusioncc import FusionPass, Options
from fusioncc.backend import fusioncc as backend
from fusioncc.capture import capture
from fusioncc.dump import write
from fusioncc.errors import CaptureError, IllegalScheduleError, PlanError
from fusioncc.runtime.merged import MergedWeights, merge
from fusioncc.schedule import Schedule
from fusioncc.seam import FusionWarning
from tests.lora_models import WIDTH, Lora, close, kinds, rows
from tests.plans import INLINE

BYTES = WIDTH * WIDTH * 4
MERGED: dict[str, Any] = {"schedule": "merged", "numerics": "relaxed", "on_error": "raise"}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch.compiler.reset()
    if "fusioncc" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend)  # as installation does
    with torch.no_grad():
        yield


@pytest.fixture(params=["eager", "inductor"])
def rest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs the rest of the graph. Without its interpreter Triton does not run here, and Inductor does."""
    if request.param == "inductor":
        monkeypatch.setenv("TRITON_INTERPRET", "0")
    return str(request.param)


def frozen(**more: Any) -> Lora:
    return Lora(**more).requires_grad_(False)


def optimized(model: Any, rest: str = "eager", **more: Any) -> Any:
    return fusioncc.optimize(model, rest=rest, **{**MERGED, **more})


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


def test_the_pass_alone() -> None:
    model = frozen()
    module = capture(model, (rows(),))
    fusion = FusionPass(Options(schedule="merged", numerics="relaxed"), form="visible")
    fusion(module.graph)
    module.recompile()
    weights = [model.w.weight, model.w.bias, model.a.weight, model.b.weight]
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.merged.merged_bytes == BYTES
    model.a.weight.mul_(2.0)
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.plans[0].groups[0].insertion == "call"
    assert fusion.uuid() is None
    fusion.merged = MergedWeights()
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.merged.merged_bytes == 0


def test_exported_programs_merge_too() -> None:
    model = frozen()
    program = torch.export.export(model, (rows(),))
    assert fusioncc.plan(program, schedule="merged", numerics="relaxed").groups[0].schedule.kind == "merged"
    run = optimized(program)
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"]]


def test_only_what_was_compiled_holds_merged_weights() -> None:
    with pytest.raises(CaptureError, match="a Lora that was not compiled here"):
        fusioncc.merged_of(frozen())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tier": "fp32"}, "merging is of the tier 'relaxed', not 'fp32'"),
        ({"schedule": Schedule("merged", INLINE.pools)}, "gives pools to 'merged', which has none"),
    ],
    ids=["tier", "pools"],
)
def test_an_edited_plan_is_refused(change: dict[str, Any], words: str) -> None:
    plan = fusioncc.plan(frozen(), (rows(),), schedule="merged", numerics="relaxed")
    edited = replace(plan, groups=(replace(plan.groups[0], **change),))
    with pytest.raises(PlanError, match=words):
        FusionPass(Options(numerics="relaxed", on_error="raise"), edited)(capture(frozen(), (rows(),)).graph)


def test_a_plan_says_what_is_held_is_read_back_and_applied(tmp_path: Path) -> None:
    model = frozen()
    plan = fusioncc.plan(model, (rows(),), schedule="merged", numerics="relaxed")
    (group,) = plan.groups
    assert (group.schedule.kind, group.tier, group.kernel) == ("merged", "relaxed", "")
    assert any(f"merged weights hold {BYTES} bytes" in note for note in plan.notes)
    assert group.after.peak_bytes >= BYTES and group.after.kernels == 1
    assert fusioncc.Plan.from_json(plan.to_json()) == plan
    run = fusioncc.optimize(model, plan=plan, numerics="relaxed", rest="eager", on_error="raise")
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"]]
    assert FusionPass(plan=plan).uuid() is None
    strict = fusioncc.optimize(model, plan=plan, rest="eager", on_error="raise")
    with pytest.raises(Exception, match="rounding_tier: merging rounds") as caught:
        strict(rows())
    assert PlanError.__name__ in str(caught.value)


def test_a_dump_shows_the_product_and_merges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusioncc.api import dump_data

    monkeypatch.setattr("fusioncc.runtime.merged.merge", lambda *_: pytest.fail("a dump merged weights"))
    write(dump_data(frozen().to("meta"), (rows(),), schedule="merged", numerics="relaxed"), tmp_path)
    assert "torch.ops.fusioncc.merged" in (tmp_path / "after.txt").read_text()
    plan = fusioncc.Plan.from_json((tmp_path / "plan.json").read_bytes())
    assert plan.groups[0].schedule.kind == "merged"


def test_auto_never_merges_and_says_what_it_would_be_worth() -> None:
    plan = fusioncc.plan(frozen(), (rows(),), numerics="relaxed")
    (candidate,) = (each for each in plan.groups[0].candidates if each.kind == "merged")
    assert candidate.legal and candidate.predicted_us is not None
    assert plan.groups[0].schedule.kind != "merged" and not plan.notes
