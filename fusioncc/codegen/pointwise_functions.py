"""Device functions that expressions of elementwise ops call, where a line would be hard to read.

Floats are computed in the dtype of the operands, fp32 or fp64, as ATen's CUDA kernels compute them. A last product is
``mul_rn``: a following sum in the same kernel must not be contracted with it. No function calls one that stands below
it.
"""

import re

_BODIES = (
    """
def divide(a, b):
    # As IEEE has it; Triton's own fp32 division is approximate.
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)
""",
    """
def square_root(x):
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)
""",
    """
def reciprocal(x):
    return divide(tl.full((), 1.0, x.dtype), x)
""",
    """
def negated(x):
    # Triton's own minus is 0 - x, which is wrong for a zero.
    return x * -1.0
""",
    """
def is_negative(x):
    # The sign bit.
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0
""",
    """
def with_sign(x, sign):
    magnitude = tl.abs(x)
    return tl.where(is_negative(sign), negated(magnitude), magnitude)
""",
    """
def sign_of(x):
    # 0 for NaN and for a zero of either sign.
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
""",
    """
def maximum(a, b):
    return tl.where(a != a, a, tl.where(b != b, b, tl.maximum(a, b)))
""",
    """
def minimum(a, b):
    return tl.where(a != a, a, tl.where(b != b, b, tl.minimum(a, b)))
""",
    """
def at_least(x, low):
    # NaN stays; of two zeros the positive one is larger.
    if x.dtype == tl.float32:
        return tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x != x, x, tl.maximum(x, low))
""",
    """
def at_most(x, high):
    if x.dtype == tl.float32:
        return tl.minimum(x, high, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x != x, x, tl.minimum(x, high))
""",
    """
def between(x, low, high):
    # NaN in x wins over NaN in low, which wins over NaN in high.
    result = tl.minimum(tl.maximum(x, low), high)
    result = tl.where(high != high, high, result)
    result = tl.where(low != low, low, result)
    return tl.where(x != x, x, result)
""",
    """
def float_remainder(a, b):
    # Of the sign of b.
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)
""",
    """
def whole(quotient, exact):
    # A quotient that is whole but for rounding; the sign of a zero is that of the exact one.
    floor = tl.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1.0, floor)
    return tl.where(quotient != 0, floor, with_sign(tl.zeros_like(quotient), exact))
""",
    """
def float_floor_divide(a, b):
    rest = libdevice.fmod(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    exact = divide(a, b)
    return tl.where(b == 0, exact, whole(quotient, exact))
""",
    """
def floor_divide_by(a, b, inverse):
    # By a number that is not 0, by means of its reciprocal.
    rest = libdevice.fmod(a, b)
    quotient = libdevice.mul_rn(a - rest, inverse)
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    return whole(quotient, libdevice.mul_rn(a, inverse))
""",
    """
def integer_divide(a, b):
    # Towards zero. Division by zero, for which torch raises or leaves the result open, gives 0.
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))
""",
    """
def integer_rest(a, b):
    # Of the sign of a.
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))
""",
    """
def integer_floor_divide(a, b):
    rest = integer_rest(a, b)
    return integer_divide(a, b) - ((rest != 0) & ((rest < 0) != (b < 0))).to(a.dtype)
""",
    """
def integer_remainder(a, b):
    # Of the sign of b.
    rest = integer_rest(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    """
def integer_power(base, exponent, bits: tl.constexpr):
    # Wraps. A negative exponent gives 0, unless the base is 1 or -1.
    one = base * 0 + exponent * 0 + 1
    result = one
    factor = base * one
    rest = exponent * one
    for _ in tl.static_range(bits):
        result = tl.where((rest & 1) != 0, result * factor, result)
        factor = factor * factor
        rest = rest >> 1
    inverse = tl.where(((exponent & 1) == 0) | (base == 1), one, 0 - one)
    return tl.where(exponent < 0, tl.where((base == 1) | (base == 0 - one), inverse, 0 * one), result)
""",
    """
def shift_left(a, count, bits: tl.constexpr):
    # A count that is negative or too large leaves nothing.
    inside = (count >= 0) & (count < bits)
    return tl.where(inside, a << tl.where(inside, count, 0), 0)
""",
    """
def shift_right(a, count, bits: tl.constexpr):
    # A count that is negative or too large leaves the sign.
    inside = (count >= 0) & (count < bits)
    return tl.where(inside, a >> tl.where(inside, count, 0), 0 - (a < 0).to(a.dtype))
""",
    """
def sigmoid(x):
    return reciprocal(1.0 + libdevice.exp(negated(x)))
""",
    """
def silu(x):
    return divide(x, 1.0 + libdevice.exp(negated(x)))
""",
    """
def silu_backward(dy, x):
    gate = sigmoid(x)
    return libdevice.mul_rn(dy * gate, 1.0 + x * (1.0 - gate))
""",
    """
def softplus(x, beta, threshold):
    scaled = x * beta
    return tl.where(scaled > threshold, x, divide(libdevice.log1p(libdevice.exp(scaled)), beta))
""",
    """
def mish(x):
    return libdevice.mul_rn(x, libdevice.tanh(libdevice.log1p(libdevice.exp(x))))
""",
    """
def gelu(x):
    return libdevice.mul_rn(x * 0.5, 1.0 + libdevice.erf(x * 0.7071067811865476))
""",
    """
def gelu_tanh(x):
    inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
    return libdevice.mul_rn(0.5 * x, 1.0 + libdevice.tanh(inner))
""",
    """
def gelu_backward(dy, x):
    below = 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))
    density = libdevice.exp(-0.5 * x * x) * 0.3989422804014327
    return libdevice.mul_rn(dy, below + x * density)
""",
    """
def gelu_tanh_backward(dy, x):
    inner = libdevice.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x)))
    slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * (x * x))
    return libdevice.mul_rn(dy, 0.5 * (1.0 + inner) + 0.5 * x * (1.0 - inner * inner) * slope)
""",
    """
def cast_to_e4m3(x):
    # To nearest even; what is above 448, infinity too, becomes 448.
    return x.to(tl.float8e4nv)
""",
    """
def cast_to_e4m3_or_nan(x):
    # To nearest even; beyond 464, the middle of 448 and 480, there is only NaN.
    bits = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) <= 464.0, bits, bits | 0x7F).to(tl.float8e4nv, bitcast=True)
""",
    """
def cast_to_e5m2(x):
    # To nearest even; from 61440 on, the middle of 57344 and 65536, it is infinite.
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) >= 61440.0, (bits & 0x80) | 0x7C, bits).to(tl.float8e5, bitcast=True)
""",
)
FUNCTIONS = {body.split("(")[0].split()[-1]: f"@triton.jit{body}" for body in _BODIES}
"""Source of each device function under its name, in an order in which they can be defined."""
_CALL = re.compile(r"(?<![\w.])(\w+)\(")


def helpers(source: str) -> tuple[str, ...]:
    """Sources of the device functions that an expression calls, those that they call first, each once."""
    wanted: set[str] = set()
    waiting = _called(source)
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting |= _called(FUNCTIONS[name].partition(":\n")[2]) - wanted
    return tuple(body for name, body in FUNCTIONS.items() if name in wanted)


_NEAR = {"libdevice.exp(": "tl.exp(", "libdevice.rsqrt(": "tl.rsqrt(", "divide(": "near_divide("}
_NEAR_DIVIDE = """@triton.jit
def near_divide(a, b):
    # Within 2 units in the last place.
    return a / b
"""


def fast(kernel: str) -> tuple[str, ...]:
    """A kernel behind the device functions that it calls, with the card's own approximations of fp32, within 2 units in
    the last place: for results of 16 bits or fewer, which round far more away."""
    sources = [source for name, source in FUNCTIONS.items() if source in helpers(kernel) and name != "divide"]
    near = [_near(source) for source in (*sources, kernel)]
    return (*([_NEAR_DIVIDE] if any("near_divide(" in source for source in near) else []), *near)


def _near(source: str) -> str:
    for exact, near in _NEAR.items():
        source = re.sub(rf"(?<![\w.]){re.escape(exact)}", near, source)
    return source


def _called(source: str) -> set[str]:
    return {name for name in _CALL.findall(source) if name in FUNCTIONS}
