"""Tensors that no chain has, what the tier refuses, and the bytes of the design's figures."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusioncc.passes.find_chains import find_chains
from fusioncc.passes.read_ops import refusal
from tests.passes.chain_graphs import Function, bf16, chains_of, graph_of, planned

MIB = 1 << 20
aten = torch.ops.aten


# Tensors that are left alone.


def reasons_of(graph: fx.Graph) -> set[str]:
    return {refusal(node) for node in graph.nodes if node.op == "call_function"}


def test_symbolic_sizes_are_left_alone_with_a_reason() -> None:
    dims = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(
        Function(lambda x: x.relu() * 2), (torch.ones(6, 8),), dynamic_shapes=(dims,), strict=False
    )
    graph = program.graph_module.graph
    assert not find_chains(graph).chains
    assert "a size is symbolic" in reasons_of(graph)


def graph_with(value: Any) -> fx.Graph:
    """A graph of two ops of which all values are like ``value``."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.relu.default, (x,))
    second = graph.call_function(aten.exp.default, (first,))
    graph.output((second,))
    for node in (x, first, second):
        node.meta["val"] = value
    return graph


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.eye(4).to_sparse(), "a tensor is sparse or quantised"),
        (torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "a tensor is sparse or quantised"),
        (torch.ones(4, dtype=torch.complex64), "aten.relu.default: no kernel holds complex64"),
        (torch.ones(4).as_subclass(Subclass), "it makes no plain tensor"),
        (None, "it makes no plain tensor"),
    ],
)
def test_other_tensors_are_left_alone(value: Any, reason: str) -> None:
    graph = graph_with(value)
    assert not find_chains(graph).chains
    assert reason in reasons_of(graph)


def test_tensors_of_two_devices_and_empty_ones_are_left_alone() -> None:
    graph = graph_with(torch.ones(4))
    next(iter(graph.nodes)).meta["val"] = torch.ones((), device="meta")
    assert "its tensors are on several devices" in reasons_of(graph)
    assert not find_chains(graph).chains
    assert not find_chains(graph_with(torch.ones(0, 4))).chains


def test_a_tensor_whose_elements_share_memory_is_no_result() -> None:
    graph = graph_of(lambda x, y: ((z := x.expand(4, 8).detach()), z * 2 + y), (4, 1), (4, 8))
    assert all("detach" not in found for found in chains_of(graph))


def test_sums_along_rows_are_no_members_in_the_eager_tier() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).softmax(-1) * 3 - x.amax(-1, keepdim=True)

    plan = planned(function, torch.empty(4, 8), numerics="eager")
    assert [[op.target.split(".")[1] for op in chain.ops] for chain in plan.chains] == [
        ["mul", "add", "amax", "sub", "exp"],
        ["div", "mul", "amax", "sub"],
    ]
    (rejected,) = plan.rejections
    assert (rejected.rule, rejected.node) == ("chain_op", "sum_1")
    assert "no sum along rows" in rejected.reason
    (whole,) = planned(function, torch.empty(4, 8)).chains
    assert whole.by_rows


# The figures of the design.


def test_a_gated_activation_moves_72_instead_of_120_mib() -> None:
    (chain,) = planned(lambda g, u: F.silu(g) * u, bf16(1024, 12288), bf16(1024, 12288)).chains
    assert (chain.before.bytes, chain.after.bytes) == (120 * MIB, 72 * MIB)
    assert (chain.before.kernels, chain.after.kernels) == (2, 1)


def test_with_a_quantised_result_60_instead_of_156_mib() -> None:
    """The peak falls from 72 to 60 MiB where inputs die at their last use, from 96 where the caller keeps them."""
    (chain,) = planned(
        lambda g, u: (F.silu(g) * u).to(torch.float8_e4m3fn), bf16(1024, 12288), bf16(1024, 12288)
    ).chains
    assert (chain.before.bytes, chain.after.bytes) == (156 * MIB, 60 * MIB)
    assert (chain.before.kernels, chain.after.kernels) == (3, 1)
    assert (chain.before.peak_bytes, chain.after.peak_bytes) == (72 * MIB, 60 * MIB)
    assert (chain.before_kept_bytes, chain.after_kept_bytes) == (96 * MIB, 60 * MIB)
