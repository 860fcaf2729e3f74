"""What every schedule that moves or copies weights needs at run time.

A holder that a graph can name, the facts of a tensor that a call compares, and the operator that does so.
"""

import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch


class Holder:
    """What one compiled model holds of its weights. A graph names it by ``key``, an operator finds it by that."""

    def __init__(self) -> None:
        self.key = next(_keys)
        _holders[self.key] = self


_keys = count(1)
_holders: "weakref.WeakValueDictionary[int, Holder]" = weakref.WeakValueDictionary()


def holder_of(key: int) -> Holder | None:
    """The holder with this key, if it is still alive."""
    return _holders.get(key)


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies, and how: storage, address, shape, strides, dtype, device."""
    storage = tensor.untyped_storage()._cdata
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    return (storage, tensor.data_ptr(), *layout)


def is_captured(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is captured now; when it is replayed, nothing is checked."""
    return tensor.is_cuda and bool(torch.cuda.is_current_stream_capturing())


def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ w``, with a bias of N elements added."""
    return x @ w if bias is None else torch.addmm(bias.reshape(-1), x, w)


def define(schema: str, run: Any, shape: Any) -> None:
    """The operator ``fusioncc::<schema>``: never in a CUDA graph of Inductor's, as every call looks at its weights."""
    name = schema.split("(", 1)[0]
    tags: Sequence[torch.Tag] = (torch.Tag.cudagraph_unsafe, torch.Tag.pt2_compliant_tag)
    _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"fusioncc::{name}", shape, lib=_library)


_library = torch.library.Library("fusioncc", "FRAGMENT")  # type: ignore[no-untyped-call]
