"""One opaque op that runs an emitted module: ``fusioncc::launch``, for modules that do more than launch kernels.

Inductor calls it like any op of torch, and looks no further. Its arguments hold the module's source, so that a compiled
graph from Inductor's cache runs in a process in which no pass ran.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusioncc.graph import TORCH_DTYPES
from fusioncc.runtime.interpreter import launcher
from fusioncc.runtime.load import load


def _launch(
    operands: Sequence[torch.Tensor], columns: Sequence[int], dtypes: Sequence[str], name: str, source: str
) -> list[torch.Tensor]:
    return list(_loaded(name, source)(*operands))


def _shapes(
    operands: Sequence[torch.Tensor], columns: Sequence[int], dtypes: Sequence[str], name: str, source: str
) -> list[torch.Tensor]:
    x = operands[0]
    return [x.new_empty((x.shape[0], n), dtype=TORCH_DTYPES[dtype]) for n, dtype in zip(columns, dtypes, strict=True)]


torch.library.define(
    "fusioncc::launch",
    "(Tensor[] operands, int[] columns, str[] dtypes, str name, str source) -> Tensor[]",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
torch.library.impl("fusioncc::launch", "default", _launch)
torch.library.register_fake("fusioncc::launch", _shapes)
OPAQUE = torch.ops.fusioncc.launch.default
"""``OPAQUE(operands, columns, dtypes, name, source)``: what the module's ``launch(*operands)`` returns, one ``[M, n]``
for each ``n`` of ``columns`` in the dtype of ``dtypes`` (``bf16``, ...); ``operands[0]`` is X ``[M, K]``.

Raises:
    EmissionError: the module does not load.
"""


@functools.cache
def _loaded(name: str, source: str) -> Callable[..., Any]:
    return launcher(load(name, source))
