"""The product behind ``[X | s X A]``: by W and B, which lie beside each other along K in one packed buffer.

For ``X @ W + (s X A) @ B`` that is one vendor GEMM, K + r long. W ``[K, N]`` and B ``[r, N]`` are rows of the buffer,
so a parameter in the layout of ``nn.Linear`` lies transposed in memory from then on.
"""

import torch

from fusioncc.runtime.packed import Layout, PackedWeights
from fusioncc.runtime.weights import define, holder_of, product

NAME = "fusioncc::k_concat"


def _run(
    weights: list[torch.Tensor],
    begins: list[int],
    turned: list[bool],
    bias: torch.Tensor | None,
    xy: torch.Tensor,
    held_by: int,
) -> torch.Tensor:
    layout = Layout(tuple(begins), tuple(turned), xy.shape[1])
    holder = holder_of(held_by)
    buffer = holder.buffer(weights, layout) if isinstance(holder, PackedWeights) else None
    if buffer is not None:
        return product(xy, buffer, bias)
    w, *ups = layout.parts(weights)
    result = product(xy[:, : len(w)], w, bias)
    for up, begin in zip(ups, begins[1:], strict=True):
        result = torch.addmm(result, xy[:, begin : begin + len(up)], up)
    return result


def _shape(
    weights: list[torch.Tensor],
    begins: list[int],
    turned: list[bool],
    bias: torch.Tensor | None,
    xy: torch.Tensor,
    held_by: int,
) -> torch.Tensor:
    return xy.new_empty((xy.shape[0], weights[0].shape[0 if turned[0] else 1]))


define(
    # xy is the last tensor, as X is of ``packed``
    "k_concat(Tensor[] weights, int[] begins, bool[] turned, Tensor? bias, Tensor xy, int held_by) -> Tensor",
    _run,
    _shape,
)
