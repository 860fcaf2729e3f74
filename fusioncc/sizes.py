"""Sizes and strides of tensors as numbers: what is symbolic counts as its hint, and is equal as an expression.

A rule that compares them proves something of every number of rows, a model that multiplies them ranks with the hints,
and neither adds a guard.
"""

from collections.abc import Iterable
from typing import Any

from fusioncc.graph import is_static, size_hint


class Symbolic(int):
    """The hint of a symbolic size, equal to what provably has the same expression, and to no number."""

    expression: Any

    def __new__(cls, hint: int, expression: Any) -> "Symbolic":
        made = super().__new__(cls, hint)
        made.expression = expression
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbolic) and bool(self.expression == other.expression)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __mul__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        if other == 0:
            return 0
        factor = other.expression if isinstance(other, Symbolic) else other
        return Symbolic(int(self) * int(other), self.expression * factor)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return str(self.expression)


def is_known(size: Any) -> bool:
    """Whether a size is a number, or symbolic with a hint; one that depends on data has none."""
    return size_hint(size) is not None


def sizes_of(sizes: Iterable[Any]) -> tuple[int, ...]:
    """Sizes or strides of a tensor, all of them known."""
    return tuple(map(_size, sizes))


def _size(size: Any) -> int:
    hint = size_hint(size)
    assert hint is not None
    return hint if is_static(size) else Symbolic(hint, size.node.expr)
