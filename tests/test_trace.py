"""``trace=True`` through the front doors: opaque insertion, ``trace_of``, and what the plan says of untraced groups."""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fusioncc
from fusioncc.cli import app
from fusioncc.config import Options
from fusioncc.errors import OptionError, TraceError
from fusioncc.fusion_pass import FusionPass
from fusioncc.pipeline import rewrite
from fusioncc.runtime.opaque import OPAQUE
from tests.lora_models import Lora, close, compiled, rows
from tests.passes.test_insertion import graph as graph
from tests.passes.test_insertion import setting
from tests.shown import shown
from tests.test_streams import Projections


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("through", shown(["optimize", "backend"], 1))
def test_a_trace_of_the_last_call(through: str) -> None:
    model, x = Projections(), rows(40)
    options = {"schedule": "two_pool", "trace": True}
    run = compiled(model, **options) if through == "backend" else fusioncc.optimize(model, on_error="raise", **options)
    with torch.no_grad():
        for got, wanted in zip(run(x), model(x), strict=True):
            close(got, wanted)
    (group,) = fusioncc.plan_of(run)[0].groups
    trace = json.loads(json.dumps(fusioncc.trace_of(run)))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == [f"{group.name}: two_pool_0"]
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    tiles = Counter((event["cat"], event["args"]["member"]) for event in spans)
    (down, main) = group.schedule.pools
    blocks = -(-40 // main.tile.block_m)
    wanted = {("main", f"out_{at}"): blocks * -(-n // main.tile.block_n) for at, n in enumerate((64, 32, 64))}
    assert tiles == wanted | {("down", "y_0, y_2"): blocks * down.k_split}
    assert min(event["ts"] for event in spans) == 0 and all(event["dur"] > 0 for event in spans)


@pytest.mark.exhaustive
def test_equal_groups_share_a_lane_and_others_do_not() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.other = Lora(1), Lora(2), Lora(3, rank=16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.second(self.first(x).relu()).relu())

    run = compiled(Layers(), schedule="two_pool", trace=True)
    with torch.no_grad():
        run(rows(20))
    processes = [e["args"]["name"] for e in fusioncc.trace_of(run)["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["g0, g1: two_pool_0", "g2: two_pool_0"]


@pytest.mark.parametrize("options", [{"schedule": "inline", "trace": True}, {"schedule": "two_pool"}])
def test_nothing_was_recorded(options: dict[str, object]) -> None:
    """Another model's groups differ, so that no module of an earlier test answers."""
    run = compiled(Lora(rank=5), **options)
    with torch.no_grad():
        run(rows(3))
    with pytest.raises(TraceError, match="compile with trace=True"):
        fusioncc.trace_of(run)
    with pytest.raises(TraceError, match="nothing was recorded"):
        fusioncc.trace_of(Lora())


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", ["inline", "two_pool"])
@pytest.mark.parametrize("trace", [True, False])
def test_the_plan_says_what_cannot_be_traced(schedule: str, trace: bool) -> None:
    plan = fusioncc.plan(Lora(dtype=torch.bfloat16), (rows(dtype=torch.bfloat16),), schedule=schedule, trace=trace)
    refused = [(each.rule, each.node) for each in plan.rejections if each.rule == "trace"]
    assert refused == ([("trace", "g0")] if trace and schedule == "inline" else [])
    assert ("it has no workers to trace" in str(plan)) == bool(refused)
    assert plan.groups[0].schedule.kind == schedule


def test_the_form_of_insertion(graph) -> None:
    """A kernel that reads the clock is no pure kernel: Inductor gets an opaque op."""
    wanted = setting("two_pool")
    traced = type(wanted)(Options.of(wanted.options, trace=True), wanted.device, wanted.runnable)
    plan = rewrite(graph.graph, traced, "visible")
    assert {group.insertion for group in plan.groups} == {"opaque"}
    sources = [node.args[4] for node in graph.graph.nodes if node.target is OPAQUE]
    assert sources and all("def chrome_trace(" in source for source in sources)


def test_caches_tell_traced_graphs_apart() -> None:
    assert FusionPass(Options(trace=True)).uuid() != FusionPass(Options()).uuid()


@pytest.mark.exhaustive
def test_a_dump_for_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    root = Path(__file__).parents[1]
    out, trace = tmp_path / "dump", tmp_path / "trace.json"
    target = f"{root / 'examples' / 'llama_lora.py'}:factory"
    done = CliRunner().invoke(app, ["dump", target, "--out", str(out), "--schedule=two_pool", "--set", "trace=true"])
    assert done.exit_code == 0, done.output
    kernel = next((out / "kernels").glob("k1_*.py"))
    monkeypatch.setattr("sys.argv", [str(kernel), "--trace", str(trace)])
    runpy.run_path(str(kernel), run_name="__main__")
    assert f"tiles in {trace}" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_a_wrong_value(value: object) -> None:
    with pytest.raises(OptionError, match="valid values: True, False"):
        Options.of(trace=value)


def test_a_wrong_value_on_the_command_line() -> None:
    done = CliRunner().invoke(app, ["plan", "nowhere.py:factory", "--set", "trace=1"])
    assert done.exit_code == 2 and "trace='1' is not valid; valid values: true, false" in done.output
