"""One elementwise op about to become an expression: its operands in the dtype in which eager computes."""

import math
from dataclasses import dataclass
from functools import cached_property

from fusioncc.codegen.pointwise_dtypes import (
    BITS,
    EIGHTS,
    TRITON,
    Number,
    Term,
    category,
    common,
    converted,
    held,
    in_dtype,
    literal,
    rounded,
    value_of,
)


class Refused(Exception):
    """There is no expression for an op; the message says why."""


@dataclass(frozen=True)
class Call:
    """An op with its terms, the dtype of its result and the tier.

    ``compares``: the op computes in the common dtype of its operands, not in that of its result.
    """

    target: str
    terms: tuple[Term, ...]
    dtype: str
    exact: bool
    compares: bool = False

    @cached_property
    def compute(self) -> str:
        """The dtype in which eager computes (a half in fp32, but with operands of the half)."""
        return common(self.terms) if self.compares else self.dtype

    @property
    def bits(self) -> int:
        """The width of the integers that it computes with."""
        return BITS[self.compute]

    def term(self, index: int) -> Term:
        """The argument.

        Raises:
            Refused: it is missing.
        """
        if index >= len(self.terms):
            raise Refused(f"{self.target}: argument {index} is missing")
        return self.terms[index]

    def is_number(self, index: int) -> bool:
        return not self.term(index).dtype and self.term(index).source != "None"

    def is_none(self, index: int) -> bool:
        return not self.term(index).dtype and self.term(index).source == "None"

    def number(self, index: int) -> Number:
        """The number that an argument stands for.

        Raises:
            Refused: it is none.
        """
        term = self.term(index)
        if term.dtype:
            raise Refused(f"{self.target}: argument {index} is no constant")
        try:
            return value_of(term)
        except ValueError:
            raise Refused(f"{self.target}: {term.source} is no number") from None

    def word(self, index: int) -> str:
        """The string or None that an argument stands for, without quotes."""
        return self.term(index).source.strip("'\"")

    def operand(self, index: int) -> str:
        """The argument cast to the dtype in which eager computes, a number too."""
        return self._operand(index, self.compute)

    def wide(self, index: int) -> str:
        """The argument as ``operand`` gives it, but a number as fp32 where the op computes with a half."""
        return self._operand(index, held(self.compute)) if self.is_number(index) else self.operand(index)

    def tensor(self, index: int) -> str:
        """The argument as ``operand`` gives it, but as something with a Triton dtype where it is a number."""
        source = self.operand(index)
        bare = self.is_number(index) and not source.startswith("tl.full")
        return f"tl.full((), {source}, {TRITON[held(self.compute)]})" if bare else source

    def truth(self, index: int) -> str:
        """The argument as a bool."""
        return self._operand(index, "bool")

    def _operand(self, index: int, dtype: str) -> str:
        term = self.term(index)
        if term.dtype:
            if term.dtype in EIGHTS:
                raise Refused(f"{self.target}: torch does not compute with {term.dtype}")
            return converted(term.source, term.dtype, dtype)
        return literal(in_dtype(self._finite(self.number(index), dtype), dtype), dtype)

    def _finite(self, value: Number, dtype: str) -> Number:
        if category(dtype) == 1 and not math.isfinite(value):
            raise Refused(f"{self.target}: {value} is no {dtype}")
        return value

    def constant(self, value: Number) -> str:
        """A number in the dtype in which a kernel holds what is computed."""
        return literal(value, held(self.compute))

    def inner(self, value: Number) -> float:
        """A number rounded as the kernel holds it."""
        return float(in_dtype(value, held(self.compute)))

    def product(self, left: str, right: str) -> str:
        """Of floats; no sum takes it in where the tier is exact."""
        return f"libdevice.mul_rn({left}, {right})" if self.exact else f"({left} * {right})"

    def between_steps(self, source: str) -> str:
        """``source`` as eager rounds it before the next operation, in the exact tier."""
        return rounded(source, self.compute) if self.exact else source
