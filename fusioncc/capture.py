"""Capture a model as a functional ATen graph without running it: ``torch.export``, non-strict, on fake tensors.

Works for models on the meta device. Attention stays one op, products become mm and addmm, and elementwise ops are taken
apart as in front of Inductor, so that a plan made here fits the graph that is compiled there.
"""

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from fusioncc.errors import CaptureError
from fusioncc.passes.erase_checks import erase_checks
from fusioncc.passes.taken_apart import ONE_AT_A_TIME, decompositions, is_read
from fusioncc.seam import translated

_KEPT_WHOLE = (torch.ops.aten.scaled_dot_product_attention.default,)


def capture(model: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> fx.GraphModule:
    """The graph of ``model(*args, **kwargs)``.

    Args:
        model: an ``nn.Module``, an ``fx.GraphModule``, or an ``ExportedProgram`` (its own example inputs are used).
        args: example inputs; moved to the meta device when the model's parameters are there.

    Raises:
        CaptureError: the model cannot be exported, or is nothing that can be captured.
    """
    with ONE_AT_A_TIME:
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
    kept = [op for op in table if is_read(op) and op not in decompositions()]
    for op in (*_KEPT_WHOLE, *kept):
        table.pop(op, None)  # type: ignore[no-untyped-call]
    table.update(decompositions())  # type: ignore[no-untyped-call]
    with torch.no_grad():
        module: fx.GraphModule = program.run_decompositions(table).graph_module
    erase_checks(module.graph)
    return module


def _on_device_of(model: torch.nn.Module, inputs: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers()]
    if not tensors or any(t.device.type != "meta" for t in tensors):
        return inputs
    return tree_map_only(torch.Tensor, lambda t: t.to("meta"), inputs)
