"""Erase checks: what torch.export asserts of a tensor and its fake tensor shows to hold.

A check reads its tensor and computes nothing. As a reader it would keep apart whatever writes the tensor no more.
"""

from typing import Any

import torch
from torch import fx

from fusioncc.graph import aten, tensor

CHECK = aten._assert_tensor_metadata.default


def erase_checks(graph: fx.Graph) -> None:
    """Erase the checks of dtype, device and layout that hold; others stay, to be made when the graph runs."""
    for node in list(graph.nodes):
        if node.target is CHECK and _holds(node):
            graph.erase_node(node)


def _holds(node: fx.Node) -> bool:
    names = [argument.name for argument in CHECK._schema.arguments]
    checked: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    value = tensor(checked.pop("a"))
    said = {name: each for name, each in checked.items() if each is not None}
    if value is None or not said.keys() <= {"dtype", "device", "layout"}:
        return False
    device = torch.device(said.get("device", value.device))
    placed = value.device.type == device.type and device.index in (None, value.device.index)
    return placed and said.get("dtype", value.dtype) == value.dtype and said.get("layout", value.layout) == value.layout
