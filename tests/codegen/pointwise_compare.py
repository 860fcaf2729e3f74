"""Results of elementwise cases beside those of eager: what it takes, how far they may differ, and what is open."""

from collections.abc import Sequence

import torch

from fusioncc.codegen.pointwise import refusal
from tests.codegen.pointwise_cases import ELEMENTS, NAMES, Case, Tensor, operand

TRANSCENDENTAL = {
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2", "cos", "cosh", "elu", "erf", "erfc", "exp", "exp2"),
    *("expm1", "gelu", "gelu_backward", "log", "log10", "log1p", "log2", "mish", "pow", "rsqrt", "sigmoid", "silu"),
    *("silu_backward", "sin", "sinh", "softplus", "tan", "tanh"),
}
"""Ops that two libraries may round differently: within 2 units in the last place of the result's dtype."""
CANCELLING = {"gelu", "gelu_backward", "silu_backward"}
"""Of those, the ops with a sum that cancels (``1 + erf(x)`` of a negative x): a last place of one of its terms, which
is at most about ``|x|`` (times ``|dy|``), is many of the result's. They are held to 8 of that term's besides."""


def differs(case: Case, found: torch.Tensor, wanted: torch.Tensor, units: float | None = None) -> torch.Tensor:
    """Where the results of a case differ: by ``units`` in the last place, or at all. Two NaN are equal; two zeros of
    unlike signs are not where results are held to be exact."""
    if not wanted.is_floating_point():
        return found != wanted
    name, info = case.name, torch.finfo(wanted.dtype)
    found, wanted = found.double(), wanted.double()
    nan, same = found.isnan() & wanted.isnan(), found == wanted
    if units is None and name not in TRANSCENDENTAL:
        return ~(same & (torch.signbit(found) == torch.signbit(wanted)) | nan)
    bound = (2 if units is None else units) * info.eps * wanted.abs().clamp(min=info.tiny, max=info.max)
    if name in CANCELLING:
        terms = [operand(each).double().abs().to(bound.device) for each in case.args if isinstance(each, Tensor)]
        bound = bound + 8 * info.eps * (terms[0] if len(terms) == 1 else terms[0] * terms[1].clamp(min=1))
    return ~(same | nan | ((found - wanted).abs() <= bound))


def unspecified(case: Case) -> torch.Tensor:
    """Where torch leaves the result open: a float that is cast to an integer which cannot hold it."""
    if case.name not in ("convert_element_type", "_to_copy", "to"):
        return torch.zeros(ELEMENTS, dtype=torch.bool)
    source, target = operand(case.args[0]), case.args[1]
    if not source.is_floating_point() or target == torch.bool or target.is_floating_point:
        return torch.zeros(ELEMENTS, dtype=torch.bool)
    info, value = torch.iinfo(target), source.double().trunc()
    return ~((value >= info.min) & (value <= info.max - (info.bits == 64)))


NOT_TAKEN = {"abs", "isnan", "isinf", "clamp"}
"""Ops that eager takes for numbers of 8 bits, with which no kernel computes; all else that eager takes has an
expression."""


def taken(cases: Sequence[Case]) -> list[tuple[Case, torch.Tensor]]:
    """The cases that CPU eager takes, with its results: those of ATen, since oneDNN, which some CPUs have for GELU,
    flushes subnormals and passes the range before its end."""
    results = []
    for case in cases:
        try:
            with torch.backends.mkldnn.flags(enabled=False):
                result = case.eager("cpu")
        except (RuntimeError, NotImplementedError):
            continue
        reason = refusal(case.target, case.terms(), NAMES[result.dtype])
        if not reason:
            results.append((case, result))
        else:
            assert "fp8" in reason and case.name in NOT_TAKEN, f"{case}: {reason}"
    return results


def describe(case: Case, wrong: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor) -> str:
    """The first elements that differ."""
    lines = [f"{case}: {int(wrong.sum())} elements"]
    for index in wrong.nonzero().flatten()[:5].tolist():
        values = [operand(each).expand(ELEMENTS)[index].item() for each in case.args if isinstance(each, Tensor)]
        lines.append(f"  {values}: {found[index].item()!r}, not {wanted[index].item()!r}")
    return "\n".join(lines)
