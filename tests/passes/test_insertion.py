"""Kernels inserted as calls and run under Triton's interpreter: same results, or the graph as it was."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._inductor import inductor_prims

from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.errors import EmissionError, FusionError
from fusioncc.passes import emit_groups, insert_kernels
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import rewrite
from fusioncc.plan import Plan
from tests.passes.doors import DOORS, aot, inputs_of

K, N, R = 64, 96, 4


class Block(nn.Module):
    """Two equal LoRA layers on two inputs; the second adapter's B is made from a late input."""

    def __init__(self) -> None:
        super().__init__()
        for index in range(2):
            self.register_parameter(f"w{index}", nn.Parameter(torch.ones(K, N)))
            self.register_parameter(f"a{index}", nn.Parameter(torch.ones(K, R)))
            self.register_parameter(f"b{index}", nn.Parameter(torch.ones(R, N)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x @ self.w0 + 2 * ((x @ self.a0) @ self.b0)
        low, main = y @ self.a1, y @ self.w1
        late = self.b1 * first.mean()
        return first, main + 2 * (low @ late), low.relu()


def setting(kind: str = "inline", on_error: str = "raise") -> Setting:
    options = Options.of(schedule=kind, on_error=on_error)
    return Setting(options, get_device("h200"), Accepted("runnable", ("interpreter",)))


@cache
def captured() -> fx.GraphModule:
    return DOORS["export"](Block(), (torch.ones(6, K), torch.ones(2, 3, K)))


@pytest.fixture
def graph() -> fx.GraphModule:
    return deepcopy(captured())


def close(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["inline", "split"])
def test_results_are_equal_and_the_graph_is_sound(graph: fx.GraphModule, kind: str) -> None:
    inputs = inputs_of(graph.graph)
    wanted = graph(*inputs)
    plan = rewrite(graph.graph, setting(kind), "call")
    graph.graph.lint()
    graph.recompile()
    close(graph(*inputs), wanted)
    assert [group.schedule.kind for group in plan.groups] == [kind, kind]
    assert [group.insertion for group in plan.groups] == ["call", "call"]
    assert not any(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes)
    assert plan.groups[1].branches[0].saved
    assert Plan.from_json(plan.to_json()) == plan


def test_equal_groups_share_one_launch_function() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.a, self.b = (nn.Parameter(torch.ones(*s)) for s in ((K, N), (K, R), (R, N)))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(v @ self.w + (v @ self.a) @ self.b for v in (x, y))

    module = DOORS["export"](Twice(), (torch.ones(6, K), torch.ones(6, K)))
    plan = rewrite(module.graph, setting(), "call")
    assert len({group.kernel for group in plan.groups}) == 1
    launches = [node.target for node in module.graph.nodes if getattr(node.target, "__name__", "") == "launch"]
    assert len(launches) == 2
    assert len({getattr(launch, "__wrapped__", launch) for launch in launches}) == 1


def test_untouched_nodes_keep_names_and_meta(graph: fx.GraphModule) -> None:
    before = {node.name: node.meta.get("val") for node in graph.graph.nodes}
    rewrite(graph.graph, setting(), "call")
    kept = [node for node in graph.graph.nodes if node.name in before]
    assert {"relu", "mean"} <= {node.name for node in kept}
    assert all(node.meta.get("val") is before[node.name] for node in kept)
    assert all("val" in node.meta for node in graph.graph.nodes if node.op == "call_function")


def test_a_failed_emission_leaves_the_graph(graph: fx.GraphModule, monkeypatch: pytest.MonkeyPatch) -> None:
    before = str(graph.graph)
    real, seen = emit_groups.emit, []

    def emit(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        if len(seen) == 2:
            raise EmissionError("no such form")
        return real(*args, **kwargs)

    monkeypatch.setattr(emit_groups, "emit", emit)
    with pytest.raises(EmissionError, match="no such form"):
        rewrite(graph.graph, setting(), "call")
    assert str(graph.graph) == before


def test_a_failed_insertion_takes_out_what_it_put_in(graph: fx.GraphModule, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, seen = str(graph.graph), insert_kernels.shaped_like, []

    def shaped(*args: Any) -> fx.Node:
        seen.append(args)
        if len(seen) == 2:
            raise LookupError("no node holds the size")
        return real(*args)

    monkeypatch.setattr(insert_kernels, "shaped_like", shaped)
    with pytest.raises(FusionError, match="inserting the kernel of g1 failed: LookupError: no node holds the size"):
        rewrite(graph.graph, setting(), "call")
    assert str(graph.graph) == before
    graph.graph.lint()


def scrambling_sort(graph: fx.Graph) -> None:
    first, second, *_ = (node for node in graph.nodes if node.op == "call_function")
    second.append(first)
    raise AssertionError("the graph has a cycle")


def failing_lint(graph: fx.Graph) -> None:
    raise RuntimeError("Argument was used before it has been defined")


@pytest.mark.parametrize(
    ("stage", "failure"),
    [
        ("torch._inductor.pattern_matcher.stable_topological_sort", scrambling_sort),
        ("torch.fx.Graph.lint", failing_lint),
    ],
)
@pytest.mark.parametrize("form", ["call", "visible"])
def test_a_graph_that_torch_finds_unsound_is_put_back(
    graph: fx.GraphModule, stage: str, failure: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, nodes = str(graph.graph), list(graph.graph.nodes)
    users = {node: set(node.users) for node in nodes}
    inputs = inputs_of(graph.graph)
    wanted = graph(*inputs)
    with monkeypatch.context() as patch:
        patch.setattr(stage, failure)
        with pytest.raises(FusionError, match="the graph with the kernels of g0, g1 is not sound: "):
            rewrite(graph.graph, setting(), form)
    assert str(graph.graph) == before
    assert list(graph.graph.nodes) == nodes
    assert {node: set(node.users) for node in nodes} == users
    graph.graph.lint()
    graph.recompile()
    for one, other in zip(graph(*inputs), wanted, strict=True):
        assert torch.equal(one, other)


def test_products_saved_for_a_backward_come_from_the_kernel() -> None:
    forward, _ = aot(Block(), (torch.ones(6, K), torch.ones(2, 3, K)), train=True)
    inputs = inputs_of(forward.graph)
    wanted = forward(*inputs)
    plan = rewrite(forward.graph, setting(), "call")
    assert all(branch.saved for group in plan.groups for branch in group.branches)
    forward.graph.lint()
    forward.recompile()
    close(forward(*inputs), wanted)


@pytest.mark.parametrize(("kind", "shared"), [("split", 2), ("inline", 0)])
def test_launches_that_share_x_read_it_from_one_place(graph: fx.GraphModule, kind: str, shared: int) -> None:
    """Inductor would write an X that it has not computed when it comes to them once for each."""
    rewrite(graph.graph, setting(kind), "visible")
    forced = [node for node in graph.graph.nodes if node.target is inductor_prims.force_stride_order]
    assert len(forced) == shared
    assert all(len(node.users) == 2 for node in forced)
