"""The mathematics of a group, from the group alone, in fp64 and as eager would do it; and operands to try it on."""

import torch

from fusioncc.codegen import EmittedModule
from fusioncc.group import Group, Operand

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Tensors = dict[Operand, torch.Tensor]


def draw(module: EmittedModule, group: Group, seed: int = 0) -> Tensors:
    """A random tensor for each operand, in its shape, strides and dtype; sums of about unit size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for operand in module.operands:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
        values = torch.randn(extent, generator=generator)
        if len(operand.shape) == 2 and operand != group.lhs:
            values *= operand.shape[0] ** -0.5
        if not operand.shape:
            values = 1.0 + 0.2 * values
        tensors[operand] = values.to(DTYPES[operand.dtype]).as_strided(operand.shape, operand.strides)
    return tensors


def results(group: Group, tensors: Tensors, mains: tuple[int, ...] | None = None) -> list[torch.Tensor]:
    """fp64 outputs of the main members, then the saved down products."""
    exact = {operand: tensor.double() for operand, tensor in tensors.items()}
    x = exact[group.lhs]
    outputs, saved = [], {}
    for main in group.mains if mains is None else mains:
        member = group.members[main]
        total = x @ exact[member.weight] + (0.0 if member.bias is None else exact[member.bias])
        for branch in group.branches_of(main):
            down, up = group.members[branch.down], group.members[branch.up]
            scale = branch.scale
            for tensor in branch.scale_tensors:
                scale = scale * exact[tensor]
            y = x @ exact[down.weight]
            total = total + scale * (y @ exact[up.weight])
            if down.bias is not None:
                total = total + down.bias_scale * (exact[down.bias] @ exact[up.weight])
            if up.bias is not None:
                total = total + up.bias_scale * exact[up.bias]
            if branch.saved:
                saved[branch.down] = y if down.bias is None else y + exact[down.bias]
        outputs.append(total)
    return [*outputs, *saved.values()]


def rms(value: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS of the error, relative to the RMS of the exact result."""
    return ((value.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()).item()
