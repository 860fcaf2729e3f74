"""A chain behind the products of a group as an epilogue of its tiles: written for matrices, the products first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from torch import fx

from fusioncc.chain import ROTATE_HALF, Argument, Chain
from fusioncc.codegen.epilogue_rules import STORED
from fusioncc.codegen.pool_rules import MAX_BLOCK
from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import PERMUTES, VIEWS, copies, memory_order
from fusioncc.group import Epilogue, Group, Operand
from fusioncc.sizes import Symbolic


@dataclass(frozen=True)
class Sides:
    """The dimensions of a chain's shape that make up the rows of the products, and those that make up their columns,
    outermost first: of ``[B, H, S, D]``, the heads of ``[B * S, H * D]``, the dimensions 0 and 2, and 1 and 3."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Behind:
    """A chain, and the main members of a group that make some of its inputs: by the number of the input. Its sizes are
    those of the graph: symbolic ones are equal as expressions, of which the epilogue has the hints."""

    group: Group
    chain: Chain
    mains: dict[int, int]
    m: int
    """The number of rows, symbolic where the group's is."""
    written_between: bool
    """Whether something is written in place between the group and the end of the chain."""

    @cached_property
    def sides(self) -> Sides | None:
        """How the chain sees the products, each a matrix that lies row by row; None where that is none of its rows."""
        products = [self.chain.inputs[at] for at in self.mains]
        shape, m = self.chain.shape, self.m
        order = memory_order(shape, _leading(products[0].strides, shape, 0))
        splits = [at for at in range(len(order) + 1) if prod(shape[dim] for dim in order[:at]) == m]
        if not splits or not all(_lies(each.strides, shape, order) for each in products):
            return None
        return Sides(order[: splits[-1]], order[splits[-1] :])


def unwritten_between(behind: Behind) -> Decision:
    """The group and the chain become one node of the graph."""
    if behind.written_between:
        return _rejected(
            "unwritten_between", behind, "something is written in place between the products and the chain"
        )
    return Accepted("unwritten_between")


def several_rows(behind: Behind) -> Decision:
    """Kernels tell what repeats along the rows from what does not by its rows; of one row they could not."""
    if isinstance(behind.m, Symbolic) and int(behind.m) == 1:
        return _rejected("several_rows", behind, f"of {behind.m} rows, any number, one was there when it was planned")
    return Accepted("several_rows")


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
    if any(_leading(behind.chain.inputs[at].shape, shape, 1) != shape for at in behind.mains):
        return _rejected("same_tiles", behind, f"the chain has the shape {list(shape)}, not that of the products")
    if behind.sides is None:
        return _rejected("same_tiles", behind, f"the products are no rows and columns of {list(shape)}")
    order = (*behind.sides.rows, *behind.sides.columns)
    for result in behind.chain.results:
        if behind.chain.shape_of(result.value) != shape or not _lies(result.strides, shape, order):
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
    """Whatever else is read has one stride along rows and one along columns, of which it may repeat a part."""
    for at, operand in enumerate(behind.chain.inputs):
        if at in behind.mains or not operand.shape:
            continue
        matrix = _matrix(operand, behind)
        if matrix is None:
            return Rejected("in_rows", operand.node, f"{list(operand.shape)} has no one stride along the rows")
        if any(isinstance(stride, Symbolic) for stride in matrix.strides):
            return Rejected("in_rows", operand.node, f"the strides {list(matrix.strides)} of its rows are symbolic")
        if not _told_apart(matrix.shape[0], behind.m):
            reason = f"a part of {behind.m} rows, {matrix.shape[0]}, looks like one or like all of them by its hint"
            return Rejected("in_rows", operand.node, reason)
    return Accepted("in_rows")


def rotated_heads(behind: Behind) -> Decision:
    """What is rotated is a value of all columns, in heads that tiles can hold whole."""
    shape, sides = behind.chain.shape, behind.sides
    assert sides is not None
    for op in behind.chain.ops:
        if op.target != ROTATE_HALF:
            continue
        (value,) = op.values
        if op.head & (op.head - 1) or op.head > MAX_BLOCK:
            reason = f"heads have {op.head} columns, where those of a tile are a power of two up to {MAX_BLOCK}"
            return Rejected("rotated_heads", op.node, reason)
        if behind.chain.shape_of(value) != shape or sides.columns[-1:] != (len(shape) - 1,):
            return Rejected("rotated_heads", op.node, "what is rotated has no heads that lie side by side in a row")
    return Accepted("rotated_heads")


RULES = (unwritten_between, several_rows, elementwise, read_once, same_tiles, storable, in_rows, rotated_heads)


def first_refusal(behind: Behind) -> Rejected | None:
    """What the first rule that does not hold says."""
    return next((decided for rule in RULES if isinstance(decided := rule(behind), Rejected)), None)


def as_epilogue(behind: Behind, kept: tuple[int, ...]) -> Epilogue:
    """The epilogue, where no rule refuses."""
    chain, mains = behind.chain, behind.mains
    order = [*mains, *(at for at in range(len(chain.inputs)) if at not in mains)]
    place = {old: new for new, old in enumerate(order)}
    whole = _flat(chain.shape, behind)

    def matrix(at: int) -> Operand:
        found = _matrix(chain.inputs[at], behind)
        assert found is not None
        return replace(found, shape=tuple(map(int, found.shape)), strides=tuple(map(int, found.strides)))

    def renumbered(argument: Argument) -> Argument:
        value = argument.value
        return argument if value is None else replace(argument, value=place.get(value, value))

    ops = tuple(replace(op, args=tuple(map(renumbered, op.args)), shape=_flat(op.shape, behind)) for op in chain.ops)
    results = tuple(replace(result, strides=(whole[1], 1)) for result in chain.results)
    written = Chain(chain.name, whole, tuple(map(matrix, order)), ops, results)
    return Epilogue(tuple(mains.values()), written, kept)


def views_of(node: fx.Node) -> list[fx.Node]:
    """The node and what it is a view of, all elements once, down to the last that is no view: its strides are those of
    that one's memory."""
    found = [node]
    while found[-1].target in PERMUTES | VIEWS and not copies(found[-1]):
        found.append(found[-1].args[0])  # type: ignore[arg-type]
    return found


def _matrix(operand: Operand, behind: Behind) -> Operand | None:
    """The operand as a matrix, of which each side repeats in the whole, or a scalar; None where a side has no one
    stride."""
    whole, sides = behind.chain.shape, behind.sides
    assert sides is not None
    if not operand.shape:
        return operand
    shape, strides = _leading(operand.shape, whole, 1), _leading(operand.strides, whole, 0)
    found = []
    for dims in (sides.rows, sides.columns):
        side = _side([(shape[dim], strides[dim]) for dim in dims if whole[dim] != 1])
        if side is None:
            return None
        found.append(side)
    (rows, step), (columns, width) = found
    return replace(operand, shape=(rows, columns), strides=(step, width))


def _side(dims: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Size and stride of dimensions as one, of which the outer ones may repeat; None where there is no one stride."""
    long = [size != 1 for size, _ in dims]
    if not any(long):
        return (1, 0)
    inner = dims[long.index(True) :]
    follows = all(outer[1] == each[1] * each[0] for outer, each in pairwise(inner))
    if not (follows and all(size != 1 for size, _ in inner) and inner[-1][1]):
        return None
    return prod(size for size, _ in inner), inner[-1][1]


def _flat(shape: tuple[int, ...], behind: Behind) -> tuple[int, ...]:
    """The shape of a value as that of a matrix, a symbolic number of rows as its hint."""
    if not shape:
        return ()
    assert behind.sides is not None
    sizes = _leading(shape, behind.chain.shape, 1)
    rows, columns = ([sizes[dim] for dim in dims] for dims in (behind.sides.rows, behind.sides.columns))
    return (int(prod(rows)), int(prod(columns)))


def _told_apart(rows: int, m: int) -> bool:
    """Whether the hints say too what rows are of M: one, all, or a part."""
    return rows in (1, m) or not isinstance(m, Symbolic) or 1 < int(rows) < int(m)


def _leading(values: tuple[int, ...], whole: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Sizes or strides for all dimensions of a chain's shape, of which a tensor may lack the first."""
    return (fill,) * (len(whole) - len(values)) + values


def _lies(strides: tuple[int, ...], shape: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether elements lie one behind the other with their dimensions in this order."""
    steps = _leading(strides, shape, 0)
    return all(
        shape[dim] == 1 or steps[dim] == prod(shape[inner] for inner in order[at + 1 :]) for at, dim in enumerate(order)
    )


def _rejected(rule: str, behind: Behind, reason: str) -> Rejected:
    return Rejected(rule, behind.chain.ops[0].node, reason)


def _listed(sizes: set[int]) -> str:
    return " and ".join(map(str, sorted(sizes)))
