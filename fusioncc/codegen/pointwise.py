"""Elementwise ATen ops as Triton expressions: from an op, its arguments and its dtype in eager to source.

Operands come held (see ``pointwise_dtypes``), and so is the result, which is not rounded. The numbers are those of
eager on CUDA. In the exact tier a product is ``libdevice.mul_rn``, which no sum takes in; libdevice takes denormal
numbers for zero unless the kernel is launched with ``enable_reflect_ftz=False``.
"""

import re
from collections.abc import Sequence

from fusioncc.codegen.pointwise_call import Call, Refused
from fusioncc.codegen.pointwise_dtypes import (
    EIGHTS,
    TRITON,
    Term,
    held,
    in_dtype,
    literal,
    loaded,
    rounded,
    stored,
    value_of,
)
from fusioncc.codegen.pointwise_functions import fast, helpers
from fusioncc.codegen.pointwise_table import TABLE

__all__ = [
    "EIGHTS",
    "TABLE",
    "TRITON",
    "Term",
    "constant",
    "expression",
    "fast",
    "held",
    "helpers",
    "loaded",
    "refusal",
    "rounded",
    "stored",
]
_NAME = re.compile(r"\w+")


def refusal(target: str, terms: Sequence[Term], dtype: str) -> str:
    """Why there is no expression; empty if there is one."""
    try:
        expression(target, terms, dtype, exact=True)
    except Refused as refused:
        return str(refused)
    return ""


def expression(target: str, terms: Sequence[Term], dtype: str, *, exact: bool) -> str:
    """Triton source of the result of ``target``, held as ``dtype`` is. ``terms`` are all arguments of its schema.

    ``exact``: rounded between its steps as eager rounds, and safe from contraction with what follows.

    Raises:
        Refused: there is none (see ``refusal``).
    """
    rule = TABLE.get(target)
    if rule is None:
        raise Refused(f"{target} has no expression")
    for each in (dtype, *(term.dtype for term in terms if term.dtype)):
        if each not in TRITON:
            raise Refused(f"{target}: no kernel holds {each or 'a result without a dtype'}")
    call = Call(target, tuple(_atom(term) for term in terms), dtype, exact, rule.compares)
    return rule.source(call)


def constant(source: str, dtype: str) -> str:
    """Triton source of the number that a tensor of one constant holds: in either tier as that dtype has it."""
    return literal(in_dtype(value_of(Term(source)), dtype), dtype)


def _atom(term: Term) -> Term:
    """The term with its source in parentheses, unless it is a name or a constant."""
    if not term.dtype or _NAME.fullmatch(term.source):
        return term
    return Term(f"({term.source})", term.dtype, term.scalar)
