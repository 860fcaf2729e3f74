"""What the search joins to chains, where it stops, and what it says about it."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusioncc.passes.find_chains import MAX_OPS, MAX_ROW, MAX_TENSORS
from tests.passes.chain_graphs import Function, bf16, chains_of, graph_of, planned
from tests.passes.doors import DOORS
from tests.shown import one_of_each, shown

aten = torch.ops.aten


# What is joined.


def test_ops_that_feed_each_other_are_one_chain() -> None:
    graph = graph_of(lambda x, y: torch.tanh(F.silu(x) * y) + x, (4, 8), (4, 8))
    assert chains_of(graph) == [["silu", "mul", "tanh", "add"]]


def test_broadcasts_and_casts_join() -> None:
    graph = graph_of(lambda x, y, z: ((x + y).half() * 2).float() * z, (2, 4, 8), (8,), (4, 1))
    assert chains_of(graph) == [["add", "_to_copy", "mul", "_to_copy_1", "mul_1"]]


def test_a_single_op_is_no_chain_nor_are_two_that_share_an_input() -> None:
    assert not chains_of(graph_of(F.silu, (4, 8)))
    assert not chains_of(graph_of(lambda x: (x.exp(), x.tanh()), (4, 8)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (8,)),
        lambda x: torch.var_mean(x, -1, keepdim=True),
        lambda x: x.softmax(-1),
    ],
)
def test_a_normalisation_alone_is_no_chain(function: Callable[..., Any]) -> None:
    assert not chains_of(graph_of(function, (4, 8)))


def test_a_decomposed_op_counts_as_the_one_kernel_of_eager() -> None:
    (chain,) = planned(lambda g, u: F.silu(g) * u, bf16(64, 128), bf16(64, 128)).chains
    assert chain.before.kernels == 2
    module = DOORS["export"](Function(F.silu), (torch.ones(4, 8),))
    assert [node.name for node in module.graph.nodes if node.op == "call_function"] == ["neg", "exp", "add", "div"]
    assert not chains_of(module.graph)


def test_reductions_join_with_what_makes_and_reads_their_rows() -> None:
    graph = graph_of(lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6), (4, 8))
    assert chains_of(graph) == [["mul", "mean", "add", "rsqrt", "mul_1"]]


def test_the_lists_of_a_normalisation_stay_with_it() -> None:
    """Also where something is written in place between them, or the limits would part them."""

    def between(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x * 2, -1, keepdim=True)
        y.add_(variance)
        return (mean * 3).relu(), y

    chains = chains_of(graph_of(between, (4, 8), (4, 8)))
    assert {"mul", "var_mean", "getitem", "getitem_1"} <= set(chains[0])

    def crowded(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = sum(tensors[1:], start=tensors[0])
        variance, mean = torch.var_mean(total, -1, keepdim=True)
        return variance + 1, mean.relu(), total, total * 2 + mean

    for found in chains_of(graph_of(crowded, *[(4, 8)] * 14)):
        assert ("var_mean" in found) == ("getitem" in found) == ("getitem_1" in found)


# What is written out, and constants.


def test_an_intermediate_that_others_read_is_written_out() -> None:
    (chain,) = planned(
        lambda x, y, w: ((t := F.silu(x)) * y, t @ w), bf16(64, 128), bf16(64, 128), bf16(128, 32)
    ).chains
    assert len(chain.results) == 2
    assert chain.after.bytes == 4 * 64 * 128 * 2


def test_constants_are_made_where_they_are_read() -> None:
    (chain,) = planned(lambda x: torch.where(x > 0, x, torch.full((64, 128), 0.5)) * x, torch.empty(64, 128)).chains
    assert [operand.node for operand in chain.inputs] == ["tensors_0"]
    assert chain.after.bytes == 2 * 64 * 128 * 4
    assert not planned(lambda x: (torch.full((4, 4), 2.0).exp() + 1, x), torch.empty(4, 4)).chains


def test_a_constant_shaped_like_a_member_neither_parts_the_chain_nor_is_the_member_written() -> None:
    def masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = x * y
        return torch.where(x > 0, value, torch.zeros_like(value))

    graph = graph_of(masked, (4, 8), (4, 8))
    assert chains_of(graph) == [["mul", "gt", "where"]]
    (chain,) = planned(masked, torch.empty(4, 8), torch.empty(4, 8)).chains
    assert [result.node for result in chain.results] == ["where"]


def test_a_constant_shaped_like_a_member_that_others_read_keeps_the_member() -> None:
    def kept(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = x * y
        zeros = torch.zeros_like(value)
        return torch.where(x > 0, value, zeros), zeros @ x.t()

    assert all("mul" not in found or "where" not in found for found in chains_of(graph_of(kept, (4, 8), (4, 8))))


# Where it stops.


def test_a_path_through_a_product_parts_what_it_leads_between() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        value = x.relu() + 1
        return (value @ w).tanh() * value

    assert chains_of(graph_of(function, (8, 8), (8, 8))) == [["relu", "add"], ["tanh", "mul"]]


def test_a_fused_group_is_one_node() -> None:
    """One product of it reads the chain, another is read by what follows: no kernel can stand on both sides."""

    def two(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = y.relu() + 1
        q, k = a @ v, x @ w
        b = k.tanh() * 2
        return q, b, b + a

    graph = graph_of(two, (8, 8), (8, 8), (8, 8), (8, 8))
    products = [node for node in graph.nodes if node.target is aten.mm.default]
    assert len(chains_of(graph)) == 1
    assert [sorted(each) for each in chains_of(graph, [products])] == [["add", "relu"], ["add_1", "mul", "tanh"]]


def test_no_two_chains_read_each_other() -> None:
    """Two products, each fed by one chain and read by the other: no cycle arises."""

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.relu() + 1, y.tanh() * 2
        p, q = a @ w, b @ w
        return p.exp() * b, q.exp() * a

    graph = graph_of(function, (8, 8), (8, 8), (8, 8))
    of = {name: at for at, found in enumerate(chains_of(graph)) for name in found}
    edges = {
        (of.get(each.name, each.name), of.get(node.name, node.name))
        for node in graph.nodes
        for each in node.all_input_nodes
    }
    edges = {edge for edge in edges if edge[0] != edge[1]}
    while edges:  # sources are taken away until nothing is left
        targets = {target for _, target in edges}
        left = {edge for edge in edges if edge[0] in targets}
        assert len(left) < len(edges)
        edges = left


def test_what_is_written_in_place_between_parts() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    graph = graph_of(function, (4, 8), (4, 8))
    (mul,) = (node for node in graph.nodes if node.target is aten.mul.Tensor)
    x, y = mul.args
    with graph.inserting_before(mul.next):
        written = graph.call_function(aten.copy_.default, (x, y))
        written.meta["val"] = x.meta["val"]
        first = graph.call_function(aten.relu.default, (mul,))
        second = graph.call_function(aten.exp.default, (first,))
        first.meta["val"] = second.meta["val"] = mul.meta["val"]
    mul.replace_all_uses_with(second, delete_user_cb=lambda user: user.op == "output")
    assert chains_of(graph) == [[first.name, second.name]]


def test_an_op_without_an_expression_ends_the_chain_visibly() -> None:
    plan = planned(lambda x: torch.special.i0(x * 2).relu() + 1, torch.empty(64, 128))
    (rejected,) = (each for each in plan.rejections if each.rule == "chain_op")
    assert "i0" in rejected.node or "i0" in rejected.reason
    assert "ends the chain" in rejected.reason


@pytest.mark.parametrize("count", [MAX_TENSORS - 1, MAX_TENSORS])
def test_tensors_are_limited(count: int) -> None:
    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return sum(tensors[1:], start=tensors[0])

    plan = planned(function, *(torch.empty(8, 8) for _ in range(count)))
    reasons = [each.reason for each in plan.rejections if each.rule == "chain_limits"]
    assert bool(reasons) == (count == MAX_TENSORS)
    assert all(f"at most {MAX_TENSORS} tensors" in each for each in reasons)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [MAX_OPS, MAX_OPS + 1])
def test_ops_are_limited(count: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x.relu()
        return x

    plan = planned(function, torch.empty(8, 8))
    reasons = [each.reason for each in plan.rejections if each.rule == "chain_limits"]
    assert bool(reasons) == (count > MAX_OPS)
    assert len(plan.chains[0].ops) == MAX_OPS


def test_a_smaller_value_that_others_read_stays_outside() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = y.exp() + 1
        return x * small, small

    assert chains_of(graph_of(function, (4, 8), (8,))) == [["exp", "add"]]
    assert chains_of(graph_of(lambda x, y: x * (y.exp() + 1), (4, 8), (8,))) == [["exp", "add", "mul"]]


def test_rows_of_two_lengths_are_two_chains() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = (x * 2).sum(-1, keepdim=True), (y * 2).sum(-1, keepdim=True)
        return first + second

    chains = chains_of(graph_of(function, (4, 8), (4, 16)))
    assert not any({"sum_1", "sum_2"} <= set(found) for found in chains)


@pytest.mark.parametrize("width", shown([MAX_ROW + 1, MAX_ROW], 1))
def test_a_program_holds_rows_up_to_a_length(width: int) -> None:
    plan = planned(lambda x: (x * 2 + 1).sum(-1, keepdim=True), torch.empty(4, width))
    (chain,) = plan.chains
    assert chain.by_rows == (width == MAX_ROW)
    reasons = [each.reason for each in plan.rejections if each.rule == "chain_op"]
    assert bool(reasons) == (width > MAX_ROW)
    assert all(f"its rows have {width} elements" in each for each in reasons)


REDUCTIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (lambda x: (x * 2 + 1).sum(0, keepdim=True), "another dimension than the last"),
    (lambda x: (x * 2 + 1).sum((0, 1), keepdim=True), "another dimension than the last"),
    (lambda x: (x * 2 + 1).sum(-1), "drops the dimension"),
    (lambda x: (x * 2 + 1).amax(0, keepdim=True), "another dimension than the last"),
    (lambda x: (x * 2 + 1).sum(-1, keepdim=True, dtype=torch.float64), "other numbers than fp32 holds"),
    (lambda x: (x * 2 + 1).int().amax(-1, keepdim=True), "other numbers than fp32 holds"),
)


@pytest.mark.parametrize("case", one_of_each(REDUCTIONS, itemgetter(1), itemgetter(1)))
def test_reductions_that_are_none_along_the_last_dimension(case: tuple[Callable[..., Any], str]) -> None:
    function, reason = case
    plan = planned(function, torch.empty(4, 8))
    assert not any(chain.by_rows for chain in plan.chains)
    assert any(reason in each.reason for each in plan.rejections if each.rule == "chain_op")
