"""Capture a model as a functional ATen graph without running it: ``torch.export``, non-strict, on fake tensors.

Works for models on the meta device. Attention stays one op, products become mm and addmm, as they do in front of
Inductor, so that a plan made here fits the graph that is compiled there.
"""

import threading
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from fusioncc.errors import CaptureError
from fusioncc.seam import translated

_KEPT_WHOLE = (torch.ops.aten.scaled_dot_product_attention.default,)

_CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)
"""Export's own checks: they would count as users of the values they look at."""


_ONE_AT_A_TIME = threading.Lock()
"""torch.export and its decompositions hold state of the process."""


def capture(model: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> fx.GraphModule:
    """The graph of ``model(*args, **kwargs)``.

    Args:
        model: an ``nn.Module``, an ``fx.GraphModule``, or an ``ExportedProgram`` (its own example inputs are used).
        args: example inputs; moved to the meta device when the model's parameters are there.

    Raises:
        CaptureError: the model cannot be exported, or is nothing that can be captured.
    """
    with _ONE_AT_A_TIME:
        return _captured(model, args, kwargs)


def _captured(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> fx.GraphModule:
    if isinstance(model, ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        args, kwargs = _on_device_of(model, (tuple(args), dict(kwargs or {})))
        program = translated("cannot capture the model", lambda: _export(model, args, kwargs), CaptureError)
    else:
        raise CaptureError(
            f"cannot capture a {type(model).__name__}; give an nn.Module, a GraphModule or an ExportedProgram"
        )
    return translated("cannot decompose the captured model", lambda: _functional(program), CaptureError)


def _export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, strict=False)


def _functional(program: ExportedProgram) -> fx.GraphModule:
    table = torch.export.default_decompositions()
    for op in _KEPT_WHOLE:
        table.pop(op, None)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        module: fx.GraphModule = program.run_decompositions(table).graph_module
    for node in list(module.graph.nodes):
        if node.target in _CHECKS and not node.users:
            module.graph.erase_node(node)
    return module


def _on_device_of(model: torch.nn.Module, inputs: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers()]
    if not tensors or any(t.device.type != "meta" for t in tensors):
        return inputs
    return tree_map_only(torch.Tensor, lambda t: t.to("meta"), inputs)
