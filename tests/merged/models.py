"""Models whose adapters may be merged, and how they are compiled for it."""

from typing import Any

import fusioncc
from tests.lora_models import WIDTH, Lora

BYTES = WIDTH * WIDTH * 4
MERGED: dict[str, Any] = {"schedule": "merged", "numerics": "relaxed", "on_error": "raise"}


def frozen(**more: Any) -> Lora:
    return Lora(**more).requires_grad_(False)


def optimized(model: Any, rest: str = "eager", **more: Any) -> Any:
    return fusioncc.optimize(model, rest=rest, **{**MERGED, **more})
