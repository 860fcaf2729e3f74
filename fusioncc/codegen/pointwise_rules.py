"""Forms of elementwise ops that depend on their constants, on the tier, or on operands of several dtypes."""

import math
from collections.abc import Callable

from fusioncc.codegen.pointwise_call import Call, Refused
from fusioncc.codegen.pointwise_dtypes import HALVES, category, converted, in_dtype

SIXTH = in_dtype(1 / 6, "fp32")
"""A sixth as ATen's CUDA kernels have it, in fp64 too."""
LARGEST = {
    "bf16": (2 - 2**-7) * 2.0**127,
    "fp16": 65504.0,
    "fp32": (2 - 2**-23) * 2.0**127,
    "fp64": (2 - 2**-52) * 2.0**1023,
}


def add(call: Call) -> str:
    return _sum(call, call.wide(0), call.wide(1), 1)


def sub(call: Call) -> str:
    return _sum(call, call.wide(0), call.wide(1), -1)


def rsub(call: Call) -> str:
    return _sum(call, call.wide(1), call.wide(0), -1)


def _sum(call: Call, left: str, right: str, sign: int) -> str:
    """``left + sign * alpha * right``; eager has it as one fused multiply-add of floats."""
    alpha = call.number(2) if len(call.terms) > 2 else 1
    if alpha == 1:
        return f"({left} {'+' if sign == 1 else '-'} {right})"
    factor = call.constant(sign * alpha)
    if category(call.compute) == 2:
        return f"tl.fma({right}, {factor}, {left})"
    return f"({left} + {right} * {factor})"


def add_bool(call: Call) -> str:
    alpha = call.number(2) if len(call.terms) > 2 else 1
    return f"({call.operand(0)} | {call.operand(1)})" if alpha else call.operand(0)


def mul(call: Call) -> str:
    return call.product(call.wide(0), call.wide(1))


def square(call: Call) -> str:
    return call.product(call.operand(0), call.operand(0))


def divide(call: Call) -> str:
    """Eager on CUDA multiplies with the reciprocal of a number."""
    if call.is_number(1):
        return call.product(call.wide(0), call.constant(_reciprocal(call, 1)))
    return f"divide({call.tensor(0)}, {call.operand(1)})"


def _reciprocal(call: Call, index: int) -> float:
    value = call.inner(call.number(index))
    return call.inner(1 / value) if value else math.copysign(math.inf, value)


def divide_mode(call: Call) -> str:
    mode = call.word(2)
    floats = category(call.compute) == 2
    if mode == "None" and floats:
        return divide(call)
    if mode == "floor":
        return floor_divide(call) if floats else floor_divide_integers(call)
    if mode != "trunc":
        raise Refused(f"{call.target}: no rounding mode {mode} for {call.compute}")
    if not floats:
        return f"integer_divide({call.tensor(0)}, {call.tensor(1)})"
    quotient = divide(call)
    return f"libdevice.trunc({quotient if call.is_number(1) else call.between_steps(quotient)})"


def floor_divide(call: Call) -> str:
    if not call.is_number(1):
        return f"float_floor_divide({call.tensor(0)}, {call.operand(1)})"
    if call.number(1) == 0:
        return divide(call)
    inverse = call.constant(_reciprocal(call, 1))
    return f"floor_divide_by({call.operand(0)}, {call.wide(1)}, {inverse})"


def floor_divide_integers(call: Call) -> str:
    return f"integer_floor_divide({call.tensor(0)}, {call.tensor(1)})"


def power(call: Call) -> str:
    base = call.operand(0)
    if not call.is_number(1):
        return f"libdevice.pow({base}, {call.operand(1)})"
    exponent = in_dtype(call.number(1), call.compute)
    if call.is_number(0):
        return f"libdevice.pow({base}, {call.operand(1)})"
    special = {
        1: lambda: base,
        2: lambda: call.product(base, base),
        3: lambda: call.product(call.between_steps(call.product(base, base)), base),
        0.5: lambda: f"square_root({base})",
        -0.5: lambda: f"libdevice.rsqrt({base})",
        -1: lambda: f"reciprocal({base})",
        -2: lambda: f"reciprocal({call.between_steps(call.product(base, base))})",
    }
    if exponent == 0:
        return f"tl.where({base} == {base}, {call.constant(1)}, {call.constant(1)})"
    return special[exponent]() if exponent in special else f"libdevice.pow({base}, {call.operand(1)})"


def integer_power(call: Call) -> str:
    if call.is_number(1) and call.number(1) < 0:
        raise Refused(f"{call.target}: torch refuses integers to negative powers")
    return f"integer_power({call.tensor(0)}, {call.tensor(1)}, {call.bits})"


def round_decimals(call: Call) -> str:
    decimals = int(call.number(1))
    if decimals == 0:
        return f"libdevice.rint({call.operand(0)})"
    ten = call.constant(in_dtype(float(10 ** abs(decimals)), call.compute))
    if decimals > 0:
        scaled = call.between_steps(call.product(call.operand(0), ten))
        return f"divide(libdevice.rint({scaled}), {ten})"
    scaled = call.between_steps(f"divide({call.operand(0)}, {ten})")
    return call.product(f"libdevice.rint({scaled})", ten)


def copysign(call: Call) -> str:
    magnitude = f"tl.abs({call.operand(0)})"
    return f"negated({magnitude})" if math.copysign(1, call.number(1)) < 0 else magnitude


def nan_to_num(call: Call) -> str:
    x, largest = call.operand(0), LARGEST.get(call.compute, 0.0)
    nan, above, below = (
        call.constant(default if call.is_none(index) else in_dtype(call.number(index), call.compute))
        for index, default in ((1, 0.0), (2, largest), (3, -largest))
    )
    infinity = 'float("inf")'
    below = f"tl.where({x} == -{infinity}, {below}, {x})"
    return f"tl.where({x} != {x}, {nan}, tl.where({x} == {infinity}, {above}, {below}))"


def clamp(call: Call) -> str:
    bounds = [index for index in (1, 2) if not call.is_none(index)]
    x = call.operand(0)
    if any(math.isnan(call.number(index)) for index in bounds):
        return f"tl.where({x} == {x}, {call.constant(math.nan)}, {call.constant(math.nan)})"
    for index in bounds:
        bound = call.wide(index)
        x = f"{'at_least' if index == 1 else 'at_most'}({x}, {bound})"
    if not bounds:
        raise Refused(f"{call.target}: no bound")
    return x


def clamp_tensors(call: Call) -> str:
    given = [index for index in (1, 2) if not call.is_none(index)]
    if len(given) == 2:
        return f"between({call.operand(0)}, {call.operand(1)}, {call.operand(2)})"
    if not given:
        raise Refused(f"{call.target}: no bound")
    x, bound = call.operand(0), call.operand(given[0])
    if call.compute == "bool":
        return f"({x} {'|' if given[0] == 1 else '&'} {bound})"
    name = "maximum" if given[0] == 1 else "minimum"
    return f"{'' if category(call.compute) == 2 else 'tl.'}{name}({x}, {bound})"


def relu6(call: Call) -> str:
    return f"at_most(at_least({call.operand(0)}, {call.constant(0)}), {call.constant(6)})"


def leaky_relu(call: Call) -> str:
    x = call.operand(0)
    return f"tl.where({x} > 0, {x}, {call.product(x, call.wide(1))})"


def elu(call: Call) -> str:
    x = call.operand(0)
    alpha, scale = (call.inner(call.number(index)) for index in (1, 2))
    left = call.product(f"libdevice.expm1({x} * {call.wide(3)})", call.constant(alpha * scale))
    return f"tl.where({x} > 0, {call.product(x, call.wide(2))}, {left})"


def gelu(call: Call) -> str:
    return f"{_gelu(call, 1)}({call.operand(0)})"


def gelu_backward(call: Call) -> str:
    return f"{_gelu(call, 2)}_backward({call.operand(0)}, {call.operand(1)})"


def _gelu(call: Call, index: int) -> str:
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if call.word(index) not in names:
        raise Refused(f"{call.target}: no approximation {call.word(index)}")
    return names[call.word(index)]


def sigmoid_backward(call: Call) -> str:
    grad, y = call.operand(0), call.operand(1)
    left = call.between_steps(f"(1.0 - {y})")
    return call.product(call.between_steps(call.product(grad, left)), y)


def tanh_backward(call: Call) -> str:
    grad, y = call.operand(0), call.operand(1)
    if call.exact and call.compute in HALVES:
        slope = call.between_steps(f"(1.0 - {call.between_steps(call.product(y, y))})")
    else:
        slope = f"tl.fma(negated({y}), {y}, {call.constant(1)})"
    return call.product(grad, slope)


def hardswish(call: Call) -> str:
    return call.product(call.product(call.operand(0), _hard(call)), call.constant(SIXTH))


def hardsigmoid(call: Call) -> str:
    return call.product(_hard(call), call.constant(SIXTH))


def _hard(call: Call) -> str:
    return f"at_most(at_least({call.operand(0)} + 3.0, 0.0), 6.0)"


def addcmul(call: Call) -> str:
    base, left, right = (call.operand(index) for index in range(3))
    if call.number(3) == 1:
        return f"tl.fma({left}, {right}, {base})"
    return f"tl.fma({call.wide(3)}, {call.product(left, right)}, {base})"


def addcmul_integers(call: Call) -> str:
    base, left, right, value = (call.operand(index) for index in range(4))
    return f"({base} + {value} * ({left} * {right}))"


def addcdiv(call: Call) -> str:
    base, left, right = (call.operand(index) for index in range(3))
    if call.number(3) == 1:
        return f"({base} + divide({left}, {right}))"
    return f"tl.fma({call.wide(3)}, divide({left}, {right}), {base})"


def lerp_scalar(call: Call) -> str:
    start, end, weight = call.operand(0), call.operand(1), call.inner(call.number(2))
    if abs(weight) < 0.5:
        return f"tl.fma({call.constant(weight)}, {end} - {start}, {start})"
    return f"tl.fma(negated({end} - {start}), {call.constant(1 - weight)}, {end})"


def lerp_tensor(call: Call) -> str:
    start, end, weight = (call.operand(index) for index in range(3))
    near = f"tl.fma({weight}, {end} - {start}, {start})"
    far = f"tl.fma(negated({end} - {start}), 1.0 - {weight}, {end})"
    return f"tl.where(tl.abs({weight}) < 0.5, {near}, {far})"


def where(call: Call) -> str:
    return f"tl.where({call.truth(0)}, {call.operand(1)}, {call.operand(2)})"


def masked_fill(call: Call) -> str:
    return f"tl.where({call.truth(1)}, {call.operand(2)}, {call.operand(0)})"


def bitwise_not(call: Call) -> str:
    return f"({call.operand(0)} ^ {call.constant(-1)})"


def logical(sign: str) -> Callable[[Call], str]:
    """``sign`` of the truth of both operands."""
    return lambda call: f"({call.truth(0)} {sign} {call.truth(1)})"


def logical_not(call: Call) -> str:
    return f"(~{call.truth(0)})"


def copy(call: Call) -> str:
    if call.term(0).dtype != call.dtype:
        raise Refused(f"{call.target}: {call.term(0).dtype} is not {call.dtype}")
    return call.term(0).source


def cast(call: Call) -> str:
    """Also to and from the dtypes of 8 bits, with which torch does not compute; to those it rounds. What is too large
    for fp8e4m3 becomes NaN where the second argument is ``nan``, as in torch before 2.13, else the largest number."""
    term = call.term(0)
    if not term.dtype:
        raise Refused(f"{call.target}: no tensor")
    if call.dtype == "fp8e4m3" != term.dtype and len(call.terms) > 1 and call.word(1) == "nan":
        return f"cast_to_e4m3_or_nan({converted(term.source, term.dtype, 'fp32')}).to(tl.float32)"
    return converted(term.source, term.dtype, "fp32" if call.dtype in HALVES else call.dtype)
