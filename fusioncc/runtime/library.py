"""A group as it runs without fusioncc."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fusioncc.runtime.timings import fp32_precision


@contextmanager
def library(eager: Callable[..., Any], rest: str, precision: str) -> Iterator[Callable[..., Any]]:
    """``eager`` as Inductor compiles it, or, where ``rest`` is ``eager``, as it is; inside, fp32 products have this
    precision."""
    with fp32_precision(precision):
        yield torch.compile(eager, dynamic=False) if rest == "inductor" else eager
