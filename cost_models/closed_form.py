"""Bytes of a schedule in closed form: through the memory and through the L2, in M, N, K, r and the bytes of an element.

The launches are those of the numeric model (``launches``), described for a group whose sizes are letters; the walks
over them are those at the group's own sizes. A form holds while no walk changes: while what fits into the L2 still
fits, and a vendor GEMM keeps its tiles.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import sympy

from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.letters import PADDED, Letters, lettered
from fusioncc.cost_models.walk import Walk, dram_bytes, l2_bytes, walks
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Schedule, padded_rank


@dataclass(frozen=True)
class ClosedForm:
    """The launches of a schedule in letters, and the walks over them."""

    kind: str
    launches: tuple[Launch, ...]
    walks: tuple[Walk, ...]
    letters: Letters

    @cached_property
    def dram(self) -> Any:
        """Bytes through the memory: each operand once, unless an earlier launch left it in the L2; a weight that the
        L2 cannot hold once for each group of row blocks; each result."""
        return _sum(map(dram_bytes, self.launches, self.walks))

    @cached_property
    def l2(self) -> Any:
        """Bytes through the L2: operands as often as the tiles of a launch draw them in their K loops."""
        return _sum(l2_bytes(*pair, sympy.Min) for pair in zip(self.launches, self.walks, strict=True))

    def number(self, expression: Any, values: Mapping[Any, int] | None = None) -> Any:
        """An expression in these letters at the group's own sizes, or at others: a sympy number, or an expression in
        the letters that ``values`` lack."""
        return number(expression, self.letters.values if values is None else values)


def closed_form(group: Group, schedule: Schedule, device: Device, tier: str = "fp32") -> ClosedForm | None:
    """Traffic of ``group`` under ``schedule``; None: cannot be estimated."""
    found = walks(launches(group, schedule, tier), device)
    if found is None:
        return None
    letters = lettered(group)
    named = map(letters.launch, launches(letters.group, schedule, tier))
    return ClosedForm(schedule.kind, tuple(named), found, letters)


def _sum(counts: Iterable[Any]) -> Any:
    return tidy(sum(counts, start=sympy.Integer(0)))


X, BLOCKS = sympy.Wild("x"), sympy.Wild("b", properties=[lambda each: each.is_Rational and each.p == 1])


def tidy(expression: Any) -> Any:
    """Blocks as ``ceiling``, not as the floors of negative numbers that Python divides by; blocks of blocks as one."""
    ceilings = expression.replace(sympy.floor, lambda inner: -sympy.ceiling(-inner))
    return ceilings.replace(sympy.ceiling(BLOCKS * sympy.ceiling(X)), sympy.ceiling(BLOCKS * X))


def number(expression: Any, values: Mapping[Any, int]) -> Any:
    """The expression at these sizes."""

    def padded(rank: Any) -> Any:
        return sympy.Integer(padded_rank(int(rank))) if rank.is_Integer else PADDED(rank)

    exact = {symbol: sympy.Integer(size) for symbol, size in values.items()}
    return expression.xreplace(exact).replace(PADDED, padded)


def by_dtype(expression: Any, letters: Letters) -> str:
    """What each dtype has to move: ``bf16·(K·M + K·N) + 2·M·fp32·padded(r)``."""
    collected = reduce(sympy.collect, letters.elements.values(), sympy.expand(expression))
    return in_words(collected)


def by_launch(expression: Any) -> str:
    """What launches draw, the tiles and K steps of each as factors."""
    return in_words(sympy.Add(*map(sympy.factor_terms, sympy.Add.make_args(expression))))


def in_words(expression: Any) -> str:
    """An expression as text."""
    return str(expression).replace("*", "·").replace("ceiling(", "ceil(")
