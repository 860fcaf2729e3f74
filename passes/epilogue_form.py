"""A chain behind the products of a group as an epilogue of its tiles: written for matrices, the products first."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from torch import fx

from fusioncc.chain import Argument, Chain
from fusioncc.codegen.epilogue_rules import STORED
from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import VIEWS, keeps_order
from fusioncc.group import Epilogue, Group, Operand


@dataclass(frozen=True)
class Behind:
    """A chain, and the main members of a group that make some of its inputs: by the number of the input."""

    group: Group
    chain: Chain
    mains: dict[int, int]
    written_between: bool
    """Whether something is written in place between the group and the end of the chain."""


def unwritten_between(behind: Behind) -> Decision:
    """The group and the chain become one node of the graph."""
    if behind.written_between:
        return _rejected(
            "unwritten_between", behind, "something is written in place between the products and the chain"
        )
    return Accepted("unwritten_between")


def static_rows(behind: Behind) -> Decision:
    """Sizes of a chain are numbers."""
    if behind.group.m_symbol:
        return _rejected("static_rows", behind, f"the number of rows is symbolic ({behind.group.m_symbol})")
    return Accepted("static_rows")


def elementwise(behind: Behind) -> Decision:
    """A tile holds a part of a row, so nothing is reduced along it."""
    reduction = next((op for op in behind.chain.ops if op.reduces), None)
    if reduction is not None:
        return Rejected("elementwise", reduction.node, "a tile has no whole rows to reduce")
    return Accepted("elementwise")


def read_once(behind: Behind) -> Decision:
    """Each product comes in by one view, and belongs to no other epilogue."""
    mains = [*behind.mains.values()]
    if len(set(mains)) < len(mains):
        return _rejected("read_once", behind, "the chain reads one product through two views")
    if any(behind.group.epilogue_of(main) for main in mains):
        return _rejected("read_once", behind, "a product ends with another chain already")
    return Accepted("read_once")


def same_tiles(behind: Behind) -> Decision:
    """All products and results have the shape of the chain: one tile of each is one part of it."""
    widths = {behind.group.members[main].n for main in behind.mains.values()}
    shape = behind.chain.shape
    if len(widths) > 1:
        return _rejected("same_tiles", behind, f"products of {_listed(widths)} columns have no tiles in common")
    if prod(shape[:-1]) != behind.group.m or shape[-1:] != tuple(widths):
        return _rejected("same_tiles", behind, f"the chain has the shape {list(shape)}, not that of the products")
    for result in behind.chain.results:
        if behind.chain.shape_of(result.value) != shape or result.strides != _dense(shape):
            return Rejected("same_tiles", result.node, "a result does not lie row by row like the products")
    return Accepted("same_tiles")


def storable(behind: Behind) -> Decision:
    """Tiles are stored in these dtypes."""
    for result in behind.chain.results:
        dtype = behind.chain.dtype_of(result.value)
        if dtype not in STORED:
            return Rejected(
                "storable", result.node, f"no tile is stored as {dtype}; stored dtypes: {', '.join(STORED)}"
            )
    return Accepted("storable")


def in_rows(behind: Behind) -> Decision:
    """Whatever else is read repeats along rows or columns as a whole, at one stride along each."""
    for at, operand in enumerate(behind.chain.inputs):
        if at not in behind.mains and _matrix(operand, behind.chain.shape) is None:
            return Rejected("in_rows", operand.node, f"{list(operand.shape)} has no one stride along the rows")
    return Accepted("in_rows")


RULES = (unwritten_between, static_rows, elementwise, read_once, same_tiles, storable, in_rows)


def first_refusal(behind: Behind) -> Rejected | None:
    """What the first rule that does not hold says."""
    return next((decided for rule in RULES if isinstance(decided := rule(behind), Rejected)), None)


def as_epilogue(behind: Behind, kept: tuple[int, ...]) -> Epilogue:
    """The epilogue, where no rule refuses."""
    chain, mains = behind.chain, behind.mains
    order = [*mains, *(at for at in range(len(chain.inputs)) if at not in mains)]
    place = {old: new for new, old in enumerate(order)}
    rows = (behind.group.m, chain.shape[-1])

    def matrix(at: int) -> Operand:
        found = _matrix(chain.inputs[at], chain.shape)
        assert found is not None
        return found

    def renumbered(argument: Argument) -> Argument:
        value = argument.value
        return argument if value is None else replace(argument, value=place.get(value, value))

    ops = tuple(
        replace(op, args=tuple(map(renumbered, op.args)), shape=_flat(op.shape, chain.shape)) for op in chain.ops
    )
    results = tuple(replace(result, strides=(rows[1], 1)) for result in chain.results)
    written = Chain(chain.name, rows, tuple(map(matrix, order)), ops, results)
    return Epilogue(tuple(mains.values()), written, kept)


def views_of(node: fx.Node) -> list[fx.Node]:
    """The node and what it is a view of with the elements in order, down to the last that is no view."""
    found = [node]
    while found[-1].target in VIEWS and keeps_order(found[-1]):
        found.append(found[-1].args[0])  # type: ignore[arg-type]
    return found


def _matrix(operand: Operand, whole: tuple[int, ...]) -> Operand | None:
    """The operand as ``[M or 1, N or 1]`` or a scalar; None where its rows have no one stride."""
    if not operand.shape:
        return operand
    shape = (1,) * (len(whole) - len(operand.shape)) + operand.shape
    strides = (0,) * (len(whole) - len(operand.shape)) + operand.strides
    leading = [(size, step, full) for size, step, full in zip(shape, strides, whole, strict=True)][:-1]
    long = [each for each in leading if each[2] > 1]
    along = [size > 1 for size, _, _ in long]
    if any(along) and not all(along):
        return None
    if any(along) and any(outer[1] != inner[1] * inner[0] for outer, inner in pairwise(long)):
        return None
    rows, step = (prod(whole[:-1]), long[-1][1]) if any(along) else (1, 0)
    if (any(along) and step == 0) or (shape[-1] > 1 and strides[-1] == 0):
        return None
    return replace(operand, shape=(rows, shape[-1]), strides=(step, strides[-1]))


def _flat(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a value as that of a matrix."""
    if not shape:
        return ()
    shape = (1,) * (len(whole) - len(shape)) + shape
    return (prod(shape[:-1]), shape[-1])


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def _rejected(rule: str, behind: Behind, reason: str) -> Rejected:
    return Rejected(rule, behind.chain.ops[0].node, reason)


def _listed(sizes: set[int]) -> str:
    return " and ".join(map(str, sorted(sizes)))
