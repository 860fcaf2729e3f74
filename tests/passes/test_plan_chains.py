"""Which chains become kernels, what a plan from elsewhere may say of them, and what their kernels may approximate."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import fusioncc
from fusioncc.chain import Chain, ChainTile
from fusioncc.codegen.chain import emit_chain
from fusioncc.codegen.chain_space import space_of
from fusioncc.errors import PlanError
from fusioncc.operand import Operand
from fusioncc.plan import ChainPlan, Plan
from tests.passes.chain_graphs import Function, bf16, chains_of, graph_of, planned


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(gate) * up + 1


def only(plan: Plan) -> ChainPlan:
    (chain,) = plan.chains
    return chain


@pytest.mark.exhaustive
def test_claims_by_option_and_by_what_runs_the_rest() -> None:
    given = (bf16(64, 512), bf16(64, 512))
    beside = only(planned(gated, *given))
    assert not beside.claimed
    assert beside.why.startswith("Inductor fuses it too")
    assert only(planned(gated, *given, rest="eager")).claimed
    assert only(planned(gated, *given, chains="always")).claimed
    assert planned(gated, *given, chains="never", rest="eager").chains == ()


@pytest.mark.exhaustive
def test_a_dump_has_the_kernel_of_every_chain_and_a_plan_only_needs_those_claimed(monkeypatch: Any) -> None:
    given = (bf16(64, 512), bf16(64, 512))

    def failing(*args: Any, **options: Any) -> Any:
        raise RuntimeError("emitted all the same")

    assert len(fusioncc.api.dump_data(Function(gated), given).modules) == 1
    monkeypatch.setattr("fusioncc.passes.plan_chains.emit_chain", failing)
    assert not only(planned(gated, *given, on_error="raise")).claimed
    with pytest.raises(fusioncc.FusionError, match="emitted all the same"):
        planned(gated, *given, chains="always", on_error="raise")


class Given:
    """A function through a plan that was made for it, changed by hand."""

    def __init__(self) -> None:
        self.arguments = (torch.randn(8, 32), torch.randn(8, 32))
        compiled = fusioncc.optimize(gated, chains="always", on_error="raise")
        compiled(*self.arguments)
        (self.plan,) = fusioncc.plan_of(compiled)

    def run(self, **changes: Any) -> ChainPlan:
        torch._dynamo.reset()
        plan = Plan.from_json(replace(self.plan, chains=(replace(only(self.plan), **changes),)).to_json())
        compiled = fusioncc.optimize(gated, plan=plan, on_error="raise")
        torch.testing.assert_close(compiled(*self.arguments), gated(*self.arguments))
        (made,) = fusioncc.plan_of(compiled)
        return only(made)


given_once = cache(Given)


def test_a_plan_says_what_becomes_of_a_chain() -> None:
    given = given_once()
    again = given.run()
    assert (again.claimed, again.why, again.insertion) == (True, "as planned", "call")
    assert not given.run(claimed=False).claimed
    assert given.run(tile=ChainTile(0, 64, 2)).tile == ChainTile(0, 64, 2)
    other = given.run(results=(replace(only(given.plan).results[0], strides=(1, 8)),))
    assert (other.claimed, other.why) == (False, "the plan has no such chain")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tile": ChainTile(0, 100, 4)}, "powers of two"),
        pytest.param({"tile": ChainTile(4, 64, 4)}, "block_m is 0", marks=pytest.mark.exhaustive),
        pytest.param({"tile": ChainTile(0, 64, 3)}, "num_warps is a power of two", marks=pytest.mark.exhaustive),
        ({"tile": ChainTile(0, 2**17, 4)}, "at most 65536 elements"),
        pytest.param({"tier": "relaxed"}, "tier 'relaxed' is not allowed", marks=pytest.mark.exhaustive),
        ({"tier": "foo"}, "tier 'foo' is not allowed"),
    ],
)
def test_a_plan_with_wrong_numbers_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason) as raised:
        given_once().run(**changes)
    assert PlanError.__name__ in str(raised.value) or isinstance(raised.value, PlanError)


def test_what_has_no_tensor_of_its_own_is_no_op() -> None:
    """A value that autograd keeps is written once, and detached there."""
    graph = graph_of(lambda x: (torch.sigmoid(x).detach() * 2 + 1, x.tanh()), (8, 8))
    assert all("detach" not in name for chain in chains_of(graph) for name in chain)


@cache
def small() -> Chain:
    return only(planned(gated, bf16(8), bf16(8))).chain


@pytest.mark.exhaustive
@pytest.mark.parametrize(("elements", "wide"), [(2**31 - 2**21, False), (2**31 - 8, True), (2**31, True)])
def test_the_last_tile_counts_where_offsets_need_64_bits(elements: int, wide: bool) -> None:
    chain = small()
    grown = replace(
        chain,
        shape=(elements,),
        inputs=tuple(replace(each, shape=(elements,)) for each in chain.inputs),
        ops=tuple(replace(op, shape=(elements,)) for op in chain.ops),
    )
    assert space_of(grown).wide == wide


@pytest.mark.parametrize(
    ("function", "fast"),
    [
        (lambda a, b: torch.sigmoid(a) * b, True),
        pytest.param(lambda a, b: a / b + 1, True, marks=pytest.mark.exhaustive),
        (lambda a, b: (torch.sigmoid(a) * b).round().to(torch.int8), True),
        (lambda a, b: (torch.nn.functional.silu(a) * b).round().to(torch.int8), True),
        (lambda a, b: ((a / b) * a.exp()).round(), False),
        (lambda a, b: (a / b).floor() + 1, False),
        pytest.param(lambda a, b: a / b >= 2.0, False, marks=pytest.mark.exhaustive),
        (lambda a, b: (a / b + 1).to(torch.int8), False),
        pytest.param(lambda a, b: a.float() / b + 1, False, marks=pytest.mark.exhaustive),
    ],
)
def test_approximations_are_for_results_that_do_not_jump(function: Any, fast: bool) -> None:
    chain = only(planned(function, bf16(64, 512), bf16(64, 512), chains="always"))
    source = emit_chain(chain.chain, chain.tile, name="c", tier="fp32", why="a test").source
    exact = "tl.div_rn(" in source or "libdevice.exp(" in source
    assert exact != fast
    assert emit_chain(chain.chain, chain.tile, name="c", tier="eager", why="a test").source != source


def test_equal_chains_share_a_kernel() -> None:
    plan = planned(lambda a, b: (gated(a, b), gated(b.t(), a.t())), bf16(64, 512), bf16(64, 512), chains="always")
    assert [chain.kernel for chain in plan.chains] == [plan.chains[0].kernel, plan.chains[1].kernel]
    assert isinstance(plan.chains[0], Chain)
    assert isinstance(plan.chains[0].inputs[0], Operand)


def test_results_of_what_adds_up_rows_are_apart_in_the_eager_tier() -> None:
    """A layer norm is taken apart into a node of several results, of which no chain has one without the node."""

    def normed(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (512,)))

    plan = planned(normed, bf16(64, 512), chains="always", numerics="eager", on_error="raise")
    assert all(op.stem not in ("mean", "sum") for chain in plan.chains for op in chain.ops)
    assert ["no sum along rows" in each.reason for each in plan.rejections] == [True]
