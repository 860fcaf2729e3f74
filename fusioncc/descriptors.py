"""Where there are TMA descriptors, and which tensors one can describe (CUDA driver API, tensor map encoding)."""

from fusioncc.group import DTYPE_BYTES, Group, Operand

TMA_CAPABILITY = 90
"""First compute capability with TMA, times ten (Hopper)."""
ALIGNMENT = 16
"""Bytes: every address and every stride but the innermost, which is one element."""


def refusal(group: Group, main: int) -> str:
    """Why the main member with index ``main`` cannot run through TMA descriptors; empty when it can."""
    member, epilogue = group.members[main], group.epilogue_of(main)
    chain = epilogue.chain if epilogue is not None else None
    made = [chain.dtype_of(result.value) for result in chain.results] if chain is not None else []
    if group.lhs.dtype != member.weight.dtype or group.lhs.dtype == "fp32":
        return "TMA tiles are emitted for X and W of one 16-bit dtype"
    if _major(group.lhs) != 1:
        return "X is not known to be stored row by row with aligned rows (rest='eager' aligns no input)"
    if _major(member.weight) is None:
        return "W has no contiguous dimension with aligned strides"
    if any(member.n * DTYPE_BYTES[dtype] % ALIGNMENT for dtype in (group.output_of(main).dtype, *made)):
        return f"rows of the output ({member.n} elements) are not a multiple of {ALIGNMENT} bytes"
    return ""


def _major(operand: Operand) -> int | None:
    """The contiguous dimension of an aligned matrix; None when there is none a descriptor can take."""
    if not operand.aligned:
        return None
    for inner, outer in ((1, 0), (0, 1)):
        stride = operand.strides[outer] * DTYPE_BYTES[operand.dtype]
        if operand.strides[inner] == 1 and stride > 0 and stride % ALIGNMENT == 0:
            return inner
    return None


def contiguous_dim(operand: Operand) -> int:
    """The contiguous dimension of a matrix that :func:`refusal` accepted (0 or 1, in the order of the mathematics)."""
    major = _major(operand)
    assert major is not None
    return major
