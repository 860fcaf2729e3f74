"""Insert packed products: one call of ``fusioncc::packed`` in the place of all main products of a group.

The call gets each W as the graph holds it, never a view: it moves the memory of the parameter itself.
"""

import torch

from fusioncc.graph import aten, readers, tensor
from fusioncc.group import Group
from fusioncc.passes.insertion import Insertion, as_matrix, shaped_like
from fusioncc.runtime import packed


def insert_packed(insertion: Insertion, group: Group, held_by: int, form: str) -> None:
    """One product ``[M, sum of N]``, and its columns for every main member; ``held_by`` is the packed weights' key.

    The columns are views of common rows. What leaves the graph is copied out of them; under ``call`` all are, since
    what runs that graph takes strides as they were.
    """
    by_name = insertion.by_name
    members = [group.members[main] for main in group.mains]
    order = {node: position for position, node in enumerate(insertion.graph.nodes)}
    nodes = [by_name[member.node] for member in members]
    operands = [by_name[operand.node] for member in members for operand in (member.weight, member.bias) if operand]
    first, last = min(nodes, key=order.__getitem__), max(operands, key=order.__getitem__)
    with insertion.graph.inserting_before(first if order[last] < order[first] else last.next):
        lhs = as_matrix(insertion, by_name[group.lhs.node], group.k)
        x = tensor(lhs)
        assert x is not None
        weights = [by_name[member.weight.node] for member in members]
        biases = [None if member.bias is None else by_name[member.bias.node] for member in members]
        value = x.new_empty((x.shape[0], sum(member.n for member in members)))
        args = (weights, biases, lhs, held_by)
        made = insertion.call(torch.ops.fusioncc.packed.default, args, value, name=f"{members[0].node}_packed")
        begin = 0
        for main, member in zip(group.mains, members, strict=True):
            end = begin + member.n
            columns = insertion.call(aten.slice.Tensor, (made, 1, begin, end), value[:, begin:end])
            output = by_name[group.output_of(main).node]
            if form == "call" or any(node.op == "output" for node in readers(output)):
                options = {"memory_format": torch.contiguous_format}
                copy = value[:, begin:end].clone(**options)
                columns = insertion.call(aten.clone.default, (columns,), copy, None, **options)
            insertion.replaced.append((output, shaped_like(insertion, columns, output)))
            begin = end


assert packed.NAME == "fusioncc::packed", "importing it defines the operator"
