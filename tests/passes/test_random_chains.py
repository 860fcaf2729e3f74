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
from tests.passes.random_chains import Program, programs
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


def check(program: Program, door: str, numerics: str) -> Plan:
    """Run a program with kernels and without; the plan."""
    arguments = program.arguments()
    module = DOORS[door](program.model(), tuple(arguments))
    exact = exact_results(module, arguments)
    plain = module(*arguments)
    before = [each.clone() for each in arguments]
    chance = luck(module)
    plan = rewritten(module, numerics)
    check_plan(plan, module.graph, numerics)
    fused = module(*arguments)
    for one, other in zip(arguments, before, strict=True):
        assert same_bits(one, other)
    for name, one, other, truth in zip(program.returned, fused, plain, exact, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        assert strides(one) == strides(other), name
        if program.exact:
            assert same_bits(one, other), name
        else:
            check_accuracy(name, one, other, truth, chance)
    return plan


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


def test_programs_are_as_accurate_as_eager() -> None:
    check_many(12, False, "fp32")


def test_programs_have_the_bits_of_eager() -> None:
    check_many(10, True, "eager")


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("exact", "numerics"), [(False, "fp32"), (True, "eager"), (False, "eager")])
def test_many_programs(exact: bool, numerics: str) -> None:
    check_many(60, exact, numerics)
