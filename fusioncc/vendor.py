"""Which main products a vendor GEMM can write as a schedule needs them."""

from fusioncc.group import EMITTED_DTYPES, Group


def refusal(group: Group, main: int) -> str:
    """Why no single vendor GEMM makes the product of the main member with index ``main``; empty when one does.

    The product of a member with a branch is left in fp32, for a kernel to add to; that of any other is the output.
    """
    member, output, x = group.members[main], group.output_of(main), group.lhs.dtype
    if member.weight.dtype != x or x not in EMITTED_DTYPES:
        return f"a vendor GEMM takes X and W of one dtype; {member.node} multiplies {x} by {member.weight.dtype}"
    if group.branches_of(main):
        return ""
    if output.dtype not in (x, "fp32"):
        return f"a vendor GEMM of {x} does not round to {output.dtype}, as {output.node} does"
    if member.bias is not None and {member.bias.dtype, output.dtype} != {x}:
        return f"a vendor GEMM of {x} adds a bias of {x} to an output of {x} only, not that of {member.node}"
    return ""
