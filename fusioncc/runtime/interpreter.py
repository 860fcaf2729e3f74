"""Triton's interpreter with bf16 put right, for running emitted kernels on a CPU.

As it ships (3.6 to 3.8) the interpreter keeps bf16 as raw 16-bit integers: ``tl.dot``, sums and products then work on
bit patterns, and fp32 to bf16 truncates. Inside ``mended`` they widen to fp32 first and round to nearest even after.
A comparison is of bools, where the handle would say the dtype of what is compared.
The numbers of 8 bits, whose NaN and denormals it misreads, widen to fp32 as torch widens them.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from fusioncc.config import interpreter_requested
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice


def launcher(module: ModuleType) -> Callable[..., Any]:
    """The module's ``launch`` on the card of its operands; under the interpreter it runs mended."""
    launch: Callable[..., Any] = module.launch
    if not interpreter_requested():

        @functools.wraps(launch)
        def guarded(*operands: Any) -> Any:
            with torch.cuda.device(operands[0].device):
                return launch(*operands)

        return guarded

    @functools.wraps(launch)
    def interpreted(*operands: Any) -> Any:
        with mended(), interpreted_libdevice():
            return launch(*operands)

    return interpreted


@contextmanager
def mended() -> Iterator[None]:
    """bf16 arithmetic, dots and casts of the interpreter are right inside; nothing is changed outside."""
    import triton.language as tl
    from triton.runtime import interpreter

    eights = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
    builder = interpreter.InterpreterBuilder
    convert, binary, dot = interpreter._convert_float, builder.binary_op, builder.create_dot

    def is_bf16(handle: Any) -> bool:
        return bool(handle.dtype.scalar == tl.bfloat16)

    def widened(handle: Any) -> Any:
        return interpreter.TensorHandle(widen(handle.data), tl.float32) if is_bf16(handle) else handle

    def mended_convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source == tl.bfloat16 and target == tl.float32:
            return widen(data).view(np.uint32)
        if source == tl.float32 and target == tl.bfloat16:
            return narrow(data.view(np.float32))
        if source in eights and target == tl.float32:
            return torch.from_numpy(data.copy()).view(eights[source]).float().numpy().view(np.uint32)
        if source == tl.float32 and target in eights:
            largest = torch.finfo(eights[target]).max
            values = torch.from_numpy(data.view(np.float32).copy()).clamp(-largest, largest)
            return values.to(eights[target]).view(torch.uint8).numpy()
        return convert(data, source, target, rounding)

    def mended_binary(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not (is_bf16(lhs) and is_bf16(rhs)):
            other = binary(self, lhs, rhs, op)
            return interpreter.TensorHandle(other.data, tl.int1) if other.data.dtype == np.bool_ else other
        result = op(widened(lhs).data, widened(rhs).data)
        if result.dtype == np.bool_:
            return interpreter.TensorHandle(result, tl.int1)
        return interpreter.TensorHandle(narrow(result.astype(np.float32)), tl.bfloat16)

    def mended_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), d, *rest)

    with (
        mock.patch.object(interpreter, "_convert_float", mended_convert),
        mock.patch.object(builder, "binary_op", mended_binary),
        mock.patch.object(builder, "create_dot", mended_dot),
    ):
        yield


def widen(bits: Any) -> Any:
    """fp32 values of bf16 bit patterns."""
    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(values: Any) -> Any:
    """bf16 bit patterns of fp32 values, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
