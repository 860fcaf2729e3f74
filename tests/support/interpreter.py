"""Triton's interpreter with right arithmetic for bf16 and fp8 (triton 3.6 and 3.7).

As shipped it multiplies the raw bits of bf16 tiles, truncates fp32 to bf16 and loses a carry on the way to fp8.
:func:`mend` replaces its conversions by torch's and computes on fp32 values in between.
"""

import os
import sys

import pytest


def request() -> None:
    """Ask for the interpreter; to be called before triton is imported.

    Raises:
        pytest.UsageError: triton is there already and would compile.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("triton came before TRITON_INTERPRET=1; run these tests in a process of their own")
    os.environ["TRITON_INTERPRET"] = "1"


def mend() -> None:
    """Correct the interpreter's arithmetic, once a process."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    if getattr(interpreter, "mended_by_tests", False):
        return
    interpreter.mended_by_tests = True
    builder = interpreter.InterpreterBuilder
    narrow = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    floats = {**narrow, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    shipped_convert, shipped_cast, shipped_binary = interpreter._convert_float, builder.cast_impl, builder.binary_op

    def convert(data, source, target, rounding):
        if source.name not in floats or target.name not in floats:
            return shipped_convert(data, source, target, rounding)
        width = target.primitive_bitwidth // 8
        raw = torch.from_numpy(np.array(data, order="C").view(f"i{source.primitive_bitwidth // 8}"))
        rounded = raw.view(floats[source.name]).to(floats[target.name])
        return rounded.view(bits[width]).numpy().view(f"u{width}").reshape(np.shape(data))

    def values(handle):
        scalar = handle.dtype.scalar
        if scalar.name not in narrow:
            return handle.data
        return convert(handle.data, scalar, tl.float32, None).view(np.float32)

    def packed(data, scalar):
        return interpreter.TensorHandle(convert(data.astype(np.float32), tl.float32, scalar, None), scalar)

    def cast(self, handle, target):
        source, scalar = handle.dtype.scalar, target.scalar
        if scalar.name in narrow:
            return packed(values(handle), scalar)
        if source.name in narrow:
            return interpreter.TensorHandle(values(handle).astype(interpreter._get_np_dtype(scalar)), scalar)
        return shipped_cast(self, handle, target)

    def dot(self, left, right, acc, precision, imprecise):
        product = np.matmul(values(left), values(right), dtype=acc.data.dtype)
        return interpreter.TensorHandle(product + acc.data, acc.dtype.scalar)

    def binary(self, left, right, operation):
        scalar = left.dtype.scalar
        if scalar.name not in narrow or operation in (np.bitwise_and, np.bitwise_or, np.bitwise_xor):
            return shipped_binary(self, left, right, operation)
        result = operation(values(left), values(right))
        return interpreter.TensorHandle(result, tl.int1) if result.dtype == bool else packed(result, scalar)

    interpreter._convert_float = convert
    builder.cast_impl, builder.create_dot, builder.binary_op = cast, dot, binary
