"""Caps of ``streams``: options, the plan that holds them, what is refused and why, and the way down a ranking."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fusioncc
from fusioncc.cli import app
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.errors import IllegalScheduleError, KernelBuildError, OptionError
from fusioncc.passes import build_groups as building
from fusioncc.passes import cap_streams as capping
from fusioncc.passes.cap_streams import Caps, cap_streams, with_caps
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import rewrite
from fusioncc.runtime.green_contexts import refusal
from fusioncc.schedule import Schedule
from fusioncc.settings import settings_of
from tests.lora_models import WIDTH, close, rows
from tests.passes.test_insertion import graph as graph
from tests.passes.test_insertion import setting
from tests.test_streams import Projections

pytestmark = pytest.mark.exhaustive

BOTH = {"emitted_multiprocessors": 8, "vendor_multiprocessors": 96}
ON_A_CARD, OFFLINE = Accepted("runnable", ("cuda",)), Accepted("runnable", ("offline",))
H200 = get_device("h200")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def planned(model: nn.Module | None = None, **options: Any) -> fusioncc.Plan:
    dtype = torch.bfloat16
    return fusioncc.plan(model or Projections(dtype=dtype), (rows(dtype=dtype),), schedule="streams", **options)


def refusals(plan: fusioncc.Plan) -> list[str]:
    return [each.reason for each in plan.rejections if each.rule == "multiprocessors"]


@pytest.mark.parametrize("options", [{}, {"emitted_multiprocessors": 8}, {"vendor_multiprocessors": 96}, BOTH], ids=str)
def test_the_schedule_holds_the_caps(options: dict[str, int]) -> None:
    plan = planned(**options)
    schedule = plan.groups[0].schedule
    down, up = schedule.pools
    assert (down.workers, schedule.vendor_multiprocessors) == tuple(map(options.get, BOTH))
    assert up.workers is None and with_caps(schedule, Caps()) == planned().groups[0].schedule
    assert fusioncc.Plan.from_json(plan.to_json()) == plan
    assert ("8 workers" in str(plan)) == ("emitted_multiprocessors" in options)
    assert ("vendor GEMMs on 96 multiprocessors" in str(plan)) == ("vendor_multiprocessors" in options)
    assert refusals(plan) == []


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = (nn.Linear(WIDTH, n, dtype=torch.bfloat16) for n in (32, 48))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.k(x), self.v(x)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (None, {"emitted_multiprocessors": 133}, "a cap of 133 multiprocessors: h200 has 132"),
        (None, {"vendor_multiprocessors": 133}, "a cap of 133 multiprocessors: h200 has 132"),
        (Plain(), {"emitted_multiprocessors": 8}, "no emitted kernel runs beside"),
    ],
)
def test_a_cap_that_cannot_be_had(model: nn.Module | None, options: dict[str, int], reason: str) -> None:
    plan = planned(model, **options)
    (refused,) = refusals(plan)
    assert reason in refused and reason in str(plan)
    assert plan.groups[0].schedule == planned(model).groups[0].schedule
    with pytest.raises(IllegalScheduleError, match=reason):
        planned(model, on_error="raise", **options)
    assert refusals(planned(model, **dict.fromkeys(options, 132) if model is None else {})) == []


def test_without_green_contexts_the_emitted_side_is_capped() -> None:
    """On the card that runs the plan its torch is asked; a plan for elsewhere leaves that to the machine it goes to."""
    schedule, caps = planned().groups[0].schedule, Caps(8, 96)
    held, refused = cap_streams(schedule, caps, "g0", H200, OFFLINE)
    assert Caps.of(held) == caps and refused == []
    held, (refusal,) = cap_streams(schedule, caps, "g0", H200, ON_A_CARD)
    assert Caps.of(held) == Caps(8)
    assert isinstance(refusal, Rejected) and f"torch {torch.__version__} has no green contexts here: " in refusal.reason


def test_green_contexts_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capping, "refusal", lambda multiprocessors: "")
    held, refused = cap_streams(planned().groups[0].schedule, Caps(8, 96), "g0", H200, ON_A_CARD)
    assert Caps.of(held) == Caps(8, 96) and refused == []


@pytest.mark.parametrize("streams", [True, False])
def test_a_partition_needs_streams_of_its_own(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class GreenContext:
        @classmethod
        def create(cls, **options: int) -> "GreenContext":
            assert options == {"num_sms": 17, "device_id": 0}
            return cls()

    if streams:
        GreenContext.Stream = lambda self: None  # type: ignore[attr-defined]
    monkeypatch.setattr("torch.cuda.green_contexts.GreenContext", GreenContext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    refusal.cache_clear()
    assert ("green contexts without streams, which no graph capture would see" in refusal(17)) != streams
    assert streams == (refusal(17) == "")
    refusal.cache_clear()


def test_results_and_a_trace() -> None:
    model, x = Projections(), rows(40)
    run = fusioncc.optimize(model, schedule="streams", on_error="raise", trace=True, **BOTH)
    with torch.no_grad():
        for got, wanted in zip(run(x), model(x), strict=True):
            close(got, wanted)
    (group,) = fusioncc.plan_of(run)[0].groups
    assert Caps.of(group.schedule) == Caps(8, 96)
    spans = [event for event in fusioncc.trace_of(run)["traceEvents"] if event["ph"] == "X"]
    assert {event["name"] for event in spans} == {"down y_0, y_2"}
    assert len({event["tid"] for event in spans}) <= 8
    again = fusioncc.optimize(model, (x,), plan=fusioncc.plan_of(run)[0], on_error="raise")
    assert fusioncc.plan_of(again)[0].groups[0].schedule == group.schedule


def test_a_step_down_the_ranking_keeps_the_caps(graph, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Schedule] = []

    def build(planned: Any, *rest: Any) -> None:
        tried.append(planned.schedule)
        if len(tried) < 3:
            raise KernelBuildError("too much shared memory", len(tried) - 1)

    monkeypatch.setattr(building, "_try", build)
    wanted = setting("streams")
    options = Options.of(wanted.options, emitted_multiprocessors=8)
    plan = rewrite(graph.graph, Setting(options, wanted.device, wanted.runnable), "call")
    final, tried = plan.groups[0].schedule, tried[:3]
    assert final == tried[2] and Caps.of(final) == Caps(8)
    assert len({replace(each.pools[0], workers=None) for each in tried}) == 2, "another down tile"
    assert len({each.pools[1:] for each in tried}) == 2, "another join"


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "8"])
@pytest.mark.parametrize("name", BOTH)
def test_a_wrong_cap(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{name}=.* is not a number of multiprocessors"):
        Options.of(schedule="streams", **{name: value})
    with pytest.raises(OptionError, match="a cap of schedule='streams'"):
        Options.of(**{name: 8})


def test_the_command_line() -> None:
    assert settings_of("streams", None, ["vendor_multiprocessors=96"])["vendor_multiprocessors"] == 96
    done = CliRunner().invoke(app, ["plan", "x.py:f", "--schedule=streams", "--set", "vendor_multiprocessors=half"])
    assert done.exit_code == 2 and "vendor_multiprocessors='half' is not a number" in done.output
