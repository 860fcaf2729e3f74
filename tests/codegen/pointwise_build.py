"""Elementwise expressions compiled for cards that are not here; in a process of its own, for triton interprets or
compiles."""

from collections.abc import Sequence

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fusioncc.codegen.pointwise import refusal
from fusioncc.runtime.load import load
from tests.codegen.pointwise_cases import NAMES, Case, inputs_of, kernel

POINTERS = {"bool": "i1", "uint8": "u8", "fp8e4m3": "fp8e4nv", "fp8e5m2": "fp8e5"}
POINTERS |= {f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}


def compiled(cases: Sequence[Case], capability: int) -> str:
    """PTX of one kernel with an expression of each op, of the first case that eager and the table take."""
    results: dict[Case, str] = {}
    for case in cases:
        if any(case.target == known.target for known in results):
            continue
        try:
            dtype = NAMES[case.eager("cpu").dtype]
        except (RuntimeError, NotImplementedError):
            continue
        known = capability >= 89 or dtype != "fp8e4m3"
        if known and not refusal(case.target, case.terms(), dtype):
            results[case] = dtype
    pointers = {f"{each.name}_ptr": each.dtype for each in inputs_of(list(results))}
    pointers |= {f"out_{index}": dtype for index, dtype in enumerate(results.values())}
    source = kernel(list(results), list(results.values()), True)
    return _ptx(source, pointers, capability)


def ptx_of(expression: str) -> str:
    """PTX of a kernel that stores an expression of fp32 ``x`` and ``y``."""
    source = f"""import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def evaluate(x_ptr, y_ptr, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out + i, {expression})
"""
    return _ptx(source, dict.fromkeys(("x_ptr", "y_ptr", "out"), "fp32"), 90)


def _ptx(source: str, pointers: dict[str, str], capability: int) -> str:
    signature = {name: f"*{POINTERS.get(dtype, dtype)}" for name, dtype in pointers.items()}
    built = triton.compile(
        ASTSource(load("pointwise", source).evaluate, {**signature, "N": "constexpr"}, {"N": 128}),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": 4, "enable_reflect_ftz": False},
    )
    return str(built.asm["ptx"])
