"""The table of elementwise ops: a form for floats, one for integers and one for bools, where torch has one.

A form is a template, in which ``{a}``, ``{b}``, ``{c}`` are operands in the dtype in which eager computes and ``{A}``,
``{B}``, ``{C}`` the same with numbers that are not rounded to a half, ``{x}``, ``{y}`` with numbers as Triton tensors;
or a function of the call.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fusioncc.chain import CASTS
from fusioncc.codegen import pointwise_rules as rules
from fusioncc.codegen.pointwise_call import Call, Refused
from fusioncc.codegen.pointwise_dtypes import category

Form = str | Callable[[Call], str]
KINDS = ("bool", "integers", "floats")


@dataclass(frozen=True)
class Rule:
    """The forms of an op for each kind of dtype in which it computes; empty where torch has none."""

    floats: Form = ""
    integers: Form = ""
    bools: Form = ""
    compares: bool = False

    def source(self, call: Call) -> str:
        """The expression.

        Raises:
            Refused: the op has no form for this dtype, or not with these arguments.
        """
        if not call.compute:
            raise Refused(f"{call.target}: no operand has a dtype")
        form = (self.bools, self.integers, self.floats)[category(call.compute)]
        if not form:
            raise Refused(f"{call.target} is not for {call.compute}")
        return form.format_map(_Operands(call)) if isinstance(form, str) else form(call)


class _Operands(dict[str, str]):
    """The operands that a template names."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __missing__(self, key: str) -> str:
        if key == "bits":
            return str(self.call.bits)
        if key in "xy":
            return self.call.tensor("xy".index(key))
        index = "abc".index(key.lower())
        return self.call.operand(index) if key.islower() else self.call.wide(index)


def _everywhere(form: Form, *, compares: bool = False) -> Rule:
    return Rule(form, form, form, compares)


LIBDEVICE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1"),
    *("log", "log10", "log1p", "log2", "rsqrt", "sin", "sinh", "tan", "tanh"),
)
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BITWISE = {"and": "&", "or": "|", "xor": "^"}
COPIES = ("aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")
NEVER = _everywhere("({a} != {a})", compares=True)
CLAMP = Rule(rules.clamp, rules.clamp)
LEAST, MOST = Rule("at_least({a}, {B})", "at_least({a}, {b})"), Rule("at_most({a}, {B})", "at_most({a}, {b})")
LARGER = Rule("maximum({a}, {b})", "tl.maximum({a}, {b})", "({a} | {b})")
SMALLER = Rule("minimum({a}, {b})", "tl.minimum({a}, {b})", "({a} & {b})")
ADD, SUB, RSUB = (
    Rule(rules.add, rules.add, rules.add_bool),
    Rule(rules.sub, rules.sub),
    Rule(rules.rsub, rules.rsub),
)
MUL = Rule(rules.mul, "({a} * {b})", "({a} & {b})")
FLOOR_DIVIDE = Rule(rules.floor_divide, rules.floor_divide_integers)
DIVIDE_MODE = Rule(rules.divide_mode, rules.divide_mode)
LEFT, RIGHT = Rule(integers="shift_left({x}, {y}, {bits})"), Rule(integers="shift_right({x}, {y}, {bits})")
WHERE = _everywhere(rules.where)
MASKED_FILL = _everywhere(rules.masked_fill)

TABLE: dict[str, Rule] = {
    **{f"aten.{name}.default": Rule(f"libdevice.{name}({{a}})") for name in LIBDEVICE},
    **{
        f"aten.{name}.{overload}": _everywhere(f"({{a}} {sign} {{b}})", compares=True)
        for name, sign in COMPARISONS.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"aten.{name}.{overload}": Rule(integers=f"({{a}} {sign} {{b}})", bools=f"({{a}} {sign} {{b}})")
        for word, sign in BITWISE.items()
        for name in (f"bitwise_{word}", f"__{word}__")
        for overload in ("Tensor", "Scalar")
    },
    **{f"aten.logical_{word}.default": _everywhere(rules.logical(sign)) for word, sign in BITWISE.items()},
    **{name: _everywhere(rules.copy) for name in COPIES},
    **{name: _everywhere(rules.cast) for name in CASTS},
    **{f"aten.{name}.{overload}": ADD for name in ("add",) for overload in ("Tensor", "Scalar")},
    **{f"aten.sub.{overload}": SUB for overload in ("Tensor", "Scalar")},
    **{f"aten.rsub.{overload}": RSUB for overload in ("Tensor", "Scalar")},
    **{f"aten.mul.{overload}": MUL for overload in ("Tensor", "Scalar")},
    **{f"aten.{name}.{kind}": Rule(rules.divide) for name in ("div", "true_divide") for kind in ("Tensor", "Scalar")},
    **{f"aten.div.{overload}": DIVIDE_MODE for overload in ("Tensor_mode", "Scalar_mode")},
    **{f"aten.floor_divide.{overload}": FLOOR_DIVIDE for overload in ("default", "Scalar")},
    **{
        f"aten.fmod.{kind}": Rule("libdevice.fmod({a}, {b})", "integer_rest({x}, {y})") for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten.remainder.{overload}": Rule("float_remainder({a}, {y})", "integer_remainder({x}, {y})")
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"aten.pow.{overload}": Rule(rules.power, rules.integer_power)
        for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")
    },
    "aten.abs.default": Rule("tl.abs({a})", "tl.abs({a})", "{a}"),
    "aten.neg.default": Rule("negated({a})", "(0 - {a})"),
    "aten.sign.default": Rule("sign_of({a})", "sign_of({a})", "{a}"),
    "aten.sgn.default": Rule("sign_of({a})", "sign_of({a})", "{a}"),
    "aten.signbit.default": Rule("is_negative({a})", "({a} < 0)", "({a} != {a})", compares=True),
    "aten.ceil.default": Rule("tl.ceil({a})", "{a}"),
    "aten.floor.default": Rule("tl.floor({a})", "{a}"),
    "aten.trunc.default": Rule("libdevice.trunc({a})", "{a}"),
    "aten.round.default": Rule("libdevice.rint({a})", "{a}"),
    "aten.round.decimals": Rule(rules.round_decimals, "{a}"),
    "aten.frac.default": Rule("({a} - libdevice.trunc({a}))"),
    "aten.isnan.default": NEVER,
    "aten.isinf.default": Rule('(tl.abs({a}) == float("inf"))', NEVER.integers, NEVER.bools, compares=True),
    "aten.logical_not.default": _everywhere(rules.logical_not),
    "aten.bitwise_not.default": Rule(integers=rules.bitwise_not, bools="(~{a})"),
    "aten.reciprocal.default": Rule("reciprocal({a})"),
    "aten.sqrt.default": Rule("square_root({a})"),
    "aten.square.default": Rule(rules.square, "({a} * {a})"),
    "aten.atan2.default": Rule("libdevice.atan2({a}, {b})"),
    "aten.copysign.Tensor": Rule("with_sign({a}, {b})"),
    "aten.copysign.Scalar": Rule(rules.copysign),
    "aten.nan_to_num.default": Rule(rules.nan_to_num, "{a}", "{a}"),
    "aten.maximum.default": LARGER,
    "aten.minimum.default": SMALLER,
    "aten.clamp.default": CLAMP,
    "aten.clamp.Tensor": _everywhere(rules.clamp_tensors),
    "aten.clamp_min.default": LEAST,
    "aten.clamp_max.default": MOST,
    "aten.clamp_min.Tensor": LARGER,
    "aten.clamp_max.Tensor": SMALLER,
    "aten.hardtanh.default": CLAMP,
    "aten.relu6.default": Rule(rules.relu6, rules.relu6),
    "aten.relu.default": Rule("at_least({a}, 0.0)", "at_least({a}, 0)"),
    "aten.leaky_relu.default": Rule(rules.leaky_relu),
    "aten.elu.default": Rule(rules.elu),
    "aten.gelu.default": Rule(rules.gelu),
    "aten.gelu_backward.default": Rule(rules.gelu_backward),
    "aten.sigmoid.default": Rule("sigmoid({a})"),
    "aten.sigmoid_backward.default": Rule(rules.sigmoid_backward),
    "aten.tanh_backward.default": Rule(rules.tanh_backward),
    "aten.silu.default": Rule("silu({a})"),
    "aten.silu_backward.default": Rule("silu_backward({a}, {b})"),
    "aten.softplus.default": Rule("softplus({a}, {B}, {C})"),
    "aten.mish.default": Rule("mish({a})"),
    "aten.hardswish.default": Rule(rules.hardswish),
    "aten.hardsigmoid.default": Rule(rules.hardsigmoid),
    "aten.threshold.default": Rule("tl.where({a} <= {b}, {c}, {a})", "tl.where({a} <= {b}, {c}, {a})"),
    "aten.addcmul.default": Rule(rules.addcmul, rules.addcmul_integers),
    "aten.addcdiv.default": Rule(rules.addcdiv),
    "aten.lerp.Scalar": Rule(rules.lerp_scalar),
    "aten.lerp.Tensor": Rule(rules.lerp_tensor),
    **{f"aten.where.{overload}": WHERE for overload in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    **{f"aten.masked_fill.{overload}": MASKED_FILL for overload in ("Scalar", "Tensor")},
    **{
        f"aten.{name}.{overload}": rule
        for name, rule in (("bitwise_left_shift", LEFT), ("bitwise_right_shift", RIGHT))
        for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.{name}.{overload}": rule
        for name, rule in (("__lshift__", LEFT), ("__rshift__", RIGHT))
        for overload in ("Tensor", "Scalar")
    },
}
