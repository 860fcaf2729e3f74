"""Partitions of a card's multiprocessors: whether torch's green contexts can make them here."""

import functools
from typing import Any

import torch

from fusioncc.seam import one_line


@functools.cache
def refusal(multiprocessors: int) -> str:
    """Why streams cannot be held to so many multiprocessors of the current card; empty when they can.

    A partition needs streams of its own, which events order and a graph capture sees: to make it the current context,
    the older way, moves work to the default stream.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        context: Any = GreenContext
        if not hasattr(context, "Stream"):
            return f"torch {torch.__version__} has green contexts without streams, which no graph capture would see"
        context.create(num_sms=multiprocessors, device_id=torch.cuda.current_device()).Stream()
    except (ImportError, RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} has no green contexts here: {one_line(error)}"
    return ""
