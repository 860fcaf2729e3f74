"""Merged weights: ``X @ (W + s * A @ B)`` as one product, with the sum in a buffer that is checked on every call.

W, A and B stay as they are. A buffer is made from the weights of a call and remembers which they were: storage,
pointer, version, shape, strides, dtype and device of each. A call that finds anything else makes it anew. A write that
changes none of these (through ``.data``) cannot be seen: ``refresh()`` is for that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fusioncc.runtime.weights import Holder, define, holder_of, is_captured, place_of, product
from fusioncc.seam import warn

NAME = "fusioncc::merged"
SLICE = 1 << 24
"""Elements of the sum that are computed at once, in fp64."""


@dataclass(frozen=True)
class _Made:
    """A buffer ``[K, N]``, or None where the weights may not be merged; and what it was made from.

    A weak reference to each storage keeps its address from being used again, and nothing alive.
    """

    matrix: torch.Tensor | None
    seen: tuple[Any, ...]
    storages: tuple[StorageWeakRef, ...]


class MergedWeights(Holder):
    """The merged weights of one compiled model: a buffer for each W that was merged, made by the first call.

    All graphs of a model share its buffers; two models that are served by the same code have buffers of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._merge = True
        self._made: dict[tuple[Any, ...], _Made] = {}

    @property
    def merged_bytes(self) -> int:
        """Bytes held in buffers now, beside the weights; 0 before the first call and after ``unmerge``."""
        self._forget_the_dead()
        return sum(made.matrix.nbytes for made in tuple(self._made.values()) if made.matrix is not None)

    def refresh(self) -> None:
        """Merge anew in the next call, from what the weights hold then; also after ``unmerge``."""
        self._made = {}
        self._merge = True

    def unmerge(self) -> None:
        """Drop the buffers; from the next call on the products run one after another, as without fusioncc."""
        self._made = {}
        self._merge = False

    def matrix(
        self, weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], form: "Form"
    ) -> torch.Tensor | None:
        """``W + s * A @ B`` of these weights, ``[K, N]`` in the dtype of W; None: to be run unmerged."""
        if not self._merge or is_captured(weights[0]):  # a replay does not ask whether a weight changed
            return None
        tensors = (*weights, *scales)
        seen = (_stream(weights[0]), *map(_identity, tensors))
        key = (weights[0].untyped_storage()._cdata, weights[0].data_ptr(), form)
        buffers = self._made
        made = buffers.get(key)
        if made is None or made.seen != seen:
            self._forget_the_dead()
            made = buffers[key] = _make(weights, scales, form, seen)
        return made.matrix

    def _forget_the_dead(self) -> None:
        for key, made in tuple(self._made.items()):
            if made.storages[0].expired():  # type: ignore[no-untyped-call]
                self._made.pop(key, None)


@dataclass(frozen=True)
class Form:
    """How W ``[K, N]``, A ``[K, r]`` and B ``[r, N]`` lie in the tensors that hold them, and the constant scale."""

    sizes: tuple[int, ...]
    """K, N, r."""
    strides: tuple[int, ...]
    """Two for each matrix."""
    scale: float

    def matrices(self, weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """W, A and B."""
        (k, n, r), (w, a, b), strides = self.sizes, weights, self.strides
        return (
            w.as_strided((k, n), strides[0:2]),
            a.as_strided((k, r), strides[2:4]),
            b.as_strided((r, n), strides[4:6]),
        )


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What changes when a weight does, as far as that can be seen."""
    version = None if tensor.is_inference() else tensor._version
    return (version, tensor.requires_grad, *place_of(tensor))


def _stream(tensor: torch.Tensor) -> int:
    """The stream a buffer is made and read on: on another one nothing would wait for it."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0


def _make(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], form: Form, seen: tuple[Any, ...]) -> _Made:
    storages = tuple(map(_weak, (*weights, *scales)))
    refusal = _refusal(weights, scales)
    if refusal:
        warn(f"weights are not merged: {refusal}")
        return _Made(None, seen, storages)
    with torch.no_grad():
        return _Made(merge(*form.matrices(weights), form.scale, scales), seen, storages)


def _weak(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _refusal(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> str:
    """What only the tensors themselves show; the rules of the plan see the rest."""
    if any(tensor.requires_grad for tensor in (*weights, *scales)):
        return "one is trainable"
    if any(tensor.is_inference() for tensor in (*weights, *scales)):
        return "one was made in inference mode, where writes are not counted"
    spans = sorted(_span(tensor) for tensor in weights)
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return "two are aliased: they overlap in memory"
    return ""


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the one behind the last."""
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (extent + 1) * tensor.element_size()


def merge(
    w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float, scales: Sequence[torch.Tensor]
) -> torch.Tensor:
    """``W + scale * prod(scales) * A @ B`` ``[K, N]``, laid out as W: summed in fp64 and then rounded to W's dtype."""
    factor = math.prod((each.double().reshape(()) for each in scales), start=scale)
    merged = torch.empty_like(w)
    rows = max(1, SLICE // w.shape[1])
    for at in range(0, w.shape[0], rows):
        part = slice(at, at + rows)
        merged[part] = w[part].double() + (a[part].double() @ b.double()) * factor
    return merged


def unmerged(x: torch.Tensor, bias: torch.Tensor | None, matrices: Sequence[torch.Tensor], factor: Any) -> torch.Tensor:
    """``X @ W + bias + factor * (X @ A) @ B``, one product after another, an fp32 adapter in fp32."""
    w, a, b = matrices
    whole: torch.Tensor = product(x, w, bias) + factor * _widened(_widened(x, a), b)
    return whole


def _widened(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w`` in the wider of their dtypes."""
    dtype = torch.promote_types(x.dtype, w.dtype)
    return x.to(dtype) @ w.to(dtype)


def _run(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    weights: list[torch.Tensor],
    scales: list[torch.Tensor],
    sizes: list[int],
    strides: list[int],
    scale: float,
    dtype: torch.dtype,
    held_by: int,
) -> torch.Tensor:
    form = Form(tuple(sizes), tuple(strides), scale)
    holder = holder_of(held_by)
    matrix = holder.matrix(weights, scales, form) if isinstance(holder, MergedWeights) else None
    if matrix is not None:
        return product(x, matrix, bias).to(dtype)
    factor = math.prod((each.reshape(()) for each in scales), start=scale)
    return unmerged(x, bias, form.matrices(weights), factor).to(dtype)


def _shape(x: torch.Tensor, bias: Any, weights: Any, scales: Any, sizes: list[int], *rest: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], sizes[1]), dtype=rest[2])


define(
    "merged(Tensor x, Tensor? bias, Tensor[] weights, Tensor[] scales, int[] sizes, int[] strides, float scale, "
    "ScalarType dtype, int held_by) -> Tensor",
    _run,
    _shape,
)
