"""Read chains: the nodes of a chain as a value, with its inputs, its ops and what the rest of the graph reads of it."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from torch import fx

from fusioncc.chain import ROTATE_HALF, Argument, Chain, Result
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
    *,
    exact: bool = False,
) -> Chain:
    """The chain of ``nodes``; ``order`` is the position of each node in its graph, ``rotated`` has the rotations that
    are one op each. In the form that the nodes have through every door, or, to be ``exact``, as they stand."""
    ordered = sorted(nodes, key=order.__getitem__)
    given = inputs_of(ordered)
    reader = Reader({node: at for at, node in enumerate(given)}, first=len(given), exact=exact)
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
    return _live(Chain(name, reduce(broadcast, shapes), operands, ops, written))


def _live(chain: Chain) -> Chain:
    """The chain without what nothing reads, its inputs in the order in which they are read."""
    first, wanted = len(chain.inputs), {result.value for result in chain.results}
    for at, op in reversed([*enumerate(chain.ops, first)]):
        wanted |= set(op.values) if at in wanted else set()
    made = [at for at in range(first, first + len(chain.ops)) if at in wanted]
    read = dict.fromkeys(value for at in made for value in chain.ops[at - first].values if value < first)
    place = {value: at for at, value in enumerate([*read, *made])}
    ops = (chain.ops[at - first] for at in made)
    return replace(
        chain,
        inputs=tuple(chain.inputs[value] for value in read),
        ops=tuple(replace(op, args=tuple(_moved(arg, place) for arg in op.args)) for op in ops),
        results=tuple(replace(result, value=place[result.value]) for result in chain.results),
    )


def _moved(argument: Argument, place: Mapping[int, int]) -> Argument:
    return argument if argument.value is None else replace(argument, value=place[argument.value])


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
