"""Random chains give the results of eager, as exactly as their tier says, and their plans say what ran."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import rewrite
from fusioncc.plan import Plan
from tests.passes.doors import DOORS
from tests.passes.random_chains import Input, Program, programs
from tests.passes.reference import check_accuracy, exact_results, luck

EVERY_DOOR = st.sampled_from(sorted(DOORS))


def rewritten(module: fx.GraphModule, numerics: str) -> Plan:
    """The graph with a kernel for every chain, and the plan as carried out."""
    options = Options.of(numerics=numerics, chains="always", on_error="raise", rest="eager")
    plan = rewrite(module.graph, Setting(options, get_device("h200"), Accepted("runnable", ("interpreter",))), "call")
    module.graph.lint()
    module.recompile()
    return plan


def check_plan(plan: Plan, graph: fx.Graph, numerics: str) -> None:
    """It is read back as it was written, every chain ran, none of its results is computed by an old node."""
    assert Plan.from_json(plan.to_json()) == plan
    assert not plan.fallback
    assert not {"emission", "build"} & {each.rule for each in plan.rejections}
    names = {node.name for node in graph.nodes}
    calls = [node for node in graph.nodes if getattr(node.target, "__name__", "") == "launch"]
    assert len(calls) == len(plan.chains)
    for chain in plan.chains:
        assert chain.claimed
        assert (chain.insertion, chain.tier) == ("call", numerics)
        assert not names.intersection(result.node for result in chain.results)
        assert chain.after.bytes <= chain.before.bytes


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, with NaN equal to NaN, and zeros of the same sign."""
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    nan = one.isnan()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    equal = one.contiguous().view(bits) == other.contiguous().view(bits)
    return bool(torch.equal(nan, other.isnan()) and (equal | nan).all())


def strides(value: torch.Tensor) -> list[int]:
    """Those that say where an element lies: not of dimensions of one, of which torch's fake tensors have others."""
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size != 1 and value.numel()]


def outputs_of(graph: fx.Graph) -> list[torch.Tensor]:
    """The fake tensors that a graph returns; some have other strides than eager's (``2.0 ** x`` of channels last)."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return [node.meta["val"] for node in output.args[0]]


def check(program: Program, door: str, numerics: str) -> Plan:
    """Run a program with kernels and without; the plan."""
    arguments = program.arguments()
    module = DOORS[door](program.model(), tuple(arguments))
    exact = exact_results(module, arguments)
    plain = module(*arguments)
    before = [each.clone() for each in arguments]
    chance, fakes = luck(module), outputs_of(module.graph)
    plan = rewritten(module, numerics)
    check_plan(plan, module.graph, numerics)
    fused = module(*arguments)
    for one, other in zip(arguments, before, strict=True):
        assert same_bits(one, other)
    for at, (name, one, other, truth) in enumerate(zip(program.returned, fused, plain, exact, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        assert strides(one) in (strides(other), strides(fakes[at])), name
        if program.exact:
            assert same_bits(one, other), name
        else:
            check_accuracy(name, one, other, truth, chance)
    return plan


def test_an_operand_that_lies_otherwise_than_its_fake_tensor_said() -> None:
    """As ``2.0 ** x`` of channels last does in eager."""
    shape = (2, 3, 4, 5)
    inputs = (Input(shape, "torch.float32", "plain"), Input(shape, "torch.float32", "channels_last"))
    program = Program(inputs, ("v0 = (x0 + x1).relu()",), ("v0",), True)
    module = DOORS["aot"](program.model(), tuple(program.arguments()))
    rewritten(module, "fp32")
    plain, last = program.arguments()
    (fused,) = module(plain.contiguous(memory_format=torch.channels_last), last)
    assert torch.equal(fused, (plain + last).relu())


def drawn(examples: int) -> Callable[[Any], Any]:
    """The same programs every time, as many as asked for; a failure is made smaller."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def check_many(examples: int, exact: bool, numerics: str) -> None:
    """Check so many programs, of which most must have made a chain."""
    found: list[bool] = []

    @drawn(examples)
    @given(programs(exact), EVERY_DOOR)
    def each(program: Program, door: str) -> None:
        found.append(bool(check(program, door, numerics).chains))

    each()
    assert sum(found) > len(found) / 2


@pytest.mark.exhaustive
def test_programs_are_as_accurate_as_eager() -> None:
    check_many(12, False, "fp32")


@pytest.mark.exhaustive
def test_programs_have_the_bits_of_eager() -> None:
    check_many(10, True, "eager")


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("exact", "numerics"), [(False, "fp32"), (True, "eager"), (False, "eager")])
def test_many_programs(exact: bool, numerics: str) -> None:
    check_many(20, exact, numerics)
