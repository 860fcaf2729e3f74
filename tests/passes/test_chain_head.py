"""The head of a chain ends where the fewest bytes are written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from fusioncc.passes.chain_head import head_of
from fusioncc.passes.find_chains import find_chains
from fusioncc.passes.find_rotations import find_rotations
from tests.passes.chain_graphs import graph_of

Function = Callable[..., Any]


def scaled(s: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    wide = s.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + g)).bfloat16()


HEADS: dict[str, tuple[Function, tuple[int, ...], list[str]]] = {
    "all": (lambda p, q, r, g: torch.sigmoid(p) * q + r, (0, 1), ["sigmoid", "mul", "add"]),
    "what only it needs": (lambda p, q, r, g: p * (r + 1), (0,), ["add", "mul"]),
    "not what others need": (lambda p, q, r, g: (p * (s := r + 1), s), (0,), ["mul"]),
    "a sum": (lambda p, q, r, g: (s := p + r, scaled(s, g)), (0,), ["add"]),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    function, read, ops = HEADS[name]
    graph = graph_of(function, *[(8, 32)] * 3, (32,), dtype=torch.bfloat16)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    order = {node: at for at, node in enumerate(graph.nodes)}
    chain: list[fx.Node] = sorted(find_chains(graph, least=1).chains[0], key=order.__getitem__)
    found = [str(node.target).split(".")[1] for node in head_of(chain, {inputs[at] for at in read})]
    assert [each for each in found if not each.startswith("_to_copy")] == ops


def test_a_rotation_is_in_the_head_whole() -> None:
    """Without the cast of q the halves of p alone would be the fewest bytes."""

    def function(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        lo, hi = p[..., :16], p[..., 16:]
        wide = q.float()
        turned = torch.cat((-hi, lo), -1)
        scale = torch.rsqrt(q.square().mean(-1, keepdim=True))
        return turned * scale + wide * scale

    graph = graph_of(function, *[(8, 32)] * 2, dtype=torch.bfloat16)
    products = {node for node in graph.nodes if node.op == "placeholder"}
    rotated = find_rotations(graph).of
    order = {node: at for at, node in enumerate(graph.nodes)}
    (found,) = find_chains(graph, least=1, rotated=rotated).chains
    chain = sorted(found, key=order.__getitem__)
    (rotation,) = {rotation.nodes for rotation in rotated.values()}
    assert {*rotation} <= {*chain}
    assert {*rotation} <= {*head_of(chain, products, rotated)}
    assert 0 < len({*rotation} & {*head_of(chain, products)}) < len(rotation)
