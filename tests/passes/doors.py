"""What tests of the passes share: graphs captured through each door, and what a group says its outputs are worth."""

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import aot_module, make_boxed_func
from torch import fx
from torch._inductor.decomposition import select_decomp_table

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.graph import tensor
from fusioncc.group import Group, Member, Operand
from fusioncc.passes.find_groups import Found
from fusioncc.pipeline import find

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}

Door = Callable[[torch.nn.Module, tuple[Any, ...]], fx.GraphModule]


def aot(
    model: torch.nn.Module, args: tuple[Any, ...], decompositions: Any = None, train: bool = False
) -> list[fx.GraphModule]:
    """The graphs AOTAutograd makes of a model: the forward, and under ``train`` the backward."""
    seen: list[fx.GraphModule] = []

    def record(module: fx.GraphModule, _: Any) -> Any:
        seen.append(module)
        return make_boxed_func(module.forward)

    with torch.set_grad_enabled(train):
        result = aot_module(model, fw_compiler=record, bw_compiler=record, decompositions=decompositions)(*args)
        if train:
            (result[1] if isinstance(result, tuple | list) else result).sum().backward()
    return seen


DOORS: dict[str, Door] = {
    "export": capture,
    "aot": lambda model, args: aot(model, args)[0],
    "inductor": lambda model, args: aot(model, args, select_decomp_table())[0],
}


class _Recorder(fx.Interpreter):
    values: dict[str, Any]

    def run_node(self, n: fx.Node) -> Any:
        self.values[n.name] = result = super().run_node(n)
        return result


def inputs_of(graph: fx.Graph, seed: int = 0) -> list[Any]:
    """Random values for the placeholders of a graph, in the layout their fake tensors have."""
    generator = torch.Generator().manual_seed(seed)

    def fill(node: fx.Node) -> Any:
        fake = tensor(node)
        if fake is None:
            return int(node.meta["val"])
        shape = [int(size) for size in fake.shape]
        value = torch.randn(shape, generator=generator) / max([1, *shape[-1:]]) ** 0.5
        if not fake.dtype.is_floating_point and not fake.dtype.is_complex:
            value = value * 5
        made = torch.empty_strided(shape, [int(stride) for stride in fake.stride()], dtype=fake.dtype)
        if 0 in made.stride():
            return made.fill_(0.5)
        return made.copy_(value)

    return [fill(node) for node in graph.nodes if node.op == "placeholder"]


def values_of(module: fx.GraphModule, inputs: list[Any]) -> dict[str, Any]:
    """The value of every node by name."""
    recorder = _Recorder(module)
    recorder.values = {}
    recorder.run(*inputs)
    return recorder.values


def claimed(group: Group, main: int, values: dict[str, Any]) -> torch.Tensor:
    """What a group says the output of a main member is worth, computed in fp64 from the group alone."""

    def read(operand: Operand) -> torch.Tensor:
        value = values[operand.node]
        return value.as_strided(operand.shape, operand.strides, value.storage_offset()).double()

    def bias(member: Member) -> torch.Tensor | float:
        return 0.0 if member.bias is None else read(member.bias)

    x = values[group.lhs.node].reshape(-1, group.k).double()
    total = x @ read(group.members[main].weight) + bias(group.members[main])
    for branch in group.branches_of(main):
        down, up = group.members[branch.down], group.members[branch.up]
        scale = branch.scale
        for factor in branch.scale_tensors:
            scale = scale * read(factor)
        total = total + (scale * (x @ read(down.weight)) + down.bias_scale * bias(down)) @ read(up.weight)
        total = total + up.bias_scale * bias(up)
    return total


def check_meaning(module: fx.GraphModule, found: Found) -> None:
    """Every output of every group with batch 1 is worth what the group says."""
    values = values_of(module, inputs_of(module.graph))
    for group in found.groups:
        for main in group.mains:
            if group.members[main].batch != 1:
                continue
            output = group.output_of(main)
            value = values[output.node].reshape(-1, group.members[main].n)
            tolerance = TOLERANCE[value.dtype]
            torch.testing.assert_close(value.double(), claimed(group, main, values), rtol=tolerance, atol=tolerance)


def found_in(module: fx.GraphModule, **options: Any) -> Found:
    """What detection finds, with the meaning of every group checked and the graph left alone."""
    before = str(module.graph)
    found = find(module.graph, Options.of(options))
    assert str(module.graph) == before
    check_meaning(module, found)
    return found
