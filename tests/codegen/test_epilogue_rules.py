"""Epilogues without an emitted form are refused with the reason."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fusioncc.chain import Argument
from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Epilogue, Group, Operand
from fusioncc.schedule import Schedule
from tests.codegen.cases import DOWN, TILE, Main, group, inline, side_by_side, split
from tests.codegen.epilogue_cases import SWIGLU, ended, together

PAIR = ended(group(33, 200, Main(136), Main(136), Main(64)), (0, 1), *SWIGLU)
ADDED = ended(
    group(33, 200, Main(136)),
    (0,),
    ("mul.Tensor", (0, 1), "bf16"),
    reads=(Operand("z", (33, 136), (136, 1), "bf16"),),
)
WHOLE = together(inline(PAIR, TILE))


def with_end(value: Group, **changes: Any) -> Group:
    return replace(value, epilogues=(replace(value.epilogues[0], **changes),))


def with_chain(value: Group, **changes: Any) -> Group:
    return with_end(value, chain=replace(value.epilogues[0].chain, **changes))


def with_op(value: Group, **changes: Any) -> Group:
    chain = value.epilogues[0].chain
    return with_chain(value, ops=(replace(chain.ops[0], **changes), *chain.ops[1:]))


def reading(operand: Operand) -> Group:
    return with_chain(ADDED, inputs=(ADDED.epilogues[0].chain.inputs[0], operand))


def twice(value: Group) -> Group:
    end: Epilogue = value.epilogues[0]
    return replace(value, epilogues=(end, end))


FIRST, SECOND, NARROW = PAIR.mains
RESULT = PAIR.epilogues[0].chain.results[0]
REFUSED: dict[str, tuple[Group, str]] = {
    "listed twice": (with_end(PAIR, mains=(FIRST, FIRST)), "in one epilogue, once"),
    "two epilogues": (twice(PAIR), "in one epilogue, once"),
    "no member": (with_end(PAIR, mains=()), "lists main members"),
    "a down member": (with_end(PAIR, mains=(FIRST, FIRST + 1)), "lists main members"),
    "another N": (with_end(PAIR, mains=(FIRST, NARROW)), "have one N"),
    "a foreign output": (with_end(PAIR, kept=(NARROW,)), "are of members of the epilogue"),
    "a symbol": (replace(PAIR, m_symbol="s0"), "not for a symbol"),
    "another shape": (with_chain(PAIR, shape=(33, 64)), "have the shape"),
    "too few rows": (reading(Operand("z", (32, 136), (136, 1), "bf16")), "does not broadcast"),
    "three dimensions": (reading(Operand("z", (1, 33, 136), (0, 136, 1), "bf16")), "does not broadcast"),
    "no elements": (reading(Operand("z", (0, 136), (136, 1), "bf16")), "does not broadcast"),
    "nothing made": (with_chain(PAIR, results=()), "makes something"),
    "an input as a result": (with_chain(PAIR, results=(replace(RESULT, value=0),)), "a result of an epilogue"),
    "a reduction": (with_op(PAIR, target="aten.amax.default"), "reduces rows"),
    "a later value": (with_op(PAIR, args=(Argument(3),)), "not there yet"),
    "a bool result": (
        ended(group(33, 200, Main(136)), (0,), ("gt.Scalar", (0, "0"), "bool")),
        "no tile is stored as bool",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, reason = REFUSED[name]
    schedule = WHOLE if len(value.mains) == 3 else inline(value, TILE)
    with pytest.raises(EmissionError, match=reason):
        emit(value, schedule, name="k", tier="fp32", why="a test")


APART = ended(group(33, 200, Main(136, ()), Main(136, ())), (0, 1), *SWIGLU)
KINDS: dict[str, tuple[Group, Callable[[Group], Schedule], str]] = {
    "pools apart": (PAIR, lambda value: inline(value, TILE), "one main pool lists them"),
    "concat with a branch": (
        PAIR,
        lambda value: side_by_side(value, "concat", TILE, DOWN),
        "end with no epilogue in schedule 'concat'",
    ),
    "a K split": (
        APART,
        lambda value: side_by_side(value, "concat", TILE, DOWN, main_split=2),
        "end with no epilogue in schedule 'concat'",
    ),
    "not listed": (PAIR, lambda value: split(value, TILE, DOWN), "one main pool lists them"),
}


@pytest.mark.parametrize("name", KINDS)
def test_schedules_that_do_not_end_these_tiles(name: str) -> None:
    value, schedule, reason = KINDS[name]
    with pytest.raises(EmissionError, match=reason):
        emit(value, schedule(value), name="k", tier="fp32", why="a test")


@pytest.mark.parametrize("value", [PAIR, ADDED, with_end(PAIR, kept=(SECOND,))], ids=["pair", "added", "kept"])
def test_accepted(value: Group) -> None:
    assert emit(value, together(inline(value, TILE)), name="k", tier="fp32", why="a test").source
