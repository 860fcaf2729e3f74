"""Dtypes of elementwise values: how a kernel holds, rounds and stores them, and how torch promotes them. No torch.

A kernel *holds* a value of 16 or 8 bits as fp32. A held value is *rounded* to its dtype where eager would have written
it out.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

HALVES = ("bf16", "fp16")
EIGHTS = ("fp8e4m3", "fp8e5m2")
FLOATS = (*HALVES, *EIGHTS, "fp32", "fp64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
TRITON = {
    "bf16": "tl.bfloat16",
    "fp16": "tl.float16",
    "fp32": "tl.float32",
    "fp64": "tl.float64",
    "fp8e4m3": "tl.float8e4nv",
    "fp8e5m2": "tl.float8e5",
    "uint8": "tl.uint8",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "bool": "tl.int1",
}
BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "fp32": 32, "fp64": 64}
TINY = 2.0**-126
"""The smallest normal number of fp32: Triton takes a Python float below it for fp64."""
Number = bool | int | float


@dataclass(frozen=True)
class Term:
    """One argument of an op as an emitted kernel sees it."""

    source: str
    """A Triton identifier or expression; or a constant as Python source: ``2.5``, ``-1``, ``True``,
    ``float('inf')``, ``None``, ``'floor'``."""
    dtype: str = ""
    """The dtype that eager holds; empty for a constant."""
    scalar: bool = False
    """A tensor of no dimensions, which decides a common dtype only by its category."""


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    return 0 if dtype == "bool" else 1 if dtype in INTEGERS else 2


def held(dtype: str) -> str:
    """The dtype in which a kernel holds a value."""
    return "fp32" if dtype in (*HALVES, *EIGHTS) else dtype


def loaded(source: str, dtype: str) -> str:
    """What was loaded from a tensor of that dtype, held; a bool is loaded through a pointer to int1 or int8."""
    if dtype == "bool":
        return f"({source} != 0)"
    return f"{source}.to(tl.float32)" if held(dtype) != dtype else source


def rounded(source: str, dtype: str) -> str:
    """``source`` (held) rounded as eager rounds a result of that dtype, held again."""
    if dtype in HALVES:
        return f"{source}.to({TRITON[dtype]}).to(tl.float32)"
    return f"cast_to_{dtype[3:]}({source}).to(tl.float32)" if dtype in EIGHTS else source


def stored(source: str, dtype: str) -> str:
    """``source`` (held) as it is stored to a tensor of that dtype; a bool is int1, which Triton stores as a byte."""
    if dtype in HALVES:
        return f"{source}.to({TRITON[dtype]})"
    return f"cast_to_{dtype[3:]}({source})" if dtype in EIGHTS else source


def converted(source: str, origin: str, target: str) -> str:
    """``source`` (held as ``origin`` is) as torch casts it to ``target``, held.

    Floats are cut towards zero; outside the range of the integers the result is unspecified, as in torch, but uint8
    wraps. A float becomes a half by way of fp32. NaN is True.
    """
    if origin == target:
        return source
    if target == "bool":
        return f"({source} != 0)"
    if category(target) == 2:
        inside = source if held(origin) == held(target) else f"{source}.to({TRITON[held(target)]})"
        exact = held(target) == target or _holds(target, origin)
        return inside if exact else rounded(inside, target)
    if category(origin) == 2 and target in ("uint8", "int8", "int16"):
        return f"{source}.to({'tl.int64' if target == 'uint8' else 'tl.int32'}).to({TRITON[target]})"
    return f"{source}.to({TRITON[target]})"


def _holds(target: str, origin: str) -> bool:
    """Whether every value of ``origin`` is one of the float dtype ``target``."""
    return origin == "bool" or (target in HALVES and origin in (*EIGHTS, "int8", "uint8"))


def common(terms: Sequence[Term]) -> str:
    """The dtype in which torch computes an op of these tensors and numbers (those that are ``None`` left out); a
    Python float counts as fp32, torch's default dtype."""
    dims = _joined([term.dtype for term in terms if term.dtype and not term.scalar])
    scalars = _joined([term.dtype for term in terms if term.dtype and term.scalar])
    numbers = _joined([_of_number(value_of(term)) for term in terms if not term.dtype and term.source != "None"])
    return _over(_over(dims, scalars), numbers)


def _over(first: str, second: str) -> str:
    """``first`` decides unless ``second`` is of a higher category."""
    if not first or not second:
        return first or second
    return first if category(first) >= category(second) else second


def _joined(dtypes: Sequence[str]) -> str:
    result = ""
    for dtype in dtypes:
        result = dtype if not result else promoted(result, dtype)
    return result


def _of_number(value: Number) -> str:
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "fp32"


def promoted(first: str, second: str) -> str:
    """The smallest dtype that torch takes for two tensors of equal rank in promotion."""
    if first == second:
        return first
    if category(first) != category(second):
        return first if category(first) > category(second) else second
    if category(first) == 2:
        order = ("fp32", "fp64")
        return order[max(order.index(each) if each in order else 0 for each in (first, second))]
    if {first, second} == {"int8", "uint8"}:
        return "int16"
    return max(first, second, key=BITS.__getitem__)


def value_of(term: Term) -> Number:
    """The number that a constant stands for.

    Raises:
        ValueError: it is not a number.
    """
    text = term.source
    if text in ("True", "False"):
        return text == "True"
    if text.startswith(("float(", "-float(")):
        value = float(text.lstrip("-")[len("float(") : -1].strip("'\""))
        return -value if text.startswith("-") else value
    try:
        return int(text)
    except ValueError:
        return float(text)


def _packed(value: float, code: str) -> float:
    """The nearest number of a format of ``struct``."""
    try:
        return float(struct.unpack(f"<{code}", struct.pack(f"<{code}", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def in_dtype(value: Number, dtype: str) -> Number:
    """The number as torch casts it to ``dtype``: integers wrap, halves are rounded by way of fp32."""
    if dtype == "bool":
        return value != 0
    if dtype in INTEGERS:
        bits = BITS[dtype]
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped if dtype == "uint8" or wrapped < 1 << (bits - 1) else wrapped - (1 << bits)
    if dtype == "fp64":
        return float(value)
    single = _packed(float(value), "f")
    if dtype == "fp32" or not math.isfinite(single):
        return single
    if dtype == "fp16":
        return _packed(single, "e")
    bits = int(struct.unpack("<I", struct.pack("<f", single))[0])
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


def literal(value: Number, dtype: str) -> str:
    """Triton source of a number held as ``dtype`` is."""
    kind = held(dtype)
    value = in_dtype(value, kind)
    if kind == "int32":
        return repr(value)
    if category(kind) == 2 and value == 0 and math.copysign(1, value) < 0:
        bits = BITS[kind]  # Triton takes -0.0 for 0.0
        return f"tl.full((), {-(2 ** (bits - 1))}, tl.int{bits}).to({TRITON[kind]}, bitcast=True)"
    text = repr(value) if math.isfinite(value) else f'float("{value}")'
    if kind == "fp32" and (value == 0 or abs(value) >= TINY or math.isnan(value)):
        return text
    return f"tl.full((), {text}, {TRITON[kind]})"
