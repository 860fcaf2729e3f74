"""``torch.compile`` with fusioncc's backend: options, plans of every graph, gradients, and never worse than without."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.decision import Accepted
from fusioncc.errors import EmissionError, KernelBuildError, OptionError
from fusioncc.seam import FusionWarning
from tests.lora_models import Lora, close, compiled, kinds, rows
from tests.shown import shown


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shedule": "inline"}, "did you mean 'schedule'.*valid options: schedule, numerics, on_error"),
        ({"schedule": "fast"}, "valid values: auto, library"),
        ({"numerics": "fp16"}, "valid values: 'eager', 'fp32', 'relaxed'"),
        ({"device": "h2000"}, "valid devices: a100-40"),
        ({"inductor": {"max_autotun": True}}, "unknown Inductor option 'max_autotun'"),
    ],
)
def test_a_wrong_option_lists_the_valid_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call_backend(options=options)


def test_a_wrong_mode_lists_the_valid_ones() -> None:
    with pytest.raises(OptionError, match=r"valid modes: .*max-autotune"):
        call_backend(mode="fastest")


def call_backend(**more: Any) -> Any:
    model, x = Lora(), rows()
    return backend(torch.fx.symbolic_trace(model), [x], **more)


def test_a_mode_and_options_through_torch_compile() -> None:
    model, x = Lora(), rows()
    by_mode = torch.compile(model, backend=backend, mode="max-autotune")
    close(by_mode(x), model(x))
    assert kinds(by_mode)[0] == ["split"]


@pytest.mark.parametrize("schedule", ["inline", "split", "library"])
@pytest.mark.parametrize("dtype", shown([torch.bfloat16, torch.float32], 1))
def test_results_of_each_schedule(schedule: str, dtype: torch.dtype) -> None:
    model, x = Lora(dtype=dtype), rows(dtype=dtype)
    run = compiled(model, schedule=schedule)
    with torch.no_grad():
        got, eager, exact = run(x), model(x), Lora().to(dtype).double()(x.double())
        error = float((got - exact).square().mean().sqrt())
        assert error <= 1.1 * float((eager - exact).square().mean().sqrt()) + 1e-7
    assert kinds(run) == [[schedule]]


def test_an_eager_tier_keeps_vendor_products() -> None:
    run = compiled(Lora(), schedule="auto", numerics="eager")
    with torch.no_grad():
        run(rows())
    (plan,) = fusioncc.plan_of(run)
    assert plan.groups[0].schedule.kind == "library"
    assert any("rounding_tier" in candidate.reason for candidate in plan.groups[0].candidates)


def test_a_graph_break_gives_a_plan_for_each_graph() -> None:
    first, second = Lora(0), Lora(1)

    def both(x: torch.Tensor) -> torch.Tensor:
        x = first(x)
        torch._dynamo.graph_break()
        return second(x)

    run = compiled(both)
    with torch.no_grad():
        close(run(rows()), second(first(rows())))
    assert kinds(run) == [["inline"], ["inline"]]


def test_a_recompile_gives_another_plan() -> None:
    model = Lora()
    run = compiled(model)
    with torch.no_grad():
        for count in (4, 7, 9):
            close(run(rows(count)), model(rows(count)))
    plans = fusioncc.plan_of(run)
    assert [plan.groups[0].m_symbol != "" for plan in plans] == [False, True]


def test_dynamic_rows_run_every_size_with_one_plan() -> None:
    model = Lora()
    run = torch.compile(
        model, backend=backend, dynamic=True, options={"schedule": "split", "on_error": "raise"}, fullgraph=True
    )
    with torch.no_grad():
        for shape in ((3, 5), (4, 17), (2, 40)):
            x = rows(shape[0] * shape[1]).reshape(*shape, -1)
            close(run(x), model(x))
    assert kinds(run) == [["split"]]
    assert fusioncc.plan_of(run)[0].groups[0].m_symbol


def test_no_rows() -> None:
    model = Lora()
    run = compiled(model, schedule="auto")
    with torch.no_grad():
        assert run(rows(0)).shape == (0, 64)


def test_inputs_that_are_no_tensors() -> None:
    model = Lora()

    def scaled(x: torch.Tensor, factor: float, flags: dict[str, bool], name: str | None = None) -> torch.Tensor:
        return model(x) * factor if flags["on"] else x

    run = compiled(scaled)
    with torch.no_grad():
        close(run(rows(), 2.0, {"on": True}), 2.0 * model(rows()))
        close(run(rows(), 3.0, {"on": True}, "b"), 3.0 * model(rows()))
        close(run(rows(), 3.0, {"on": False}), rows())


def test_the_models_own_error_comes_through() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        torch.compile(Fails(), backend=backend)(rows())


def test_a_wrong_shape_is_the_models_own_error() -> None:
    model = Lora()
    with pytest.raises(RuntimeError, match=r"4x3 and 64x64|size mismatch|shape") as eager:
        model(torch.ones(4, 3))
    with pytest.raises(RuntimeError) as fused, warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        torch.compile(model, backend=backend)(torch.ones(4, 3))
    assert "64" in str(fused.value) and "64" in str(eager.value)


@pytest.mark.parametrize("schedule", ["inline", "split"])
def test_gradients_are_those_of_eager(schedule: str) -> None:
    fused, plain, x = Lora(), Lora(), rows().requires_grad_()
    y = x.detach().clone().requires_grad_()
    run = compiled(fused, schedule=schedule)
    run(x).square().sum().backward()
    plain(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    for (name, got), (_, wanted) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-4, msg=name)
    forward, *backward = fusioncc.plan_of(run)
    assert forward.groups[0].schedule.kind == schedule
    assert forward.groups[0].branches[0].saved
    assert all(not plan.groups and plan.rejections[0].rule == "forward_only" for plan in backward)


def test_two_models_of_one_class_stay_apart() -> None:
    one, two = Lora(0), Lora(1)
    first, second = compiled(one), compiled(two, schedule="split")
    with torch.no_grad():
        close(first(rows()), one(rows()))
        close(second(rows()), two(rows()))
        close(first(rows()), one(rows()))
    assert kinds(first) == [["inline"]]
    assert kinds(second) == [["split"]]


def test_equal_models_with_equal_options_each_have_a_plan() -> None:
    one, two = Lora(0), Lora(1)
    first, second = compiled(one), compiled(two)
    with torch.no_grad():
        close(first(rows()), one(rows()))
        close(second(rows()), two(rows()))
    assert kinds(first) == kinds(second) == [["inline"]]


def test_a_function_has_plans_too_and_none_before_its_first_call() -> None:
    model = Lora()
    run = compiled(lambda x: model(x).relu())
    assert fusioncc.plan_of(run) == ()
    with torch.no_grad():
        close(run(rows()), model(rows()).relu())
    assert kinds(run) == [["inline"]]
    assert fusioncc.plan_of(model) == ()


def fails_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


STAGES = (
    "fusioncc.pipeline.canonicalize",
    "fusioncc.pipeline.find_groups",
    "fusioncc.passes.plan_groups.rank",
    "fusioncc.pipeline.emit_groups",
    "fusioncc.pipeline.insert_kernels",
    "fusioncc.passes.insert_kernels.launcher",
    "fusioncc.fusion_pass.device_of",
)


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_keeps_the_original_graph_and_warns_once(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, fails_with(KeyError("injected")))
    model = Lora()
    run = torch.compile(model, backend=backend, options={"schedule": "inline"})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(run(rows()), model(rows()))
        assert torch.equal(run(rows()), model(rows()))
    ours = [str(warning.message) for warning in caught if issubclass(warning.category, FusionWarning)]
    assert len(ours) == 1
    assert "injected" in ours[0]
    (plan,) = fusioncc.plan_of(run)
    assert "injected" in plan.fallback
    if stage.startswith("fusioncc.passes."):  # what fails for one group names it
        assert "g0" in ours[0] and "g0" in plan.fallback


@pytest.mark.parametrize("stage", shown(STAGES, 2))
def test_a_failure_is_raised_when_asked_for(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, fails_with(KeyError("injected")))
    with torch.no_grad(), pytest.raises(Exception, match="injected"):
        compiled(Lora())(rows())


@pytest.mark.parametrize(
    "error", [EmissionError("no import"), KeyError("a bug"), KernelBuildError("too much shared memory")]
)
def test_a_kernel_that_does_not_build_costs_only_its_group(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(error, KernelBuildError):
        monkeypatch.setattr("fusioncc.fusion_pass.runnable", lambda _: Accepted("runnable", ("cuda",)))
        monkeypatch.setattr("fusioncc.passes.build_groups.build", fails_with(error))
    else:
        monkeypatch.setattr("fusioncc.passes.build_groups.load", fails_with(error))
    model = Lora()
    run = torch.compile(model, backend=backend, options={"schedule": "inline"})
    with torch.no_grad(), pytest.warns(FusionWarning, match=f"g0: .*{error}") as caught:
        assert torch.equal(run(rows()), model(rows()))
    assert len([each for each in caught if each.category is FusionWarning]) == 1
    (plan,) = fusioncc.plan_of(run)
    assert plan.groups[0].schedule.kind == "library" and not plan.fallback
    assert [rejection.rule for rejection in plan.rejections] == ["build"]


def test_a_forced_schedule_that_is_illegal() -> None:
    model = Lora(rank=8).double()
    x = rows().double()
    with torch.no_grad():
        run = torch.compile(model, backend=backend, options={"schedule": "inline"})
        close(run(x), model(x))
        (plan,) = fusioncc.plan_of(run)
        assert all(group.schedule.kind == "library" for group in plan.groups)
        assert plan.rejections
