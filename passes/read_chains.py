"""Read chains: the nodes of a chain as a value, with its inputs, its ops and what the rest of the graph reads of it."""

import operator
from collections.abc import Mapping, Sequence
from functools import reduce

from torch import fx

from fusioncc.chain import ROTATE_HALF, Chain, Result
from fusioncc.graph import dtype_of, is_aligned, tensor
from fusioncc.group import Operand
from fusioncc.passes.find_chains import broadcast, inputs_of, results_of
from fusioncc.passes.read_ops import Reader, is_fill, read
from fusioncc.passes.read_rotations import Rotation
from fusioncc.sizes import sizes_of


def read_chain(
    nodes: Sequence[fx.Node],
    order: dict[fx.Node, int],
    name: str,
    rotated: Mapping[fx.Node, Rotation] | None = None,
) -> Chain:
    """The chain of ``nodes``; ``order`` is the position of each node in its graph, ``rotated`` has the rotations that
    are one op each."""
    ordered = sorted(nodes, key=order.__getitem__)
    given = inputs_of(ordered)
    reader = Reader({node: at for at, node in enumerate(given)}, first=len(given))
    several: dict[fx.Node, tuple[int, ...]] = {}
    for node in ordered:
        for each in node.all_input_nodes:
            if each not in reader.numbers and is_fill(each):
                reader.numbers[each] = read(each, reader)[0]
        rotation = (rotated or {}).get(node)
        if rotation is not None:
            if node is rotation.node:
                reader.numbers[node] = _rotation(rotation, reader)
            continue
        if node.target is operator.getitem:
            made, at = node.args
            reader.numbers[node] = several[made][at]  # type: ignore[index]
            continue
        several[node] = read(node, reader)
        reader.numbers[node] = several[node][0]
    results = results_of(ordered)
    operands, ops = tuple(map(_operand, given)), tuple(reader.ops)
    written = tuple(Result(reader.numbers[node], node.name, _strides(node)) for node in results)
    shapes = [*(operand.shape for operand in operands), *(op.shape for op in ops)]
    return Chain(name, reduce(broadcast, shapes), operands, ops, written)


def _rotation(rotation: Rotation, reader: Reader) -> int:
    """A rotation as an op: its source, and the columns of a head."""
    value = tensor(rotation.node)
    assert value is not None
    args = [reader.argument(rotation.first.source), int(value.shape[-1])]
    return reader.op(rotation.node, ROTATE_HALF, args, dtype_of(rotation.node), value.shape)


def _strides(node: fx.Node) -> tuple[int, ...]:
    value = tensor(node)
    assert value is not None
    return sizes_of(value.stride())


def _operand(node: fx.Node) -> Operand:
    value = tensor(node)
    assert value is not None
    return Operand(node.name, sizes_of(value.shape), _strides(node), dtype_of(node), is_aligned(node))
