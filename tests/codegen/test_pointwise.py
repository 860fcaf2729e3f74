"""Expressions of elementwise ops, interpreted, against eager on the CPU, over grids of special values.

The expressions follow eager on CUDA, which CPU eager does not everywhere: ``cuda_result`` says what CUDA makes of these
ops, and ``quirks`` where CPU eager is left alone. tests/gpu/test_pointwise.py compares with CUDA itself.
"""

import itertools
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from _pytest.mark.structures import ParameterSet

from fusioncc.codegen.pointwise import Term, expression, fast, helpers, refusal, rounded, stored
from fusioncc.codegen.pointwise_table import TABLE
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.load import load
from fusioncc.runtime.numpy_libdevice import fma, interpreted_libdevice
from tests.codegen.pointwise_cases import (
    DTYPES,
    ELEMENTS,
    FLOATS,
    INTEGERS,
    NAMES,
    Case,
    Tensor,
    binary_cases,
    inputs_of,
    kernel,
    number_cases,
    operand,
    unary_cases,
)
from tests.codegen.pointwise_compare import describe, differs, taken, unspecified
from tests.shown import shown

COMPUTED = (*FLOATS, *INTEGERS, "bool")
PAIRS = (
    *((dtype, dtype, "column") for dtype in COMPUTED if dtype not in ("int16", "int32")),
    *(("bf16", "fp32", role) for role in ("column", "scalar")),
    *(("bf16", "fp16", "column"), ("bf16", "fp64", "scalar"), ("fp32", "int64", "column"), ("bf16", "int64", "column")),
    *(
        ("int32", "fp16", "scalar"),
        ("uint8", "int8", "column"),
        ("int8", "int64", "scalar"),
        ("bool", "int16", "column"),
    ),
)
UNROUNDED = {("round", "bf16"), ("round", "fp16"), ("tanh_backward", "bf16"), ("tanh_backward", "fp16")}
UNROUNDED |= {("sigmoid_backward", "bf16"), ("pow", "fp16")}
"""Ops that CUDA eager rounds to a half between their steps, as ATen's kernels say, and CPU eager does not: here they
are not of the exact tier."""


def evaluated(cases: Sequence[Case], dtypes: Sequence[torch.dtype], *, exact: bool) -> list[torch.Tensor]:
    """What the expressions of the cases give, in one interpreted kernel."""
    if not cases:
        return []
    module = load("pointwise", kernel(cases, [NAMES[dtype] for dtype in dtypes], exact))
    outputs = [torch.empty(ELEMENTS, dtype=dtype) for dtype in dtypes]
    with mended(), interpreted_libdevice():
        module.launch([operand(each) for each in inputs_of(cases)], outputs, ELEMENTS)
    return outputs


def check(cases: Sequence[Case]) -> None:
    """The expressions give what eager gives."""
    results = taken(cases)
    assert results
    for exact in (True, False):
        chosen = [each for each in results if exact != ((each[0].name, NAMES[each[1].dtype]) in UNROUNDED)]
        outputs = evaluated([case for case, _ in chosen], [result.dtype for _, result in chosen], exact=exact)
        for (case, eager), found in zip(chosen, outputs, strict=True):
            wanted = cuda_result(case, eager)
            wrong = differs(case, found, wanted, units(case)) & ~unspecified(case) & ~quirks(case, eager)
            assert not wrong.any(), describe(case, wrong, found, wanted)


def units(case: Case) -> float | None:
    """A last place of an exact result: CPU eager takes square roots from MKL, which rounds some of them the other way,
    and divides by a number before it takes the floor, where CUDA eager multiplies with the reciprocal."""
    by_number = not isinstance(case.args[-1], Tensor) and ("floor" in case.args or case.name == "floor_divide")
    return 1 if case.name == "sqrt" or by_number else None


HALVES = (torch.bfloat16, torch.float16)


RELU, CLAMPS = {"relu", "relu6"}, {"clamp", "clamp_min", "clamp_max", "hardtanh"}
"""Ops that make a positive zero of a negative one beside a bound of 0, as the card does (seen on an H200)."""


def cuda_result(case: Case, eager: torch.Tensor) -> torch.Tensor:
    """What CUDA eager makes of a case, as ATen's kernels say, where CPU eager makes something else of it."""
    name, dtype = case.name, eager.dtype
    if not dtype.is_floating_point or NAMES[dtype] not in FLOATS:
        return eager
    wide = torch.float32 if dtype in HALVES else dtype
    values = [operand(each).to(dtype).to(wide) if isinstance(each, Tensor) else each for each in case.args]
    if name in RELU or (name in CLAMPS and any(each == 0 for each in case.args[1:])):
        return torch.where(eager == 0, torch.zeros_like(eager), eager)
    if name == "floor_divide" or ("floor" in case.args and dtype in HALVES):  # no quotient is rounded to a half
        return case.overload(*values[:2], **({"rounding_mode": "floor"} if name == "div" else {})).to(dtype)
    if name in ("add", "sub", "rsub") and dtype in HALVES:  # numbers are not rounded to a half
        return case.overload(values[0], values[1], alpha=values[2]).to(dtype) if len(values) == 3 else eager
    if name in ("div", "true_divide") and not isinstance(values[1], torch.Tensor):  # by way of the reciprocal
        inverse = torch.ones((), dtype=wide) / torch.tensor(values[1], dtype=wide)
        mode = values[2] if len(values) == 3 else None
        quotient = values[0] * inverse
        return eager if mode == "floor" else (quotient if mode is None else quotient.trunc()).to(dtype)
    if name == "div" and dtype in HALVES and values[2:] == ["trunc"]:  # the quotient is rounded to a half first
        return (values[0] / values[1]).to(dtype).trunc()
    if name in ("hardswish", "hardsigmoid"):  # by way of a sixth of fp32
        sixth = torch.tensor(1 / 6, dtype=torch.float32).to(wide)
        gate = (values[0] + 3).clamp(0, 6)
        return ((values[0] * gate if name == "hardswish" else gate) * sixth).to(dtype)
    if name in ("addcmul", "addcdiv") and values[3] != 1:  # value * (a op b), joined in a fused multiply-add
        joined = values[1] * values[2] if name == "addcmul" else values[1] / values[2]
        value = np.asarray(values[3], dtype=joined.numpy().dtype)
        return torch.from_numpy(fma(value, joined.numpy(), values[0].numpy())).to(dtype)
    return eager


def quirks(case: Case, eager: torch.Tensor) -> torch.Tensor:
    """Where CPU eager is not what CUDA eager is, and is left out."""
    name = case.name
    none = torch.zeros(ELEMENTS, dtype=torch.bool)
    values = [operand(each).expand(ELEMENTS) for each in case.args if isinstance(each, Tensor)]
    first = values[0].double()
    if name in ("fmod", "remainder") and eager.is_floating_point():
        # Its vectors give NaN where the quotient overflows.
        return eager.isnan() & first.isfinite() & torch.stack([each.double() for each in values]).isfinite().all(0)
    if name in ("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "lerp") and len(values) > 1:
        return eager == 0  # the sign of a zero depends on the width of a vector
    if name == "gelu_backward" and "none" in case.args:
        return first.isinf()  # its vectors take small exponentials for zero
    if name == "erf" and eager.dtype == torch.bfloat16:
        return first.abs() < 2 * torch.finfo(torch.bfloat16).tiny  # flushed to zero
    if name == "pow" and eager.dtype == torch.float16 and case.args[1] in (0.5, -0.5):
        return first == 0  # as pow has it, not as sqrt has it: the sign of -0.0 is lost
    return none


STOOD_FOR = ("fp16", "fp64", "uint8", "int16", "int32", "int64")


def once_shown(dtypes: Sequence[str]) -> list[ParameterSet]:
    """The dtypes; those that another stands for are among the exhaustive tests."""
    return [pytest.param(each, marks=pytest.mark.exhaustive if each in STOOD_FOR else ()) for each in dtypes]


@pytest.mark.parametrize("dtype", once_shown(tuple(DTYPES)))
def test_unary(dtype: str) -> None:
    check(list(unary_cases(dtype)))


@pytest.mark.parametrize("dtype", once_shown(COMPUTED))
def test_with_numbers(dtype: str) -> None:
    check(list(number_cases(dtype)))


@pytest.mark.parametrize("pair", shown(PAIRS, 6, "-".join))
def test_binary(pair: tuple[str, str, str]) -> None:
    check(list(binary_cases(*pair)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("first", "second", "role"), list(itertools.product(COMPUTED, COMPUTED, ("column", "scalar"))))
def test_every_pair(first: str, second: str, role: str) -> None:
    check(list(binary_cases(first, second, role)))


def test_the_other_tier() -> None:
    """Without contraction, which the interpreter does not know, the tiers differ in roundings of halves only."""
    cases = [*unary_cases("fp32"), *number_cases("fp32"), *binary_cases("fp32", "fp32")]
    chosen, results = zip(*taken(cases), strict=True)
    dtypes = [result.dtype for result in results]
    for case, one, other in zip(
        chosen, evaluated(chosen, dtypes, exact=True), evaluated(chosen, dtypes, exact=False), strict=True
    ):
        assert not differs(case, one, other, 0).any(), case


def test_core_ops_are_in_the_table() -> None:
    core = [
        str(overload)
        for packet in (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for overload in (getattr(packet, name) for name in packet.overloads())
        if torch.Tag.core in overload.tags and torch.Tag.pointwise in overload.tags
    ]
    assert len(core) > 80
    assert [name for name in core if name not in TABLE and not name.endswith(".out")] == []


def test_every_op_of_the_table_is_tested() -> None:
    cases = [
        case
        for dtype in ("fp32", "int8", "bool")
        for case in (*unary_cases(dtype), *number_cases(dtype), *binary_cases(dtype, dtype))
    ]
    assert {case.target for case, _ in taken(cases)} == set(TABLE)


@pytest.mark.parametrize(
    ("target", "terms", "dtype", "reason"),
    [
        ("aten.cumsum.default", [Term("x", "fp32"), Term("0")], "fp32", "aten.cumsum.default has no expression"),
        ("aten.neg.default", [Term("x", "complex64")], "complex64", "aten.neg.default: no kernel holds complex64"),
        ("aten.neg.default", [Term("x", "fp32")], "", "aten.neg.default: no kernel holds a result without a dtype"),
        ("aten.neg.default", [Term("x", "bool")], "bool", "aten.neg.default is not for bool"),
        ("aten.neg.default", [], "fp32", "aten.neg.default: argument 0 is missing"),
        ("aten.exp.default", [Term("x", "fp8e5m2")], "fp32", "aten.exp.default: torch does not compute with fp8e5m2"),
        ("aten.eq.Scalar", [Term("1"), Term("2")], "bool", ""),
        ("aten.gelu.default", [Term("x", "fp32"), Term("'erf'")], "fp32", "aten.gelu.default: no approximation erf"),
        ("aten.pow.Tensor_Scalar", [Term("x", "int8"), Term("-1")], "int8", "torch refuses integers to negative"),
        (
            "aten.clamp.default",
            [Term("x", "fp32"), Term("y", "fp32"), Term("None")],
            "fp32",
            "argument 1 is no constant",
        ),
        ("aten.clamp.default", [Term("x", "fp32"), Term("None"), Term("None")], "fp32", "no bound"),
        (
            "aten.div.Tensor_mode",
            [Term("x", "fp32"), Term("y", "fp32"), Term("'ceil'")],
            "fp32",
            "no rounding mode ceil",
        ),
    ],
)
def test_refusals(target: str, terms: list[Term], dtype: str, reason: str) -> None:
    found = refusal(target, terms, dtype)
    assert reason in found
    assert bool(found) == bool(reason)


def test_helpers_are_ordered_and_told_once() -> None:
    source = expression("aten.silu_backward.default", [Term("g", "bf16"), Term("x", "bf16")], "bf16", exact=True)
    names = [each.split("def ")[1].split("(")[0] for each in helpers(source + source)]
    assert names == ["divide", "reciprocal", "negated", "sigmoid", "silu_backward"]


def test_the_approximations_of_the_card() -> None:
    source = expression("aten.silu.default", [Term("x", "bf16")], "bf16", exact=False)
    *functions, kernel = fast(f"y = {source}")
    text = "".join([*functions, kernel])
    assert [each.split("def ")[1].split("(")[0] for each in functions] == ["near_divide", "negated", "silu"]
    assert "tl.exp(" in text
    assert "libdevice" not in text
    assert "div_rn" not in text


def test_dtypes() -> None:
    assert rounded("x", "fp32") == stored("x", "fp32") == "x"
    assert rounded("x", "bf16") == "x.to(tl.bfloat16).to(tl.float32)"
    assert stored("x", "fp8e4m3") == "cast_to_e4m3(x)"


def test_numbers_of_eight_bits_are_those_of_torch() -> None:
    """Every bf16 number, which is every way to round."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for name in ("fp8e4m3", "fp8e5m2"):
        functions = "\n\n\n".join(helpers(stored("x", name)))
        source = (
            "import triton\nimport triton.language as tl\n\n\n"
            f"{functions}\n\n\n@triton.jit\ndef cast(x_ptr, y_ptr, N: tl.constexpr):\n"
            "    i = tl.arange(0, N)\n    x = tl.load(x_ptr + i)\n"
            f"    tl.store(y_ptr + i, {stored('x', name)})\n"
        )
        found = torch.empty(2**16, dtype=DTYPES[name])
        with mended(), interpreted_libdevice():
            load("cast", source).cast[(1,)](values.float(), found, N=2**16)
        wanted = values.to(DTYPES[name])
        number = ~wanted.float().isnan()
        assert torch.equal(found.view(torch.uint8)[number], wanted.view(torch.uint8)[number])
        assert found.float()[~number].isnan().all()


COMPILED = """
from fusioncc.codegen.pointwise import Term, expression
from tests.codegen.pointwise_build import compiled, ptx_of
from tests.codegen.pointwise_cases import binary_cases, number_cases, unary_cases
for dtype in {dtypes}:
    ptx = compiled([*unary_cases(dtype), *number_cases(dtype), *binary_cases(dtype, dtype)], {capability})
    assert "mul.rn.ftz" not in ptx
x, y = Term("x", "fp32"), Term("y", "fp32")
for exact in (True, False):  # a product that a sum follows
    product = expression("aten.mul.Tensor", [x, y], "fp32", exact=exact)
    ptx = ptx_of(expression("aten.add.Tensor", [Term(product, "fp32"), x, Term("1")], "fp32", exact=exact))
    assert ("fma.rn.f32" in ptx) != exact, ptx
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("dtypes", "capability"),
    [(tuple(DTYPES), 90), (tuple(dtype for dtype in DTYPES if dtype != "fp8e4m3"), 80)],
)
def test_expressions_compile(dtypes: tuple[str, ...], capability: int, compiler_environment: dict[str, str]) -> None:
    """One kernel for a dtype, with every op that takes it; Triton has no e4m3 below capability 89."""
    script = COMPILED.format(dtypes=dtypes, capability=capability)
    subprocess.run([sys.executable, "-c", script], env=compiler_environment, check=True, timeout=280)
