"""Timing on a CUDA card as tuning does it (``fusioncc/runtime/replay.py``), and facts about the card."""

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from fusioncc.runtime.replay import Captured, captured, graph_us, interleaved_us, sets_needed

__all__ = [
    "Captured",
    "captured",
    "command",
    "facts",
    "graph_us",
    "interleaved_us",
    "on_parameters",
    "sets_needed",
]


def on_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, given a Parameter with memory of its own, the same at every call, in the place of each tensor but
    the first: weights that are packed move, and plain tensors are never packed."""
    held: dict[int, tuple[torch.Tensor, torch.nn.Parameter]] = {}

    def parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
        if id(tensor) not in held:
            held[id(tensor)] = (tensor, torch.nn.Parameter(tensor.clone(), requires_grad=False))
        return held[id(tensor)][1]

    return lambda x, *weights: function(x, *tree_map(parameter, weights))


def command() -> str:
    """The command line of this run, less the name of the result file."""
    script, *arguments = sys.argv
    if "--out" in arguments:
        at = arguments.index("--out")
        del arguments[at : at + 2]
    return " ".join(["python", f"benchmarks/{Path(script).name}", *arguments])


def facts() -> dict[str, str]:
    """Card, driver, versions, date and the command: what a result file begins with."""
    import triton

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver[0] if driver else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "command": command(),
    }
