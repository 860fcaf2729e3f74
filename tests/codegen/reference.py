"""What an emitted module should compute: operands for a group, its results in fp64 and as eager rounds them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fusioncc.group import Branch, Group, Member, Operand
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.load import load
from tests.codegen.cases import Case

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GUARD = 64
"""Elements around each buffer that no kernel may touch."""

Tensors = dict[Operand, torch.Tensor]
Results = list[torch.Tensor]


@dataclass(frozen=True)
class Error:
    """Distance from the fp64 result, relative to its RMS."""

    rms: float
    worst: float


def error(value: torch.Tensor, exact: torch.Tensor) -> Error:
    difference, size = value.double() - exact, exact.square().mean().sqrt()
    return Error((difference.square().mean().sqrt() / size).item(), (difference.abs().max() / size).item())


def draw(group: Group, operands: tuple[Operand, ...], rows: int) -> Tensors:
    """Random values in the operands' own strides, scaled so that each term of the sums counts as much."""
    generator = torch.Generator().manual_seed(rows + group.k)
    drawn: Tensors = {}
    for operand in operands:
        shape = (rows, group.k) if operand == group.lhs else operand.shape
        spread = shape[0] ** -0.5 if len(shape) == 2 and operand != group.lhs else 1.0
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, operand.strides, strict=True))
        values = torch.randn(extent, generator=generator) * spread
        drawn[operand] = values.to(DTYPES[operand.dtype]).as_strided(shape, operand.strides)
    return drawn


def launch(case: Case, tensors: Tensors, name: str = "kernels") -> Results:
    """Outputs and saved products as the emitted kernels compute them, out of buffers filled with NaN."""
    module = case.emitted(name)
    buffers: list[torch.Tensor] = []

    def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        buffers.append(torch.full((math.prod(shape) + 2 * GUARD,), math.nan, dtype=dtype, device=device))
        return buffers[-1][GUARD:-GUARD].view(shape)

    with mended():
        results = load(name, module.source).launch(*(tensors[operand] for operand in module.operands), empty=guarded)
    for buffer in buffers:
        assert buffer[:GUARD].isnan().all() and buffer[-GUARD:].isnan().all(), "written outside a buffer"
    return list(results)


def eager(case: Case, tensors: Tensors) -> Results:
    """Every product rounded to its own dtype; a relaxed tier rounds adapters to X's dtype first."""
    group = case.group

    def dtype(member: Member) -> torch.dtype:
        return DTYPES[group.lhs.dtype if case.tier == "relaxed" and member.role != "main" else member.dtype]

    outputs = _sums(group, tensors, dtype)
    kept = [DTYPES[group.output_of(main).dtype] for main in group.mains]
    return [value.to(to) for value, to in zip(outputs, kept, strict=False)] + outputs[len(kept) :]


def exact(case: Case, tensors: Tensors) -> Results:
    """The same sums in fp64."""
    return _sums(case.group, tensors, lambda member: torch.float64)


def _sums(group: Group, tensors: Tensors, dtype: Callable[[Member], torch.dtype]) -> Results:
    x = tensors[group.lhs]

    def product(left: torch.Tensor, index: int) -> torch.Tensor:
        member = group.members[index]
        return left.to(dtype(member)) @ tensors[member.weight].to(dtype(member))

    def bias(index: int, value: torch.Tensor, factor: float) -> torch.Tensor:
        member = group.members[index]
        return value if member.bias is None else value + tensors[member.bias].to(value.dtype) * factor

    def joined(branch: Branch) -> torch.Tensor:
        y = product(x, branch.down) * branch.scale
        for scale in branch.scale_tensors:
            y = y * tensors[scale].to(y.dtype)
        y = bias(branch.down, y, group.members[branch.down].bias_scale)
        return bias(branch.up, product(y, branch.up), group.members[branch.up].bias_scale)

    outputs = [
        bias(main, product(x, main), 1.0) + sum(joined(branch) for branch in group.branches_of(main))
        for main in group.mains
    ]
    saved = dict.fromkeys(branch.down for branch in group.branches if branch.saved)
    return outputs + [bias(down, product(x, down), 1.0) for down in saved]
