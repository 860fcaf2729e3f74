"""What tests of chains share: functions as graphs, and the chains in them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

import fusioncc
from fusioncc.passes.find_chains import find_chains
from fusioncc.plan import Plan
from tests.passes.doors import DOORS


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> fx.Graph:
    return DOORS["aot"](Function(function), tuple(torch.ones(shape, dtype=dtype) for shape in shapes)).graph


def chains_of(graph: fx.Graph, taken: Any = ()) -> list[list[str]]:
    """The names of the nodes of each chain, in the order of the graph."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    return [[node.name for node in sorted(found, key=order.__getitem__)] for found in find_chains(graph, taken).chains]


def planned(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Plan:
    return fusioncc.plan(Function(function), args, device="h200", **options)


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
