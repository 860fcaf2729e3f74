"""The pass by itself, over an FX graph."""

from pathlib import Path

import pytest
import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

import fusioncc
from fusioncc import FusionPass, Options, fusion_pass
from fusioncc.capture import capture
from fusioncc.errors import PlanError
from fusioncc.passes.tune_groups import Tuning
from fusioncc.seam import FusionWarning
from tests.lora_models import Lora, close, rows
from tests.tuning.fake_meter import Clock, FakeMeter

INLINE = Options(schedule="inline", on_error="raise")


def captured() -> fx.GraphModule:
    return capture(Lora(), (rows(),))


def arguments(module: fx.GraphModule) -> list[torch.Tensor]:
    """Parameters of :class:`Lora` in the order of the graph's placeholders, then X."""
    model = Lora()
    return [model.w.weight, model.w.bias, model.a.weight, model.b.weight, rows()]


def test_a_graph_is_rewritten_in_place_and_gives_the_same_result() -> None:
    module = captured()
    fusion = FusionPass(INLINE, form="call")
    fusion(module.graph)
    module.recompile()
    module.graph.lint()
    assert isinstance(fusion, CustomGraphPass)
    assert [group.insertion for group in fusion.plans[0].groups] == ["call"]
    assert not [node for node in module.graph.nodes if node.target is torch.ops.aten.mm.default]
    with torch.no_grad():
        close(module(*arguments(module))[0], Lora()(rows()))


def test_the_visible_form_leaves_triton_kernels_that_inductor_sees() -> None:
    module = captured()
    FusionPass(INLINE, form="visible")(module.graph)
    module.graph.lint()
    targets = [node.target for node in module.graph.nodes]
    assert torch.ops.higher_order.triton_kernel_wrapper_functional in targets


def test_a_failure_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("injected")

    monkeypatch.setattr("fusioncc.passes.insert_kernels._called", fail)
    module = captured()
    before = str(module.graph)
    with pytest.warns(FusionWarning, match="injected"):
        FusionPass(Options(schedule="inline"), form="call")(module.graph)
    assert str(module.graph) == before


def test_a_pass_behind_it_sees_the_rewritten_graph() -> None:
    seen: list[int] = []
    module = captured()
    FusionPass(INLINE, form="call", then=lambda graph: seen.append(len(graph.nodes)))(module.graph)
    assert seen == [len(module.graph.nodes)]


def test_a_measured_schedule_runs_and_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by a meter without a card, and found by the next pass, which has none."""
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path))
    tuning = Tuning(lambda device: FakeMeter(Clock(), library=10.0))
    chosen = []
    measuring = FusionPass(Options(autotune="quick", on_error="raise"), form="call", tuning=tuning)
    for each in (measuring, FusionPass(form="call")):
        module = captured()
        each(module.graph)
        module.recompile()
        (group,) = each.plans[0].groups
        assert group.why.startswith("measured") and group.insertion == "call"
        with torch.no_grad():
            close(module(*arguments(module))[0], Lora()(rows()))
        chosen.append(group.schedule)
    assert chosen[0] == chosen[1]


def test_uuid_is_stable_and_changes_with_whatever_changes_the_graph() -> None:
    class Then(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: fx.Graph) -> None: ...

        def uuid(self) -> str:
            return "then"

    plan = fusioncc.plan(Lora(), (rows(),))
    passes = [
        FusionPass(),
        FusionPass(Options(schedule="inline")),
        FusionPass(Options(numerics="eager")),
        FusionPass(Options(device="a100-80")),
        FusionPass(form="call"),
        FusionPass(plan=plan),
        FusionPass(then=Then()),
    ]
    digests = [each.uuid() for each in passes]
    assert None not in digests
    assert len(set(digests)) == len(passes)
    assert FusionPass().uuid() == FusionPass(Options()).uuid()
    assert FusionPass(plan=plan).uuid() == digests[5]


def test_a_pass_behind_it_that_cannot_be_cached_forbids_caching() -> None:
    assert FusionPass(then=lambda graph: None).uuid() is None


def test_ranks_that_tune_together_come_to_the_pass_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph from the cache of one rank would leave the others waiting."""
    monkeypatch.setattr(fusion_pass, "has_ranks", lambda: True)
    assert FusionPass(Options(autotune="quick")).uuid() is None
    assert FusionPass().uuid() is not None
    assert FusionPass(Options(autotune="quick", deterministic=True)).uuid() is not None


@pytest.mark.exhaustive
def test_a_plan_of_another_graph_is_refused() -> None:
    plan = fusioncc.plan(Lora(rank=4), (rows(),))
    module = captured()
    with pytest.raises(PlanError, match="made for another graph"):
        FusionPass(INLINE, plan, "call")(module.graph)


def test_a_backward_graph_passes_through() -> None:
    graph = fx.Graph()
    x, w = graph.placeholder("tangents_1"), graph.placeholder("w")
    x.meta["val"], w.meta["val"] = torch.empty(4, 8), torch.empty(8, 8)
    product = graph.call_function(torch.ops.aten.mm.default, (x, w))
    product.meta["val"] = torch.empty(4, 8)
    graph.output(product)
    fusion = FusionPass(INLINE)
    before = str(graph)
    fusion(graph)
    assert str(graph) == before
    assert fusion.plans[0].rejections[0].rule == "forward_only"
