"""fusioncc: a graph compiler for PyTorch that fuses GEMMs sharing an input.

The front doors are loaded when first asked for, so that ``fusioncc.cost_models`` and the vocabulary work without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fusioncc.config import Options
from fusioncc.errors import FusionError
from fusioncc.plan import Plan

if TYPE_CHECKING:
    from fusioncc.api import merged_of, optimize, packed_of, plan_of, trace_of
    from fusioncc.api import plan as plan
    from fusioncc.fusion_pass import FusionPass

__version__ = "0.1.0"
__all__ = [
    "FusionError",
    "FusionPass",
    "Options",
    "Plan",
    "__version__",
    "merged_of",
    "optimize",
    "packed_of",
    "plan",
    "plan_of",
    "trace_of",
]

_LAZY = {
    "FusionPass": "fusion_pass",
    **dict.fromkeys(("merged_of", "optimize", "packed_of", "plan", "plan_of", "trace_of"), "api"),
}

# The import above bound the submodule to this name; the function of that name is the public one.
globals().pop("plan")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
