"""Which main products a vendor GEMM can write as a schedule needs them."""

from fusioncc.group import Group


def refusal(group: Group, main: int) -> str:
    """Why no single vendor GEMM makes the product of the main member with index ``main``; empty when one does.

    The product of a member with a branch is left in fp32, for a kernel to add to; that of any other is the output.
    """
    member, output, x = group.members[main], group.output_of(main), group.lhs.dtype
    w = f"a weight [{member.k}, {member.n}]"
    if member.weight.dtype != x:
        return f"a vendor GEMM takes operands of one dtype; X is {x}, {w} is {member.weight.dtype}"
    if group.branches_of(main):
        return ""
    if output.dtype not in (x, "fp32"):
        return f"a vendor GEMM of {x} does not round to {output.dtype}, as the product with {w} does"
    if member.bias is not None and {member.bias.dtype, output.dtype} != {x}:
        return f"a vendor GEMM adds a bias where bias and output are {x} as X is, not so behind {w}"
    return ""
