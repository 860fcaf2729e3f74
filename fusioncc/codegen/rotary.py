"""Halves of heads, rotated in registers: what a tile needs of rotary position embeddings beside elementwise ops.

Of a select between the rotated halves and the value itself, whose condition always holds and costs nothing, Triton
keeps the layout of the value: that of the accumulators, in which the halves of a head lie in one thread. Without it
they go through shared memory twice, to the layout in which the next operand was loaded and back (3.7; 226 registers
instead of 161 in tiles of 64x128 with heads of 128, capability 90).
"""

COLUMNS = """@triton.jit
def rotate_half(x, HEAD: tl.constexpr):
    # (-hi, lo) of the halves of every HEAD columns; the select keeps the layout of x, its condition always holds.
    heads = tl.reshape(x, (x.shape[0], x.shape[1] // HEAD, 2, HEAD // 2))
    lo, hi = tl.split(tl.permute(heads, (0, 1, 3, 2)))
    rotated = tl.permute(tl.join(hi * -1.0, lo), (0, 1, 3, 2))
    return tl.where(tl.program_id(0) >= 0, tl.reshape(rotated, (x.shape[0], x.shape[1])), x)
"""
ROWS = """@triton.jit
def rotate_half(x, HEAD: tl.constexpr):
    # (-hi, lo) of the halves of every HEAD rows (the tile is transposed); the select keeps the layout of x, its
    # condition always holds.
    heads = tl.reshape(x, (x.shape[0] // HEAD, 2, HEAD // 2, x.shape[1]))
    lo, hi = tl.split(tl.permute(heads, (0, 2, 3, 1)))
    rotated = tl.permute(tl.join(hi * -1.0, lo), (0, 3, 1, 2))
    return tl.where(tl.program_id(0) >= 0, tl.reshape(rotated, (x.shape[0], x.shape[1])), x)
"""
EAGER = '''def rotated(value, head):
    """(-hi, lo) of the halves of every ``head`` columns."""
    lo, hi = value.unflatten(-1, (-1, 2, head // 2)).unbind(-2)
    return torch.stack((-hi, lo), -2).flatten(-3)
'''


def rotate_half(value: str, head: int) -> str:
    """Source of a value with the halves of its heads rotated."""
    return f"rotate_half({value}, {head})"


def helpers(source: str, *, swap: bool) -> tuple[str, ...]:
    """The device function that source calls, if it does; ``swap``: for transposed tiles."""
    return (ROWS if swap else COLUMNS,) if "rotate_half(" in source else ()
