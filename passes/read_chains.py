"""Read chains: the nodes of a chain as a value, with its inputs, its ops and what the rest of the graph reads of it."""

import operator
from collections.abc import Sequence
from functools import reduce

from torch import fx

from fusioncc.chain import Chain, Result
from fusioncc.graph import dtype_of, is_aligned, tensor
from fusioncc.group import Operand
from fusioncc.passes.find_chains import broadcast, inputs_of, results_of
from fusioncc.passes.read_ops import Reader, is_fill, read


def read_chain(nodes: Sequence[fx.Node], order: dict[fx.Node, int], name: str) -> Chain:
    """The chain of ``nodes``; ``order`` is the position of each node in its graph."""
    ordered = sorted(nodes, key=order.__getitem__)
    given = inputs_of(ordered)
    reader = Reader({node: at for at, node in enumerate(given)}, first=len(given))
    several: dict[fx.Node, tuple[int, ...]] = {}
    for node in ordered:
        for each in node.all_input_nodes:
            if each not in reader.numbers and is_fill(each):
                reader.numbers[each] = read(each, reader)[0]
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


def _strides(node: fx.Node) -> tuple[int, ...]:
    value = tensor(node)
    assert value is not None
    return tuple(map(int, value.stride()))


def _operand(node: fx.Node) -> Operand:
    value = tensor(node)
    assert value is not None
    return Operand(node.name, tuple(map(int, value.shape)), _strides(node), dtype_of(node), is_aligned(node))
