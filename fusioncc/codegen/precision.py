"""Numerics of the products: what each ``tl.dot`` converts, and how fp32 operands are multiplied.

Every product accumulates in fp32. Equal 16-bit operands go to the tensor cores as they are; everything else is decided
here, from the dtypes and the tier.
"""

from dataclasses import dataclass
from typing import Literal

from fusioncc.group import Group

HALVES = ("bf16", "fp16")
TIERS = ("fp32", "relaxed")
"""Rounding tiers that have an emitted form."""


@dataclass(frozen=True)
class Product:
    """How two tiles are multiplied.

    ``left`` and ``right`` are suffixes that convert the operands (empty: as loaded); ``{left}`` and ``{right}`` in them
    name the other operand. ``precision`` is the ``input_precision`` of the dot (empty for 16-bit operands). ``pieces``:
    the right operand is fp32, the left one bf16, and the right one goes in as three bf16 pieces.
    """

    left: str = ""
    right: str = ""
    precision: Literal["", "ieee", "tf32", "tf32x3"] = ""
    pieces: bool = False


def main_product(group: Group, w: str) -> Product:
    """``X @ W``; unequal dtypes meet in fp32, which follows torch's matmul precision."""
    x = group.lhs.dtype
    if x == w and x in HALVES:
        return Product()
    return Product(_to_fp32(x), _to_fp32(w), group.fp32_precision)


def down_product(group: Group, a: str, tier: str) -> Product:
    """``X @ A``; fp32 adapters over a 16-bit X keep their accuracy unless the tier is relaxed."""
    x = group.lhs.dtype
    if x == "fp32" or x == a:
        return main_product(group, a)
    if tier == "relaxed":
        return Product(right=".to({left}.dtype)")
    if (x, a) == ("bf16", "fp32"):
        return Product(pieces=True)
    return Product(_to_fp32(x), _to_fp32(a), "tf32x3")


def join_product(group: Group, a: str, b: str, tier: str) -> Product:
    """``y @ B`` for the fp32 ``y = scale * X @ A``, rounded to X's dtype where the adapters are of that dtype."""
    x = group.lhs.dtype
    if x == "fp32":
        return Product("", _to_fp32(b), group.fp32_precision)
    if x == "fp16":  # a scaled y may pass the range of fp16 where the sum does not
        return Product("", _to_fp32(b), "tf32x3")
    if x == a == b or (tier == "relaxed" and x == b):
        return Product(left=".to({right}.dtype)")
    if tier == "relaxed":
        return Product(".to(x_ptr.dtype.element_ty)", ".to(x_ptr.dtype.element_ty)")
    return Product("", _to_fp32(b), "tf32x3")


def _to_fp32(dtype: str) -> str:
    return "" if dtype == "fp32" else ".to(tl.float32)"


PIECES = """@triton.jit
def in_pieces(a, dtype: tl.constexpr):
    # Three 8-bit significands hold the 24 bits of fp32, so that high + middle + low is a itself.
    high = a.to(dtype)
    rest = a - high.to(tl.float32)
    middle = rest.to(dtype)
    low = (rest - middle.to(tl.float32)).to(dtype)
    return high, middle, low
"""


def dot(left: str, right: str, acc: str, product: Product, swap: bool, *, opens: bool = False) -> tuple[str, ...]:
    """``acc += left @ right``, or ``acc =`` that when it opens the accumulator; a swapped tile swaps the operands."""
    names = [right + piece for piece in ("_low", "_middle", "_high")] if product.pieces else [right + product.right]
    names = [name.format(left=left) for name in names]
    lines = [f"{right}_high, {right}_middle, {right}_low = in_pieces({right}, {left}.dtype)"] if product.pieces else []
    for name in names:
        sides = [left + product.left.format(right=right), name]
        arguments = [*(reversed(sides) if swap else sides), *([] if opens else [acc])]
        options = [f'input_precision="{product.precision}"'] if product.precision else []
        lines.append(f"{acc} = tl.dot({', '.join([*arguments, *options])})")
    return tuple(lines)
