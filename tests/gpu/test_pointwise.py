"""Expressions of elementwise ops, compiled, against eager on the card, over the grids of tests/codegen."""

import itertools
from collections.abc import Sequence

import pytest
import torch

from fusioncc.runtime.load import load
from tests.codegen.pointwise_cases import (
    DTYPES,
    ELEMENTS,
    FLOATS,
    INTEGERS,
    NAMES,
    Case,
    binary_cases,
    inputs_of,
    kernel,
    number_cases,
    operand,
    unary_cases,
)
from tests.codegen.pointwise_compare import describe, differs, taken, unspecified

COMPUTED = (*FLOATS, *INTEGERS, "bool")
SHARED = 60
"""Cases that share a kernel: its arguments must fit into 4 KiB, and ptxas is slow with many."""


def check(cases: Sequence[Case]) -> None:
    """The expressions of the exact tier give what CUDA eager gives; every op that fails is told, not the first only.

    Only cases that the CPU takes: it raises where a division of integers would stop the card.
    """
    chosen = [case for case, _ in taken(cases)]
    failures = [line for start in range(0, len(chosen), SHARED) for line in failed(chosen[start : start + SHARED])]
    assert not failures, "\n".join(failures)


def failed(cases: Sequence[Case]) -> list[str]:
    """What is wrong with the cases, evaluated in one kernel."""
    wanted = [case.eager("cuda") for case in cases]
    module = load("pointwise", kernel(cases, [NAMES[each.dtype] for each in wanted], True))
    outputs = [torch.empty(ELEMENTS, dtype=each.dtype, device="cuda") for each in wanted]
    inputs = [operand(each).cuda() for each in inputs_of(cases)]
    module.launch(inputs, outputs, 128, enable_reflect_ftz=False)
    lines = []
    for case, found, eager in zip(cases, outputs, wanted, strict=True):
        found, eager = found.cpu(), eager.cpu()
        wrong = differs(case, found, eager) & ~unspecified(case)
        if wrong.any():
            lines.append(describe(case, wrong, found, eager))
    return lines


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary(dtype: str) -> None:
    check(list(unary_cases(dtype)))


@pytest.mark.parametrize("dtype", COMPUTED)
def test_with_numbers(dtype: str) -> None:
    check(list(number_cases(dtype)))


@pytest.mark.parametrize("dtype", COMPUTED)
def test_binary(dtype: str) -> None:
    check(list(binary_cases(dtype, dtype)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("first", "second", "role"), list(itertools.product(COMPUTED, COMPUTED, ("column", "scalar"))))
def test_every_pair(first: str, second: str, role: str) -> None:
    check(list(binary_cases(first, second, role)))
