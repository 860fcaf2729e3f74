"""Insert the products behind ``[X | s X A]``: a call of ``fusioncc::k_concat`` for every main member of a group.

The call gets W and B as the graph holds them, never a view: it moves the memory of the parameters themselves.
"""

import torch
from torch import fx

from fusioncc.graph import tensor
from fusioncc.group import Group, Operand
from fusioncc.packing import concat_begins
from fusioncc.passes.insertion import Insertion, shaped_like
from fusioncc.runtime import k_concat


def insert_k_concat(insertion: Insertion, group: Group, xy: fx.Node, held_by: int) -> None:
    """Nodes for every main member, which multiply ``xy`` ``[M, K + ranks]``; ``held_by`` is the packed weights' key."""
    value, begins, by_name = tensor(xy), concat_begins(group), insertion.by_name
    assert value is not None
    for main in group.mains:
        member, ups = group.members[main], [branch.up for branch in group.branches_of(main)]
        operands = [member.weight, *(group.members[up].weight for up in ups)]
        output = by_name[group.output_of(main).node]
        args = (
            [by_name[operand.node] for operand in operands],
            [0, *(begins[up] for up in ups)],
            [_is_turned(insertion, operand) for operand in operands],
            None if member.bias is None else by_name[member.bias.node],
            xy,
            held_by,
        )
        with insertion.graph.inserting_before(output):
            result = value.new_empty((value.shape[0], member.n))
            made = insertion.call(torch.ops.fusioncc.k_concat.default, args, result, name=f"{member.node}_k_concat")
            insertion.replaced.append((output, shaped_like(insertion, made, output)))


def _is_turned(insertion: Insertion, operand: Operand) -> bool:
    """Whether a weight ``[K, N]`` is held as ``[N, K]``."""
    value = tensor(insertion.by_name[operand.node])
    assert value is not None
    return (tuple(value.shape)[::-1], value.stride()[::-1]) == (operand.shape, operand.strides)


assert k_concat.NAME == "fusioncc::k_concat", "importing it defines the operator"
