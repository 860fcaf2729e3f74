"""Epilogues without an emitted form are refused with the reason."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fusioncc.chain import ROTATE_HALF, Argument
from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Epilogue, Group, Operand
from fusioncc.schedule import Schedule
from tests.codegen.cases import DESCRIBED, DOWN, TILE, Main, group, inline, side_by_side, split
from tests.codegen.epilogue_cases import SWIGLU, ended, rotary, together

PAIR = ended(group(33, 200, Main(136), Main(136), Main(64)), (0, 1), *SWIGLU)
ADDED = ended(
    group(33, 200, Main(136)),
    (0,),
    ("mul.Tensor", (0, 1), "bf16"),
    reads=(Operand("z", (33, 136), (136, 1), "bf16"),),
)
TURNED = rotary(group(32, 200, Main(128)), 0, head=32, rows=16)
WHOLE = together(inline(PAIR, TILE))


def with_end(value: Group, **changes: Any) -> Group:
    return replace(value, epilogues=(replace(value.epilogues[0], **changes),))


def with_chain(value: Group, **changes: Any) -> Group:
    return with_end(value, chain=replace(value.epilogues[0].chain, **changes))


def with_op(value: Group, at: int = 0, **changes: Any) -> Group:
    ops = value.epilogues[0].chain.ops
    return with_chain(value, ops=(*ops[:at], replace(ops[at], **changes), *ops[at + 1 :]))


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
    "one row of any number": (
        replace(ended(group(1, 200, Main(136), Main(136), Main(64)), (0, 1), *SWIGLU), m_symbol="s0"),
        "of one row of any number",
    ),
    "another shape": (with_chain(PAIR, shape=(33, 64)), "have the shape"),
    "too few rows": (reading(Operand("z", (32, 136), (136, 1), "bf16")), "does not broadcast"),
    "a part of the rows that does not repeat": (
        reading(Operand("z", (22, 136), (136, 1), "bf16")),
        "does not broadcast",
    ),
    "three dimensions": (reading(Operand("z", (1, 33, 136), (0, 136, 1), "bf16")), "does not broadcast"),
    "no elements": (reading(Operand("z", (0, 136), (136, 1), "bf16")), "does not broadcast"),
    "nothing made": (with_chain(PAIR, results=()), "makes something"),
    "an input as a result": (with_chain(PAIR, results=(replace(RESULT, value=0),)), "a result of an epilogue"),
    "a reduction": (with_op(PAIR, target="aten.amax.default"), "reduces rows"),
    "a later value": (with_op(PAIR, args=(Argument(3),)), "not there yet"),
    "heads of 24": (with_op(TURNED, 1, args=(Argument(0), Argument(None, "24"))), "of a power of two columns each"),
    "heads of a word": (with_op(TURNED, 1, args=(Argument(0), Argument(None, "x"))), "of a power of two columns each"),
    "heads of no value": (with_op(TURNED, 1, args=(Argument(None, "32"),) * 2), "of a power of two columns each"),
    "wider heads than columns": (with_op(TURNED, 1, args=(Argument(0), Argument(None, "256"))), "has not"),
    "heads of two sizes": (
        with_op(TURNED, target=ROTATE_HALF, args=(Argument(0), Argument(None, "64"))),
        "another op those of another size",
    ),
    "heads of a vector": (with_op(TURNED, 1, args=(Argument(1), Argument(None, "32"))), "has not"),
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
    "parts of heads": (
        rotary(group(32, 208, Main(128)), 0, head=128),
        lambda value: split(value, DESCRIBED, DOWN),
        "rotate the halves of heads of 128",
    ),
    "not listed": (PAIR, lambda value: split(value, TILE, DOWN), "one main pool lists them"),
}


@pytest.mark.parametrize("name", KINDS)
def test_schedules_that_do_not_end_these_tiles(name: str) -> None:
    value, schedule, reason = KINDS[name]
    with pytest.raises(EmissionError, match=reason):
        emit(value, schedule(value), name="k", tier="fp32", why="a test")


@pytest.mark.parametrize(
    "value", [PAIR, ADDED, with_end(PAIR, kept=(SECOND,)), TURNED], ids=["pair", "added", "kept", "turned"]
)
def test_accepted(value: Group) -> None:
    assert emit(value, together(inline(value, TILE)), name="k", tier="fp32", why="a test").source
