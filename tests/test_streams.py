"""``schedule="streams"`` through the front doors: as a call, and as one opaque op that Inductor runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

import fusioncc
from fusioncc.config import Options
from fusioncc.fusion_pass import FusionPass
from fusioncc.pipeline import rewrite
from fusioncc.runtime.opaque import OPAQUE
from tests.lora_models import WIDTH, Lora, close, compiled, kinds, rows
from tests.passes.test_insertion import graph as graph
from tests.passes.test_insertion import setting
from tests.shown import shown

ROOT = Path(__file__).parents[1]


class Projections(nn.Module):
    """Two adapted products and a plain one of one input; nothing else, so that Inductor has no C++ to build."""

    def __init__(self, rank: int = 8, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.v = Lora(1, rank, dtype=dtype), Lora(2, rank, dtype=dtype)
        self.k = nn.Linear(WIDTH, 32, dtype=dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", shown([torch.bfloat16, torch.float32, torch.float16], 1))
def test_results_and_the_plan(dtype: torch.dtype) -> None:
    model, x = Projections(dtype=dtype), rows(dtype=dtype)
    run = fusioncc.optimize(model, schedule="streams", on_error="raise", rest="eager")
    with torch.no_grad():
        exact = Projections().to(dtype).double()(x.double())
        for got, eager, truth in zip(run(x), model(x), exact, strict=True):
            error = float((got - truth).square().mean().sqrt())
            assert got.dtype == dtype
            assert error <= 1.1 * float((eager - truth).square().mean().sqrt()) + 1e-7
    (plan,) = fusioncc.plan_of(run)
    (group,) = plan.groups
    assert (group.schedule.kind, group.tier, group.insertion, len(group.mains)) == ("streams", "fp32", "call", 3)
    assert (
        fusioncc.plan_of(fusioncc.optimize(model, (x,), plan=plan, on_error="raise"))[0].groups[0].why == "as planned"
    )


def test_plain_members_alone() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.v = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 48, bias=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.k(x), self.v(x)

    model = Plain()
    run = compiled(model, schedule="streams")
    with torch.no_grad():
        for got, wanted in zip(run(rows()), model(rows()), strict=True):
            close(got, wanted)
    assert kinds(run) == [["streams"]]
    assert fusioncc.plan_of(run)[0].groups[0].schedule.pools == ()


def test_gradients_are_those_of_eager() -> None:
    fused, plain, x = Projections(), Projections(), rows().requires_grad_()
    y = x.detach().clone().requires_grad_()
    run = compiled(fused, schedule="streams")
    sum(out.square().sum() for out in run(x)).backward()
    sum(out.square().sum() for out in plain(y)).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    for (name, got), (_, wanted) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-4, msg=name)
    forward = fusioncc.plan_of(run)[0].groups[0]
    assert forward.schedule.kind == "streams" and all(branch.saved for branch in forward.branches)


def test_it_is_never_chosen_but_said_to_be_there() -> None:
    plan = fusioncc.plan(Projections(dtype=torch.bfloat16), (rows(dtype=torch.bfloat16),))
    assert plan.groups[0].schedule.kind != "streams"
    assert any(each.kind == "streams" and each.legal for each in plan.groups[0].candidates)


def test_one_opaque_op_for_inductor() -> None:
    """Rows may change: the op's shapes follow, and Inductor compiles once."""
    fusion = FusionPass(Options.of(schedule="streams", on_error="raise"), form="visible")
    model = Projections()
    with config.patch(post_grad_custom_pre_pass=fusion, force_disable_caches=True), torch.no_grad():
        run, x = torch.compile(model, fullgraph=True), rows(4)
        torch._dynamo.mark_dynamic(x, 0)
        results, (code,) = run_and_get_code(run, x)
        for count, found in ((4, results), (7, run(rows(7)))):
            for got, wanted in zip(found, model(rows(count)), strict=True):
                close(got, wanted)
    assert code.count("= torch.ops.fusioncc.launch.default(") == 1
    assert "empty_strided" not in code.split("def call(")[1], "an operand or a result is copied"
    (plan,) = fusion.plans
    (group,) = plan.groups
    assert (group.schedule.kind, group.insertion) == ("streams", "opaque") and group.m_symbol


@pytest.mark.exhaustive
@pytest.mark.parametrize(("form", "insertion"), [("call", "call"), ("visible", "opaque")])
def test_the_form_of_insertion(graph: torch.fx.GraphModule, form: str, insertion: str) -> None:
    from tests.passes.doors import inputs_of

    inputs = inputs_of(graph.graph)
    wanted = graph(*inputs)
    plan = rewrite(graph.graph, setting("streams"), form)
    graph.graph.lint()
    graph.recompile()
    for got, each in zip(graph(*inputs), wanted, strict=True):
        torch.testing.assert_close(got, each, rtol=1e-4, atol=1e-4)
    assert [group.insertion for group in plan.groups] == [insertion, insertion]
    ops = [node for node in graph.graph.nodes if node.target is OPAQUE]
    assert len(ops) == (2 if insertion == "opaque" else 0)
    for node in ops:
        torch.library.opcheck(OPAQUE, tuple(_numbers(arg) for arg in node.args))


def _numbers(arg: Any) -> Any:
    """Real tensors for the nodes of an argument."""
    if isinstance(arg, torch.fx.Node):
        value = arg.meta["val"]
        return torch.randn(*value.shape).to(value.dtype).as_strided(value.shape, value.stride())
    return [_numbers(each) for each in arg] if isinstance(arg, list | tuple) else arg


@pytest.mark.exhaustive
def test_a_process_without_the_pass_runs_the_op(graph: torch.fx.GraphModule, tmp_path: Path) -> None:
    """A compiled graph from Inductor's cache calls the op with nothing but its arguments."""
    rewrite(graph.graph, setting("streams"), "visible")
    operands, columns, dtypes, name, source = next(node for node in graph.graph.nodes if node.target is OPAQUE).args
    shapes = [list(node.meta["val"].shape) for node in operands]
    script = (
        "import json, sys, torch, fusioncc.backend\n"
        "shapes, *rest = json.load(sys.stdin)\n"
        "made = torch.ops.fusioncc.launch([torch.ones(*shape) for shape in shapes], *rest)\n"
        "print([list(each.shape) for each in made])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([shapes, columns, dtypes, name, source]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert json.loads(done.stdout) == [[6, n] for n in columns]
