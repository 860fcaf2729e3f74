"""Whether the kernels of an emitted module are right on a card: its own ``check``, with a reference of bounded size.

As in the module, kernels run once over all rows, into buffers that are poisoned and stand between guard zones. The
results are then compared with fp64 in blocks of rows, which depend on no others, so that the reference of a large group
takes no more memory than that of a small one. Squares and maxima are of all rows, and so are the bounds.
"""

import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

ROWS = 1024
"""Rows of the reference at once."""


def problem_of(module: ModuleType, operands: Sequence[torch.Tensor], by_rows: Sequence[bool]) -> str:
    """What is wrong with the kernels' results, or nothing.

    Args:
        by_rows: for each operand, whether it has a row for each row of X, or fewer that are repeated.
    """
    guards: list[torch.Tensor] = []

    def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        poison = math.nan if dtype.is_floating_point else 85
        zone = module.GUARD
        guards.append(torch.full((math.prod(shape) + 2 * zone,), poison, device=device).to(dtype))
        return guards[-1][zone:-zone].view(shape)

    results = module.launch(*operands, empty=guarded)
    sums = [_Errors() for _ in results]
    whole = operands[0].shape[0]
    for rows in _blocks(whole):
        mine = [_cut(value, rows, whole) if cut else value for value, cut in zip(operands, by_rows, strict=True)]
        for errors, result, plain, exact in zip(sums, results, module.eager(*mine), _exact(module, mine), strict=True):
            errors.add(result[rows], plain.to(result.dtype), exact)
    for name, errors in zip(module.RESULTS, sums, strict=True):
        reason = errors.beyond(module.RMS_LIMIT, module.MAX_LIMIT)
        if reason:
            return f"{name}: {reason}"
    zones = (edge.float() for each in guards for edge in (each[: module.GUARD], each[-module.GUARD :]))
    if not all(bool((zone.isnan() | (zone == 85)).all()) for zone in zones):
        return "a kernel wrote outside its buffers"
    return ""


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(first, min(first + ROWS, rows)) for first in range(0, rows, ROWS))


def _cut(value: torch.Tensor, rows: slice, whole: int) -> torch.Tensor:
    """What an operand has for these rows of ``whole``, of which it may repeat a part."""
    own = value.shape[0]
    if own == whole:
        return value[rows]
    return value[torch.arange(rows.start, rows.stop, device=value.device) % own]


def _exact(module: ModuleType, operands: Sequence[torch.Tensor]) -> Any:
    """The same operations in fp64; constants that eager makes have the default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        return module.eager(*(each.double() if each.is_floating_point() else each for each in operands))
    finally:
        torch.set_default_dtype(torch.float32)


class _Errors:
    """Squares and maxima of the errors of one result, ours and eager's, over the blocks so far."""

    def __init__(self) -> None:
        self.squares = [0.0, 0.0]
        self.worst = [0.0, 0.0]

    def add(self, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
        for at, value in enumerate((ours, eager)):
            error = value.double() - exact.double()
            self.squares[at] += error.square().sum().item()
            most = error.abs().max().item()
            self.worst[at] = most if math.isnan(most) else max(self.worst[at], most)

    def beyond(self, rms_limit: float, worst_limit: float) -> str:
        """How our errors compare with eager's where they pass the limits, which are parts of those; or nothing."""
        ours, eager = self.squares
        if ours <= rms_limit**2 * eager and self.worst[0] <= worst_limit * self.worst[1]:
            return ""
        return (
            f"RMS error {_ratio(ours**0.5, eager**0.5)}, maximum {_ratio(self.worst[0], self.worst[1])} times eager's"
        )


def _ratio(ours: float, eager: float) -> str:
    return f"{ours / eager:.2f}" if eager else f"{ours:.2e} against none,"
