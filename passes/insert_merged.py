"""Insert merged products: one call of ``fusioncc::merged`` in the place of a main product and its adapter.

The call gets W, A and B as the graph holds them, never a view: a view made in the graph has a version of its own.
"""

import torch

from fusioncc.graph import TORCH_DTYPES, tensor
from fusioncc.group import Group
from fusioncc.passes.insertion import Insertion, as_matrix, shaped_like
from fusioncc.runtime import merged


def insert_merged(insertion: Insertion, group: Group, held_by: int, form: str) -> None:
    """Nodes for every main member of a group that has a branch, alike in every ``form``; ``held_by`` is the key of the
    merged weights."""
    for main in group.mains:
        if group.branches_of(main):
            _insert(insertion, group, main, held_by)


def _insert(insertion: Insertion, group: Group, main: int, held_by: int) -> None:
    by_name = insertion.by_name
    (branch,) = group.branches_of(main)
    member, down, up = (group.members[index] for index in (main, branch.down, branch.up))
    output = by_name[group.output_of(main).node]
    dtype = TORCH_DTYPES[group.output_of(main).dtype]
    with insertion.graph.inserting_before(output):
        lhs = as_matrix(insertion, by_name[group.lhs.node], group.k)
        x = tensor(lhs)
        assert x is not None
        args = (
            lhs,
            None if member.bias is None else by_name[member.bias.node],
            [by_name[operand.node] for operand in (member.weight, down.weight, up.weight)],
            [by_name[scale.node] for scale in branch.scale_tensors],
            [member.k, member.n, down.n],
            [stride for operand in (member.weight, down.weight, up.weight) for stride in operand.strides],
            branch.scale,
            dtype,
            held_by,
        )
        value = x.new_empty((x.shape[0], member.n), dtype=dtype)
        made = insertion.call(torch.ops.fusioncc.merged.default, args, value, name=f"{member.node}_merged")
        insertion.replaced.append((output, shaped_like(insertion, made, output)))


assert merged.NAME == "fusioncc::merged", "importing it defines the operator"
