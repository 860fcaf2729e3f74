"""Insert packed products: one call of ``fusioncc::packed`` in the place of all main products of a group.

The call gets each weight as the graph holds it, never a view: it moves the memory of the parameter itself.
"""

import torch
from torch import fx

from fusioncc.graph import aten, readers, tensor
from fusioncc.group import Group, Operand
from fusioncc.packing import buffer_shape, places
from fusioncc.passes.insertion import Insertion, as_matrix, shaped_like
from fusioncc.runtime import packed


def insert_packed(insertion: Insertion, group: Group, held_by: int, form: str) -> None:
    """One product ``[M, sum of N]``, and its columns for every main member; ``held_by`` is the packed weights' key."""
    by_name = insertion.by_name
    members = [group.members[main] for main in group.mains]
    order = {node: position for position, node in enumerate(insertion.graph.nodes)}
    nodes = [by_name[member.node] for member in members]
    operands = [by_name[operand.node] for member in members for operand in (member.weight, member.bias) if operand]
    first, last = min(nodes, key=order.__getitem__), max(operands, key=order.__getitem__)
    with insertion.graph.inserting_before(first if order[last] < order[first] else last.next):
        lhs = as_matrix(insertion, by_name[group.lhs.node], group.k)
        insert_product(insertion, group, "packed", lhs, held_by, form)


def insert_product(insertion: Insertion, group: Group, kind: str, lhs: fx.Node, held_by: int, form: str) -> None:
    """The product of ``lhs``, X or ``[X | s X A]``, with the buffer of ``kind``.

    The outputs are columns of common rows. Where there are several, what leaves the graph is copied out of them; under
    ``call`` all are, since what runs that graph takes strides as they were.
    """
    by_name, x = insertion.by_name, tensor(lhs)
    assert x is not None
    members = [group.members[main] for main in group.mains]
    there, shape = places(group, kind), buffer_shape(group, kind)
    weights = [group.members[place.member].weight for place in there]
    args = (
        [by_name[weight.node] for weight in weights],
        [None if member.bias is None else by_name[member.bias.node] for member in members],
        [number for place in there for number in (place.row, place.column)],
        [_is_turned(insertion, weight) for weight in weights],
        list(shape),
        lhs,
        held_by,
    )
    value = x.new_empty((x.shape[0], shape[0]))
    made = insertion.call(torch.ops.fusioncc.packed.default, args, value, name=f"{members[0].node}_{kind}")
    outputs = [by_name[group.output_of(main).node] for main in group.mains]
    if len(members) == 1:
        insertion.replaced.append((outputs[0], shaped_like(insertion, made, outputs[0])))
        return
    begin = 0
    for member, output in zip(members, outputs, strict=True):
        end = begin + member.n
        columns = insertion.call(aten.slice.Tensor, (made, 1, begin, end), value[:, begin:end])
        if form == "call" or any(node.op == "output" for node in readers(output)):
            options = {"memory_format": torch.contiguous_format}
            copy = value[:, begin:end].clone(**options)
            columns = insertion.call(aten.clone.default, (columns,), copy, None, **options)
        insertion.replaced.append((output, shaped_like(insertion, columns, output)))
        begin = end


def _is_turned(insertion: Insertion, operand: Operand) -> bool:
    """Whether a weight ``[K, N]`` of a product is held in that shape, and not as ``[N, K]``."""
    value = tensor(insertion.by_name[operand.node])
    assert value is not None
    return (tuple(value.shape)[::-1], value.stride()[::-1]) != (operand.shape, operand.strides)


assert packed.NAME == "fusioncc::packed", "importing it defines the operator"
