"""Lines of random chains, by what they need and what may be said of their results.

``{x}``, ``{y}``, ``{w}`` are floats, ``{i}``, ``{j}`` integers, ``{b}``, ``{c}`` bools, ``{n}`` a number that every
dtype holds; ``{dtype}`` is a floating dtype, ``{whole}`` one of integers, ``{base}`` the shape to which all broadcast.
"""

EXACT = (
    *(
        "-{x}",
        "{x}.abs()",
        "torch.relu({x})",
        "{x}.clamp(-0.5, 2)",
        "{x}.clamp(min={n})",
        "torch.maximum({x}, {y}) + 0",
    ),
    *(
        "torch.minimum({x}, {y}) + 0",
        "torch.where({c}, {x}, {y})",
        "torch.where({c}, {x}, {n})",
        "{x}.masked_fill({c}, {n})",
    ),
    *("torch.clamp({x}, min={y}) + 0", "torch.clamp({x}, {y}, {w}) + 0", "F.hardtanh({x})", "torch.copysign({x}, {y})"),
    *("{x}.float()", "{x}.clone()", "{x}.nan_to_num(0.5, 2.0, -2.0)", "F.threshold({x}, 0.5, 2.0)", "F.relu6({x})"),
    *(
        "torch.where({c}, {x}, torch.zeros_like({x}))",
        "torch.where({x} > 0, {x}, torch.full({base}, {n}, device=x0.device))",
    ),
    *("{x}.expand({base})", "{x}.flip(-1)", "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)", "{x}[..., :1]"),
    *("{x}.amax(-1, keepdim=True) + 0", "{x}.amin(-1, keepdim=True) + 0", "{x}.detach()", "torch.where({c}, {n}, {x})"),
)
"""Of floats: what holds the values that went in, so that a comparison of the result has one answer. ``+ 0``: of two
zeros a maximum or minimum is either, on a CPU it depends on the dtype."""
ROUNDED = (
    *("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} * {n}", "{x} + {n}", "{n} - {x}", "{x} ** 2", "{x}.square()"),
    *("{x} / ({y}.abs() + 0.5)", "{x}.to({dtype})", "{x} * {i}", "{i} + {x}", "{i}.to({dtype})", "{c}.to({dtype})"),
    *("{i} * 0.5", "{x} * {c}", "({x}.abs() + 0.5).reciprocal()", "{i} / ({j}.abs() + 1)", "{x} * 2 - {x}"),
    *(
        "F.leaky_relu({x}, 0.25)",
        "1 / ({x}.abs() + 1)",
        "torch.full({base}, 0.1, dtype={dtype}, device=x0.device) * {x}",
    ),
)
"""Of floats, to floats: rounded once or twice; a bitwise copy of eager on any device."""
INEXACT = (
    *(
        "torch.exp({x}.clamp(-5, 5))",
        "torch.log({x}.abs() + 0.1)",
        "torch.sin({x})",
        "torch.cos({x})",
        "torch.tanh({x})",
    ),
    *(
        "torch.sigmoid({x})",
        "F.silu({x})",
        "F.gelu({x})",
        "F.gelu({x}, approximate='tanh')",
        "torch.erf({x})",
        "{x} / 3",
    ),
    *("torch.rsqrt({x}.abs() + 0.1)", "torch.log1p({x}.abs())", "torch.expm1({x}.clamp(max=3))", "F.elu({x})"),
    *("torch.pow({x}.abs() + 0.1, {y}.clamp(-2, 2))", "F.softplus({x})", "F.mish({x})", "F.hardswish({x})"),
    *("F.hardsigmoid({x})", "torch.atan2({x}, {y}.abs() + 0.5)", "torch.add({x}, {y}, alpha=0.3)", "{x}.abs() ** 1.5"),
    *("torch.addcmul({x}, {y}, {w}, value=0.5)", "torch.lerp({x}, {x}.abs(), 0.3)", "F.silu({x}) * {y}"),
    *("{x} * 0.3", "{x} + 0.7", "F.leaky_relu({x}, 0.1)", "({x}.abs() + 0.1).sqrt()", "0.3 - {x}"),
    *("torch.addcdiv({x}, {y}, {w}.abs() + 0.5)", "torch.log2({x}.abs() + 0.1)", "2.0 ** {x}.clamp(-4, 4)"),
)
"""Differ in the last bits between devices: libdevice for functions, and the CPU's square root of fp32 is not always
the nearest. On CUDA eager divides by a number by means of its reciprocal; has ``alpha``, addcmul, addcdiv and lerp as
fused multiply-adds; and does not round a number beside a half to that half, as the CPU does."""
SUMMED = (
    *(
        "{x}.sum(-1, keepdim=True)",
        "{x}.mean(-1, keepdim=True)",
        "{x}.softmax(-1)",
        "F.layer_norm({x}, ({x}.shape[-1],))",
    ),
    *(
        "{x} * torch.rsqrt({x}.square().mean(-1, keepdim=True) + 0.1)",
        "{x}.float().var(-1, keepdim=True, correction=0)",
    ),
    *("{x}.float().sum(-1, keepdim=True).to({dtype})", "{x} - {x}.mean(-1, keepdim=True)"),
)
"""Add up rows in an order of their own."""
JUMPS = (
    *("{x}.floor()", "{x}.ceil()", "{x}.round()", "{x}.trunc()", "{x}.sign()", "{x} > {y}", "{x} <= {n}", "{x} == {y}"),
    *("{x}.nan_to_num(0, 9, -9).clamp(-99, 99).to({whole})", "{x}.bool()", "{x}.isnan()", "{x}.logical_not()"),
    *("torch.fmod({x}, {y}.abs() + 0.5)", "{x} >= {i}", "{x} != 0.5", "{x}.isinf()", "torch.logical_and({x}, {c})"),
)
"""Of floats, which must be exact: where they jump."""
WHOLE = (
    *(
        "{i} + {j}",
        "{i} - {j}",
        "{i} * {j}",
        "{i} + {c}",
        "-{i}",
        "{i}.abs()",
        "{i}.clamp(-3, 5)",
        "{i} * 3",
        "{i} // 3",
    ),
    *("{i} // ({j}.abs() + 1)", "{i} % ({j}.abs() + 1)", "{i} & {j}", "{i} | 5", "{i} ^ {j}", "~{i}", "{i} << 2"),
    *("{i} >> 1", "torch.maximum({i}, {j})", "torch.where({c}, {i}, {j})", "{i} > {j}", "{i} == 0", "{i}.to({whole})"),
    *("{i}.bool()", "{c} & {b}", "{c} | {b}", "~{c}", "{c}.to({whole})", "torch.logical_xor({c}, {b})", "{i} <= {j}"),
    *(
        "{c}.logical_not()",
        "{i}.expand({base})",
        "torch.where({c}, 1, {i})",
        "torch.div({i}, 2, rounding_mode='trunc')",
    ),
    *(
        "{i}.masked_fill({c}, 7)",
        "torch.where({b}, {c}, torch.full({base}, True, device=x0.device))",
        "{i} + torch.ones_like({i})",
    ),
)
"""Of integers and bools, to the same."""
NUMBERS = (0.5, 2, -1, 3.0, 0.25, -1.5, True)
WHOLES = ("torch.int32", "torch.int64", "torch.int16", "torch.uint8")
FLOATS = ("torch.bfloat16", "torch.float16", "torch.float32")
