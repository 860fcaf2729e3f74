"""Cases of elementwise ops: what is asked of the table, its kernel as text, and what eager makes of it.

Operands run over grids of special values: every pair of a binary op's values occurs. Cases that share operands share a
kernel, since a launch costs more than its elements.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from fusioncc.codegen.pointwise import Term, expression, helpers, loaded, rounded, stored
from fusioncc.passes.read_ops import overflows

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("bf16", "fp16", "fp32", "fp64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
ELEMENTS = 1024
"""Of every operand: room for every pair of 32 values."""


@dataclass(frozen=True)
class Tensor:
    """A tensor operand: its dtype, and whether its values run along rows, columns or diagonals of the grid, along
    columns without 0 and -1, by which the CPU does not divide every integer (``"divisor"``), or it has no dimensions
    (``"scalar"``)."""

    dtype: str
    role: str

    @property
    def name(self) -> str:
        return f"{self.dtype}_{self.role}"


@dataclass(frozen=True)
class Case:
    """An op with its arguments in the order of its schema: tensors and constants."""

    target: str
    args: tuple[object, ...]

    @property
    def overload(self) -> torch._ops.OpOverload:
        namespace, name, overload = self.target.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)

    @property
    def name(self) -> str:
        """The op, without namespace and overload."""
        return self.target.split(".")[1]

    def __str__(self) -> str:
        shown = (each.name if isinstance(each, Tensor) else repr(each) for each in self.args)
        return f"{self.target}({', '.join(shown)})"

    def eager(self, device: str) -> torch.Tensor:
        """What eager makes of it.

        Raises:
            RuntimeError, NotImplementedError: it does not take these dtypes.
        """
        result = self.call({each: operand(each).to(device) for each in self.args if isinstance(each, Tensor)})
        return result if result.dim() else result.expand(ELEMENTS)

    def call(self, operands: Mapping["Tensor", torch.Tensor]) -> torch.Tensor:
        """The op of these operands."""
        values = [operands[each] if isinstance(each, Tensor) else each for each in self.args]
        parameters = self.overload._schema.arguments
        keywords = {each.name: value for each, value in zip(parameters, values, strict=False) if each.kwarg_only}
        return self.overload(*values[: len(values) - len(keywords)], **keywords)

    def terms(self) -> tuple[Term, ...]:
        return tuple(
            Term(each.name, each.dtype, each.role == "scalar") if isinstance(each, Tensor) else Term(constant(each))
            for each in self.args
        )


def constant(value: object) -> str:
    """A constant as a chain holds it; of the dtype of a cast, what becomes of overflow."""
    if isinstance(value, torch.dtype):
        return "nan" if value == torch.float8_e4m3fn and overflows() else "None"
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f"float('{value}')"
    return repr(value)


@cache
def specials(dtype: str) -> torch.Tensor:
    """Special values of a dtype, at most 32."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return torch.tensor([False, True])
    if dtype in INTEGERS:
        info = torch.iinfo(kind)
        values = [0, 1, 2, 3, 7, 8, 31, 63, 100, info.max - 1, info.max, info.min]
        return torch.tensor(values + ([-1, -2, -7, info.min + 1] if info.min else [200, 255]), dtype=kind)
    info = torch.finfo(kind)
    plain = [0.0, 1.0, 0.5, 1.5, 2.5, 0.1, 3.0, 7.3, 20.7, info.tiny, info.smallest_normal / 2, info.max, info.max / 3]
    values = [*plain, *(-each for each in plain), 88.5, 464.0, 472.0, 61440.0, float("inf"), float("nan")]
    if dtype == "fp8e4m3":
        values = [each for each in values if abs(each) <= 448 or each != each]
    return torch.tensor([*values, -float("inf")][:32], dtype=torch.float64).to(kind)


@cache
def operand(tensor: Tensor) -> torch.Tensor:
    """The operand's values: ``ELEMENTS`` of them, or one."""
    values = specials(tensor.dtype)
    index = torch.arange(ELEMENTS)
    if tensor.role == "scalar":
        return torch.tensor(2.5, dtype=torch.float64).to(DTYPES[tensor.dtype])
    if tensor.role == "divisor" and tensor.dtype in INTEGERS:
        values = values[(values != 0) & (values != -1)]
    column = index % 32
    chosen = {"column": column, "divisor": column, "row": index // 32, "diagonal": column + index // 32}[tensor.role]
    chosen = chosen % len(values)
    return values.view(torch.uint8)[chosen].view(values.dtype) if values.element_size() == 1 else values[chosen]


def kernel(cases: Sequence[Case], dtypes: Sequence[str], exact: bool) -> str:
    """A module whose ``launch(inputs, outputs)`` evaluates the cases; ``inputs`` are in the order of ``inputs_of``."""
    inputs = inputs_of(cases)
    sources = [
        expression(case.target, case.terms(), dtype, exact=exact) for case, dtype in zip(cases, dtypes, strict=True)
    ]
    finished = [stored(rounded(source, dtype), dtype) for source, dtype in zip(sources, dtypes, strict=True)]
    names = [*(f"{each.name}_ptr" for each in inputs), *(f"out_{i}" for i in range(len(cases)))]
    offsets = {each: "" if each.role == "scalar" else " + i" for each in inputs}
    loads = [f"{each.name} = {loaded(f'tl.load({each.name}_ptr{offsets[each]})', each.dtype)}" for each in inputs]
    stores = [f"tl.store(out_{i} + i, {source})" for i, source in enumerate(finished)]
    body = "\n    ".join(["i = tl.program_id(0) * N + tl.arange(0, N)", *loads, *stores])
    functions = "\n\n\n".join(helpers(" ".join(finished)))
    return f"""import triton
import triton.language as tl
from triton.language.extra import libdevice


{functions}


@triton.jit
def evaluate({", ".join(names)}, N: tl.constexpr):
    {body}


def launch(inputs, outputs, n, **options):
    evaluate[({ELEMENTS} // n,)](*inputs, *outputs, N=n, **options)
"""


def inputs_of(cases: Sequence[Case]) -> list[Tensor]:
    """The tensors that the cases read, each once."""
    return list(dict.fromkeys(each for case in cases for each in case.args if isinstance(each, Tensor)))


UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2"),
    *("expm1", "floor", "frac", "hardsigmoid", "hardswish", "isinf", "isnan", "log", "log10", "log1p", "log2", "mish"),
    *("logical_not", "bitwise_not", "neg", "reciprocal", "relu", "relu6", "round", "rsqrt", "sgn", "sigmoid", "sign"),
    *("signbit", "silu", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "alias", "detach"),
    *("lift_fresh_copy",),
)
BINARY = (
    *("atan2", "copysign.Tensor", "logical_and", "logical_or", "logical_xor", "maximum", "minimum"),
    *("clamp_min.Tensor", "clamp_max.Tensor", "pow.Tensor_Tensor", "sigmoid_backward", "tanh_backward"),
    *("silu_backward", "floor_divide", "div.Tensor", "true_divide.Tensor", "mul.Tensor", "fmod.Tensor"),
    *("remainder.Tensor", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "__lshift__.Tensor"),
    *("__rshift__.Tensor", *(f"bitwise_{word}.Tensor" for word in ("and", "or", "xor"))),
    *(f"{word}.Tensor" for word in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(f"__{word}__.Tensor" for word in ("and", "or", "xor")),
)
WITH_NUMBER = (
    *("copysign.Scalar", "div.Scalar", "true_divide.Scalar", "floor_divide.Scalar", "mul.Scalar", "mul.Tensor"),
    *("fmod.Scalar", "remainder.Scalar", "pow.Tensor_Scalar", "clamp_min", "clamp_max", "maximum", "atan2"),
    *("bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar", "__lshift__.Scalar", "div.Tensor"),
    *("__rshift__.Scalar", *(f"bitwise_{word}.Scalar" for word in ("and", "or", "xor"))),
    *(f"{word}.Scalar" for word in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(f"__{word}__.Scalar" for word in ("and", "or", "xor")),
)
NUMBERS = (0.1, 3, -2, 0, 300)
POWERS = (0, 1, 2, 3, 0.5, -0.5, -1, -2, 0.3, 7, 2.5)


def target(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def unary_cases(dtype: str) -> Iterator[Case]:
    x = Tensor(dtype, "row")
    yield from (Case(target(name), (x,)) for name in UNARY)
    yield Case("aten.clone.default", (x, None))
    yield from (Case("prims.convert_element_type.default", (x, kind)) for kind in DTYPES.values())
    yield from (Case("aten._to_copy.default", (x, kind)) for kind in DTYPES.values())
    yield Case("aten.to.dtype", (x, torch.float32, False, False, None))
    for low, high in ((0, 6), (-1.5, 2.5), (None, 1), (0.1, None), (float("nan"), 1.0), (3, -3)):
        yield Case("aten.clamp.default", (x, low, high))
    yield from (Case("aten.hardtanh.default", (x, low, high)) for low, high in ((-1, 1), (-0.3, 2)))
    yield from (Case("aten.leaky_relu.default", (x, slope)) for slope in (0.01, 2))
    yield from (Case("aten.elu.default", (x, *rest)) for rest in ((1, 1, 1), (1.7, 1.05, 0.9)))
    yield from (Case("aten.gelu.default", (x, kind)) for kind in ("none", "tanh"))
    yield from (Case("aten.softplus.default", (x, *rest)) for rest in ((1, 20), (0.7, 3)))
    yield from (Case("aten.threshold.default", (x, *rest)) for rest in ((0, 0), (1, 7)))
    yield from (Case("aten.nan_to_num.default", (x, *rest)) for rest in ((None,) * 3, (1.0, 2.0, -3.5)))
    yield from (Case("aten.round.decimals", (x, decimals)) for decimals in (0, 1, 3, -1))


def number_cases(dtype: str) -> Iterator[Case]:
    x, y = Tensor(dtype, "row"), Tensor(dtype, "diagonal")
    for name, number in itertools.product(WITH_NUMBER, NUMBERS):
        yield Case(target(name), (x, number))
    yield from (Case("aten.pow.Tensor_Scalar", (x, power)) for power in POWERS)
    yield from (Case("aten.pow.Scalar", (base, x)) for base in (2, 0.3, 1, -1.5))
    for name, number in itertools.product(("add", "sub", "rsub"), NUMBERS):
        yield Case(target(f"{name}.Scalar"), (x, number, 1))
        yield Case(target(f"{name}.Tensor"), (x, Tensor(dtype, "column"), number))
    yield Case("aten.add.Tensor", (x, 0.1, 1))
    yield Case("aten.add.Scalar", (x, 0.1, 3))
    for mode, number in itertools.product(("floor", "trunc", None), NUMBERS):
        yield Case("aten.div.Scalar_mode", (x, number, mode))
    condition = Tensor("bool", "diagonal")
    for number in NUMBERS:
        yield Case("aten.where.ScalarOther", (condition, x, number))
        yield Case("aten.where.ScalarSelf", (condition, number, x))
        yield Case("aten.masked_fill.Scalar", (x, condition, number))
        yield Case("aten.lerp.Scalar", (x, Tensor(dtype, "column"), number))
        yield Case("aten.addcmul.default", (y, x, Tensor(dtype, "column"), number))
        yield Case("aten.addcdiv.default", (y, x, Tensor(dtype, "column"), number))
    yield Case("aten.where.Scalar", (condition, 0.1, 7))
    yield Case("aten.where.Scalar", (condition, 1, 2))


def binary_cases(first: str, second: str, role: str = "column") -> Iterator[Case]:
    x, y, z = Tensor(first, "row"), Tensor(second, role), Tensor(first, "diagonal")
    yield from (Case(target(name), (x, y)) for name in BINARY)
    for name, alpha in itertools.product(("add", "sub", "rsub"), (1, 0.3, 2)):
        yield Case(target(f"{name}.Tensor"), (x, y, alpha))
    yield from (Case("aten.div.Tensor_mode", (x, y, mode)) for mode in ("floor", "trunc", None))
    yield from (Case("aten.gelu_backward.default", (x, y, kind)) for kind in ("none", "tanh"))
    yield Case("aten.where.self", (Tensor("bool", "diagonal"), x, y))
    yield Case("aten.masked_fill.Tensor", (x, Tensor("bool", "diagonal"), Tensor(second, "scalar")))
    yield Case("aten.clamp.Tensor", (z, x, y))
    yield Case("aten.clamp.Tensor", (x, y, None))
    yield Case("aten.clamp.Tensor", (x, None, y))
    yield Case("aten.lerp.Tensor", (x, y, z))
    yield from (Case("aten.addcmul.default", (z, x, y, value)) for value in (1, 0.3))
    yield from (Case("aten.addcdiv.default", (z, x, y, value)) for value in (1, 0.3))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield Case(f"aten.{name}.Scalar_Tensor", (-5, y))
    if second in INTEGERS and role == "column":
        divisor = Tensor(second, "divisor")
        yield from (Case(target(name), (x, divisor)) for name in ("floor_divide", "fmod.Tensor", "remainder.Tensor"))
        yield from (Case("aten.div.Tensor_mode", (x, divisor, mode)) for mode in ("floor", "trunc"))
