"""Random functions around one X give the same results with kernels as without, and their plans say what was done."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import fx, nn

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.errors import IllegalScheduleError
from fusioncc.packing import PACKED
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import rewrite
from fusioncc.plan import Plan
from fusioncc.runtime.merged import MergedWeights
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice
from fusioncc.runtime.packed import PackedWeights
from fusioncc.schedule import SCHEDULES
from tests.passes.doors import DOORS, aot, inputs_of
from tests.passes.random_graphs import Program, programs

KINDS = ("auto", *(kind for kind in SCHEDULES if kind != "library"))


def copied(inputs: list[Any]) -> list[Any]:
    """Inputs with memory of their own, which a graph may change."""
    return [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if 0 not in t.stride() else t for t in inputs
    ]


def results(module: fx.GraphModule, inputs: list[Any]) -> list[torch.Tensor]:
    """What a graph gives and what it leaves in its inputs."""
    own = copied(inputs)
    return [*module(*own), *own]


def strides(value: torch.Tensor) -> list[int]:
    """Those that say where an element lies: not of dimensions of one."""
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size != 1]


def check_plan(plan: Plan, graph: fx.Graph) -> None:
    """The plan is read back as it was written, and no product is left of those that it says are replaced."""
    assert Plan.from_json(plan.to_json()) == plan
    assert not plan.fallback
    assert not {"emission", "build"} & {each.rule for each in plan.rejections}
    names = {node.name for node in graph.nodes}
    for group in plan.groups:
        assert bool(group.insertion) == (group.schedule.kind != "library")
        if not group.insertion:
            continue
        run = {main for pool in group.schedule.pools if pool.role == "main" for main in pool.members}
        run = run or {*(group.joined if group.schedule.kind == "merged" else group.mains)}
        for main in run:
            gone = [group.output_of(main).node]
            gone += [group.members[at].node for branch in group.branches_of(main) for at in (branch.down, branch.up)]
            assert not names.intersection([group.members[main].node, *gone])
        assert not names.intersection(result.node for each in group.epilogues for result in each.chain.results)


def check_graph(
    module: fx.GraphModule, inputs: list[Any], tolerance: float, kind: str, form: str, on_error: str, epilogues: str
) -> Plan | None:
    """Results before and after, and the plan; None where the kind is illegal for a group and was to raise."""
    wanted = results(module, inputs)
    before = str(module.graph)
    options = Options.of(
        schedule=kind,
        on_error=on_error,
        epilogues=epilogues,
        numerics="relaxed" if kind == "merged" else "fp32",
        pack_weights=kind in PACKED,
        rest="eager" if form == "call" else "inductor",
    )
    setting = Setting(options, get_device("h200"), Accepted("runnable", ("interpreter",)))
    merged, packed = MergedWeights(), PackedWeights()
    try:
        plan = rewrite(module.graph, setting, form, {"merged": merged.key, **dict.fromkeys(PACKED, packed.key)})
    except IllegalScheduleError:
        assert on_error == "raise"
        assert str(module.graph) == before
        return None
    module.graph.lint()
    module.recompile()
    check_plan(plan, module.graph)
    with interpreted_libdevice():
        got = results(module, inputs)
    for one, other in zip(got, wanted, strict=True):
        assert (one.shape, one.dtype, strides(one)) == (other.shape, other.dtype, strides(other))
        size = 1.0 if other.dtype not in (torch.float16, torch.bfloat16) else max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * size)
    return plan


def train(model: nn.Module, args: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """The forward graph that keeps values for a backward of the first result."""
    return aot(model.requires_grad_(), args, train=True)[0]


def dynamic(model: nn.Module, args: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """An exported graph with a symbolic number of rows, where the model allows it."""
    return capture(torch.export.export(model, args, dynamic_shapes=(({0: torch.export.Dim.AUTO},),), strict=False))


EVERY_DOOR = {**DOORS, "train": train, "dynamic": dynamic}
ASKED = st.tuples(
    st.sampled_from(sorted(EVERY_DOOR)),
    st.sampled_from(KINDS),
    st.sampled_from(("call", "visible")),
    st.sampled_from(("raise", "fallback")),
    st.sampled_from(("never", "always")),
)


def check(program: Program, asked: tuple[str, str, str, str, str]) -> None:
    door, kind, form, on_error, epilogues = asked
    form = "call" if "bfloat16" in repr(program) else form  # a launch alone runs in the unmended interpreter
    try:
        module = EVERY_DOOR[door](program.model(), (program.example(),))
    except RuntimeError as error:  # of autograd, about what is changed in place
        assume(door != "train")
        raise error
    check_graph(module, inputs_of(module.graph), program.tolerance, kind, form, on_error, epilogues)


def drawn(examples: int) -> settings:
    """The same programs every time, as many as asked for; a failure is made smaller."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
@drawn(16)
@given(programs(), ASKED)
def test_results_are_equal_and_plans_are_true(program: Program, asked: tuple[str, str, str, str, str]) -> None:
    check(program, asked)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
@drawn(80)
@given(programs(), ASKED)
def test_many_programs(program: Program, asked: tuple[str, str, str, str, str]) -> None:
    check(program, asked)
