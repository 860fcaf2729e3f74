"""libdevice for Triton's interpreter: the functions that elementwise expressions use, by numpy and the C library.

Transcendental functions of fp32 are evaluated in fp64 and rounded once.
"""

import ctypes
import ctypes.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

Array = Any
"""A numpy array of fp32 or fp64."""


def _fused(dtype: Any) -> Callable[..., Array]:
    """``a * b + c``, rounded once."""
    name, kind = ("fmaf", ctypes.c_float) if dtype == np.float32 else ("fma", ctypes.c_double)
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    function.restype, function.argtypes = kind, (kind, kind, kind)
    return np.vectorize(function, otypes=[dtype])


def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``, rounded once; of fp32 or fp64."""
    with np.errstate(all="ignore"):
        return _fused(np.result_type(a, b, c))(a, b, c)


def _in_fp64(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function evaluated in fp64."""
    return lambda *arrays: function(*(np.asarray(each, dtype=np.float64) for each in arrays))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "mul_rn": np.multiply,
    "fmod": np.fmod,
    "rint": np.rint,
    "trunc": np.trunc,
    "acos": _in_fp64(np.arccos),
    "acosh": _in_fp64(np.arccosh),
    "asin": _in_fp64(np.arcsin),
    "asinh": _in_fp64(np.arcsinh),
    "atan": _in_fp64(np.arctan),
    "atan2": _in_fp64(np.arctan2),
    "atanh": _in_fp64(np.arctanh),
    "cos": _in_fp64(np.cos),
    "cosh": _in_fp64(np.cosh),
    "erf": _in_fp64(np.vectorize(math.erf, otypes=[np.float64])),
    "erfc": _in_fp64(np.vectorize(math.erfc, otypes=[np.float64])),
    "exp": _in_fp64(np.exp),
    "exp2": _in_fp64(np.exp2),
    "expm1": _in_fp64(np.expm1),
    "log": _in_fp64(np.log),
    "log10": _in_fp64(np.log10),
    "log1p": _in_fp64(np.log1p),
    "log2": _in_fp64(np.log2),
    "pow": _in_fp64(np.power),
    "rsqrt": _in_fp64(lambda x: 1 / np.sqrt(x)),
    "sin": _in_fp64(np.sin),
    "sinh": _in_fp64(np.sinh),
    "tan": _in_fp64(np.tan),
    "tanh": _in_fp64(np.tanh),
}
"""Each libdevice function that an expression may call."""


@contextmanager
def interpreted_libdevice() -> Iterator[None]:
    """Inside, the functions of ``FUNCTIONS`` work under the interpreter, and ``tl.fma`` rounds once; no numpy warning
    tells of infinities and NaN, which are meant."""
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    def rounded_once(self: Any, x: Any, y: Any, z: Any) -> Any:
        return interpreter.TensorHandle(fma(x.data, y.data, z.data), z.dtype.scalar)

    with (
        mock.patch.dict(vars(libdevice), {name: _elementwise(function) for name, function in FUNCTIONS.items()}),
        mock.patch.object(interpreter.InterpreterBuilder, "create_fma", rounded_once),
        np.errstate(all="ignore"),
    ):
        yield


def _elementwise(function: Callable[..., Array]) -> Callable[..., Any]:
    """A function of interpreted tensors and Python numbers; a number has the dtype of the tensors beside it."""
    import triton.language as tl
    from triton.runtime import interpreter

    def call(*operands: Any) -> Any:
        tensors = [each for each in operands if isinstance(each, tl.tensor)]
        element = max((each.dtype for each in tensors), key=lambda dtype: dtype.primitive_bitwidth)
        kind = np.float64 if element == tl.float64 else np.float32
        arrays = [each.handle.data if isinstance(each, tl.tensor) else _number(each) for each in operands]
        data = function(*(np.asarray(array, dtype=kind) for array in arrays)).astype(kind)
        whole = any(each.type.is_block() for each in tensors)
        return tl.tensor(
            interpreter.TensorHandle(data, element), tl.block_type(element, list(data.shape)) if whole else element
        )

    return call


def _number(value: Any) -> float:
    """The Python number of a number or of a Triton constant."""
    return float(getattr(value, "value", value))
