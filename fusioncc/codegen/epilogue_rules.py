"""Which epilogues have an emitted form."""

from fusioncc.chain import ROTATE_HALF, Chain, Op
from fusioncc.codegen.context import Context
from fusioncc.codegen.group_rules import require_sizes
from fusioncc.errors import EmissionError
from fusioncc.group import Epilogue, Group

STORED = ("bf16", "fp16", "fp32", "fp8e4m3", "fp8e5m2", "int8", "uint8")
"""Dtypes that a tile is stored in."""


def require_epilogues(context: Context) -> None:
    """Members, shapes and numbers of what tiles end with.

    Raises:
        EmissionError: with what is wrong.
    """
    group = context.group
    every = [main for epilogue in group.epilogues for main in epilogue.mains]
    if len(set(every)) < len(every):
        raise EmissionError("a main member is in one epilogue, once")
    for epilogue in group.epilogues:
        _require_members(group, epilogue)
        _require_shapes(group, epilogue)
        _require_values(epilogue)
        for operand in epilogue.operands:
            require_sizes(operand)


def _require_members(group: Group, epilogue: Epilogue) -> None:
    if not epilogue.mains or not set(epilogue.mains) <= set(group.mains):
        raise EmissionError("an epilogue lists main members by their index in the group")
    if len({group.members[main].n for main in epilogue.mains}) > 1:
        raise EmissionError("the members of an epilogue have one N")
    if not set(epilogue.kept) <= set(epilogue.mains):
        raise EmissionError("outputs that are kept are of members of the epilogue")
    if group.m_symbol and group.m == 1:
        raise EmissionError("of one row of any number it is not known what repeats along the rows")


def _require_shapes(group: Group, epilogue: Epilogue) -> None:
    chain, m, n = epilogue.chain, group.m, group.members[epilogue.mains[0]].n
    products = chain.inputs[: len(epilogue.mains)]
    if chain.shape != (m, n) or [each.shape for each in products] != [(m, n)] * len(epilogue.mains):
        raise EmissionError(f"the chain of an epilogue and the products in front have the shape [{m}, {n}]")
    for operand in epilogue.operands:
        sides = list(zip(operand.shape, (m, n), strict=False))
        if len(operand.shape) not in (0, 2) or any(size < 1 or whole % size for size, whole in sides):
            raise EmissionError(f"{operand.node} does not broadcast to [{m}, {n}]")
    for result in chain.results:
        made = range(len(chain.inputs), len(chain.inputs) + len(chain.ops))
        if result.value not in made or chain.shape_of(result.value) != (m, n):
            raise EmissionError(f"a result of an epilogue is a value of the shape [{m}, {n}]")


def _require_values(epilogue: Epilogue) -> None:
    chain = epilogue.chain
    if not chain.ops or not chain.results:
        raise EmissionError("an epilogue makes something")
    for at, op in enumerate(chain.ops, start=len(chain.inputs)):
        if op.reduces:
            raise EmissionError(f"{op.node} reduces rows, of which a tile has none whole")
        if any(not 0 <= value < at for value in op.values):
            raise EmissionError(f"{op.node} reads a value that is not there yet")
        if op.target == ROTATE_HALF:
            _require_heads(chain, op)
    for result in chain.results:
        if chain.dtype_of(result.value) not in STORED:
            raise EmissionError(f"no tile is stored as {chain.dtype_of(result.value)}")


def _require_heads(chain: Chain, op: Op) -> None:
    """A rotation has one value, with the columns of whole heads."""
    value, *rest = op.args
    head = int(rest[0].constant) if len(rest) == 1 and rest[0].constant.isdecimal() else 0
    if value.value is None or head < 2 or head & (head - 1):
        raise EmissionError(f"{op.node} rotates the halves of a value's heads, of a power of two columns each")
    if {each.head for each in chain.ops} - {1, head}:
        raise EmissionError(f"{op.node} rotates heads of {head} columns, and another op those of another size")
    if chain.shape[1] % head or chain.shape_of(value.value) != chain.shape:
        raise EmissionError(f"{op.node} rotates heads of {head} columns, which its value has not")
