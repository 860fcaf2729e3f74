"""``optimize``, ``plan`` and ``plan_of`` for everything they take, and plans made elsewhere."""

import dataclasses
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.errors import CaptureError, OptionError, PlanError
from fusioncc.plan import Plan
from fusioncc.schedule import Schedule
from fusioncc.seam import FusionWarning
from tests.lora_models import Lora, close, kinds, rows
from tests.shown import shown


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def forms(model: nn.Module) -> dict[str, Any]:
    """One model in each form that the doors take."""
    return {
        "module": model,
        "graph_module": torch.fx.symbolic_trace(model),
        "exported": torch.export.export(model, (rows(),)),
    }


@pytest.mark.parametrize("form", ["module", "graph_module", "exported"])
def test_every_form_is_planned_and_runs_alike(form: str) -> None:
    model = Lora()
    given = forms(model)[form]
    plan = fusioncc.plan(given, () if form == "exported" else (rows(),), schedule="inline")
    run = fusioncc.optimize(given, (rows(),), schedule="inline", on_error="raise")
    (carried_out,) = fusioncc.plan_of(run)
    assert plan.groups[0].schedule == carried_out.groups[0].schedule
    assert plan.fingerprint == carried_out.fingerprint
    with torch.no_grad():
        close(run(rows()), model(rows()))


def test_without_example_inputs_nothing_is_compiled_yet() -> None:
    run = fusioncc.optimize(Lora())
    assert fusioncc.plan_of(run) == ()


def test_a_model_on_the_meta_device_is_planned_alike() -> None:
    with torch.device("meta"):
        on_meta = nn.Linear(64, 64), nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False)
    model = Lora()
    plan = fusioncc.plan(model, (rows(),))
    model.w, model.a, model.b = on_meta
    assert fusioncc.plan(model, (rows(),)) == plan


@pytest.mark.exhaustive
def test_running_a_model_on_the_meta_device_gives_no_numbers() -> None:
    model = Lora().to("meta")
    run = fusioncc.optimize(model, on_error="raise")
    with torch.no_grad():
        out = run(rows().to("meta"))
    assert out.device.type == "meta"
    (plan,) = fusioncc.plan_of(run)
    assert not any(group.insertion for group in plan.groups)
    assert any("no emitted kernels for meta tensors" in note and "fusioncc.plan" in note for note in plan.notes)
    assert all("\n" not in note for note in plan.notes)


class Leaves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fusioncc.plan(Lora(), (rows(),), device="h2000"), OptionError, "valid devices"),
        (lambda: fusioncc.plan(Lora(), (rows(),), shedule="inline"), OptionError, "did you mean 'schedule'"),
        (lambda: fusioncc.optimize(Lora(), shedule="inline"), OptionError, "did you mean 'schedule'"),
        (lambda: fusioncc.plan(len, (rows(),)), CaptureError, "cannot capture a builtin_function_or_method"),
        (lambda: fusioncc.plan(Lora(), (torch.ones(4, 3),)), CaptureError, "cannot capture the model"),
        (lambda: fusioncc.plan(Lora(), rows()), CaptureError, "a tuple of positional inputs, not a Tensor"),
        (lambda: fusioncc.optimize(Lora(), rows()), CaptureError, "a tuple of positional inputs, not a Tensor"),
        (lambda: fusioncc.plan(Lora(), {"x": rows()}), CaptureError, "a tuple of positional inputs, not a dict"),
        (lambda: fusioncc.optimize(Lora(), "x"), CaptureError, "a tuple of positional inputs, not a str"),
        (lambda: fusioncc.plan(Lora(), None), CaptureError, "a tuple of positional inputs, not a NoneType"),
        (lambda: fusioncc.plan(Lora(), (), kwargs=[rows()]), CaptureError, "a mapping of keyword inputs, not a list"),
        (lambda: fusioncc.optimize(Lora().to("meta"), (rows(),)), CaptureError, "w.weight is on the meta device"),
        (lambda: fusioncc.plan(Leaves(), (rows(),)), CaptureError, "SystemExit: 3"),
        (lambda: fusioncc.optimize(3), CaptureError, "cannot compile a int"),
        (lambda: fusioncc.optimize(Lora(), plan="no/such/plan.json"), PlanError, "No such file"),
        (lambda: fusioncc.optimize(Lora(), plan="{"), PlanError, "not a plan"),
        (lambda: fusioncc.optimize(Lora(), plan="{", schedule="split"), OptionError, "no effect beside a plan"),
        (lambda: fusioncc.optimize(Lora(), plan='{"schema": 1}'), PlanError, "schema"),
    ],
)
def test_bad_input_is_one_line(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_example_inputs_in_a_list_and_by_keyword_are_taken() -> None:
    model = Lora()
    plan = fusioncc.plan(model, (rows(),))
    assert fusioncc.plan(model, [rows()]) == plan
    assert fusioncc.plan(model, kwargs={"x": rows()}) == plan


def test_a_model_that_raises_is_a_capture_error_in_one_line() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("first line\nsecond line")

    with pytest.raises(CaptureError) as caught:
        fusioncc.plan(Fails(), (rows(),))
    assert "first line" in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def made() -> Plan:
    return fusioncc.plan(Lora(), (rows(),), schedule="split")


@pytest.mark.parametrize("carrier", shown(["value", "text", "path", "path_text"], 2))
def test_a_plan_made_elsewhere_is_applied(made: Plan, carrier: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(made.to_json())
    given = {"value": made, "text": made.to_json(), "path": path, "path_text": str(path)}[carrier]
    model = Lora()
    run = fusioncc.optimize(model, (rows(),), plan=given, on_error="raise")
    (plan,) = fusioncc.plan_of(run)
    assert plan.groups[0].schedule == made.groups[0].schedule
    assert plan.groups[0].why == "as planned"
    with torch.no_grad():
        close(run(rows()), model(rows()))


def edited(plan: Plan, schedule: Schedule) -> Plan:
    return dataclasses.replace(plan, groups=(dataclasses.replace(plan.groups[0], schedule=schedule),))


def test_a_plan_edited_by_hand_is_applied(made: Plan) -> None:
    schedule = made.groups[0].schedule
    pools = tuple(dataclasses.replace(p, tile=dataclasses.replace(p.tile, num_warps=8)) for p in schedule.pools)
    for wanted in (dataclasses.replace(schedule, pools=pools), Schedule("library")):
        model = Lora()
        run = fusioncc.optimize(model, (rows(),), plan=edited(made, wanted), on_error="raise")
        assert fusioncc.plan_of(run)[0].groups[0].schedule == wanted
        with torch.no_grad():
            close(run(rows()), model(rows()))


def test_a_plan_with_a_schedule_that_does_not_exist_is_refused(made: Plan) -> None:
    with pytest.raises(Exception, match="'fastest' is illegal here: unknown kind"), torch.no_grad():
        fusioncc.optimize(Lora(), plan=edited(made, Schedule("fastest")), on_error="raise")(rows())


@pytest.mark.exhaustive
def test_a_plan_for_a_newer_card_is_refused() -> None:
    planned = fusioncc.plan(Lora(), (rows(64),), device="h200", schedule="split")
    assert any(pool.dependent for pool in planned.groups[0].schedule.pools)
    run = fusioncc.optimize(Lora(), plan=planned, device="a100-80", on_error="raise")
    with pytest.raises(Exception, match="starts early needs compute capability 90, a100-80 has 80"), torch.no_grad():
        run(rows(64))


def test_a_plan_of_another_graph_is_refused(made: Plan) -> None:
    with pytest.raises(Exception, match="the plan was made for another graph"), torch.no_grad():
        fusioncc.optimize(Lora(), plan=made, on_error="raise")(rows(5))


def test_a_plan_of_another_graph_is_not_applied_and_one_warning_says_so(made: Plan) -> None:
    model = Lora()
    run = fusioncc.optimize(model, plan=made)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(run(rows(5)), model(rows(5)))
    ours = [str(each.message) for each in caught if each.category is FusionWarning]
    assert len(ours) == 1 and "made for another graph" in ours[0]
    assert "made for another graph" in fusioncc.plan_of(run)[0].fallback
    assert kinds(run) == [[]]


def test_plans_are_made_in_several_threads_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: fusioncc.plan(Lora(), (rows(),)), range(4)))
    assert len({plan.to_json() for plan in plans}) == 1
