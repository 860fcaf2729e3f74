"""The cards that the design documents reckon with, as profiles for tests; the rest of each is a like card's."""

from dataclasses import replace
from typing import Any

from fusioncc.device import Device, get_device


def _card(name: str, like: str, **figures: Any) -> Device:
    base = get_device(like)
    sources = {**dict.fromkeys(base.sources, f"assumed: as {like}"), **dict.fromkeys(figures, "the documents")}
    return replace(base, name=name, sources=sources, **figures)


CARD_80 = _card("card-80", "a100-80", multiprocessors=80)
"""80 multiprocessors: 4 for the down tiles of the LoRA layer, 76 for its main tiles."""
CARD_108 = _card("card-108", "a100-80", multiprocessors=108)
"""108 multiprocessors: 896 main tiles, one worker each."""
CARD_504 = _card("card-504", "rtxpro6000", bf16_tflops=503.8)
"""A peak of 503.8 TFLOP/s, dense bf16, of which the shapes of an FFN reach a fraction."""
