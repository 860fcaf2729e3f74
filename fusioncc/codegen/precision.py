"""Numerics of the products: what each ``tl.dot`` converts, and how fp32 operands are multiplied.

Every product accumulates in fp32. Equal 16-bit operands go to the tensor cores as they are; everything else is decided
here, from the dtypes and the tier.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fusioncc.group import Group, Member

HALVES = ("bf16", "fp16")
TIERS = ("fp32", "relaxed")
"""Rounding tiers that have an emitted form."""
OPERAND = "{operand}"
ROUNDED = "to_tf32({operand})"
WIDENED = "{operand}.to(tl.float32)"
X_TYPE = "x_ptr.dtype.element_ty"
"""The dtype of X, in any kernel that is given a pointer to it."""
LIKE_X = f"{{operand}}.to({X_TYPE})"
THIRDS = ("_high", "_middle", "_low")


@dataclass(frozen=True)
class Product:
    """How two tiles are multiplied.

    ``left`` and ``right`` are source of the operands, in which ``{operand}`` stands for the operand and ``{other}`` for
    the other one. ``precision`` is the ``input_precision`` of the dot (empty for 16-bit operands). ``cut`` names the
    sides that are fp32 and go in as three bf16 pieces each, where X is bf16; of nine products the six largest hold all
    that fp32 holds. ``beside``: the pieces of the right side are the columns of one operand, and the accumulator has
    four for each of its own (see :func:`~fusioncc.schedule.pieces_beside`). ``compensated``: each K step's product is
    added with Kahan's correction, since one chain of K fp32 additions is further from the exact sum than a vendor GEMM
    is.
    """

    left: str = OPERAND
    right: str = OPERAND
    precision: Literal["", "ieee", "tf32", "tf32x3"] = ""
    cut: tuple[Literal["left", "right"], ...] = ()
    beside: bool = False
    compensated: bool = False

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that the product calls."""
        rounds = "to_tf32" in self.left + self.right
        pieces = (PIECES, BESIDE) if self.beside else (PIECES,) if self.cut else ()
        return pieces + ((TO_TF32,) if rounds else ())

    @property
    def needs_x(self) -> bool:
        """Whether it reads the dtype of X off a pointer."""
        return "left" in self.cut or X_TYPE in self.left + self.right


def main_product(group: Group, w: str) -> Product:
    """``X @ W``; unequal dtypes meet in fp32, which follows torch's matmul precision."""
    x = group.lhs.dtype
    if x == w and x in HALVES:
        return Product()
    if group.fp32_precision == "tf32":
        return Product(_to_tf32(x), _to_tf32(w), "tf32")
    return Product(_to_fp32(x), _to_fp32(w), "ieee", compensated=True)


def down_product(group: Group, a: str, tier: str) -> Product:
    """``X @ A``; fp32 adapters over a 16-bit X keep their accuracy unless the tier is relaxed."""
    x = group.lhs.dtype
    if x == "fp32" or x == a:
        return main_product(group, a)
    if tier == "relaxed":
        return Product(right="{operand}.to({other}.dtype)")
    if (x, a) == ("bf16", "fp32"):
        return Product(cut=("right",))
    return Product(_to_fp32(x), _to_fp32(a), "tf32x3")


def join_product(group: Group, a: str, b: str, tier: str) -> Product:
    """``y @ B`` for the fp32 ``y = scale * X @ A``, rounded to X's dtype where the adapters are of that dtype."""
    x = group.lhs.dtype
    if x == "fp32" and group.fp32_precision == "ieee":
        return Product(OPERAND, _to_fp32(b), "ieee", compensated=True)
    if x in ("fp32", "fp16"):  # a scaled y may pass the range of fp16; torch multiplies fp32 of rank 1 without tf32
        return Product(OPERAND, _to_fp32(b), "tf32x3")
    if x == a == b or (tier == "relaxed" and x == b):
        return Product(left="{operand}.to({other}.dtype)")
    if tier == "relaxed":
        return Product(LIKE_X, LIKE_X)
    return Product(cut=("left",)) if b == x else Product(right=_to_fp32(b), cut=("left", "right"))


def compensates(group: Group, members: tuple[Member, ...], tier: str) -> bool:
    """Whether a product of X with one of the members, main or down, is compensated on tiles of several rows."""
    products = [
        main_product(group, member.weight.dtype)
        if member.role == "main"
        else down_product(group, member.weight.dtype, tier)
        for member in members
    ]
    return any(product.compensated for product in products)


def _to_fp32(dtype: str) -> str:
    return OPERAND if dtype == "fp32" else WIDENED


def _to_tf32(dtype: str) -> str:
    return ROUNDED if dtype == "fp32" else WIDENED


PIECES = """@triton.jit
def in_pieces(a, dtype: tl.constexpr):
    # Three 8-bit significands hold the 24 bits of fp32: high + middle + low is a itself, down to about 2**-110.
    high = a.to(dtype)
    rest = a - high.to(tl.float32)
    middle = rest.to(dtype)
    low = (rest - middle.to(tl.float32)).to(dtype)
    return high, middle, low
"""
BESIDE = """@triton.jit
def pieces_beside(a, dtype: tl.constexpr):
    # The pieces of each column, and zeros as the fourth, beside one another.
    high, middle, low = in_pieces(a, dtype)
    pieces = tl.join(tl.join(high, middle), tl.join(low, tl.zeros_like(low)))
    return tl.reshape(pieces, (a.shape[0], 4 * a.shape[1]))
"""
TO_TF32 = """@triton.jit
def to_tf32(a):
    # Tensor cores drop the low 13 bits of an fp32 operand; rounding first halves the error and takes away its bias.
    # What is no number, or would round to an infinity, stays.
    nearest = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where((a == a) & (tl.abs(nearest) < float("inf")), nearest, a)
"""


def multiply_add(left: str, right: str, acc: str, x: str, w: str) -> str:
    """``acc += left * right``, element by element in fp32: a K step of a tile of one row (``x``, ``w``: their
    dtypes)."""
    sides = (_to_fp32(w).format(operand=right), _to_fp32(x).format(operand=left))
    return f"{acc} += {' * '.join(sides)}"


def dot(left: str, right: str, acc: str, product: Product, swap: bool, *, opens: bool = False) -> tuple[str, ...]:
    """``acc += left @ right``, or ``acc =`` that when it opens the accumulator; a swapped tile swaps the operands."""
    if product.beside:
        return (f"{acc} = tl.dot({left}, pieces_beside({right}, {left}.dtype), {acc})",)
    lines: list[str] = []
    if "left" in product.cut:
        lines += _cut(left, product.left.format(operand=left, other=right), X_TYPE)
    if "right" in product.cut:
        lines += _cut(right, product.right.format(operand=right, other=left), X_TYPE if lines else f"{left}.dtype")
    compensated = product.compensated and not opens
    for sides in _factors(left, right, product):
        arguments = [*(reversed(sides) if swap else sides), *([] if opens or compensated else [acc])]
        options = [f'input_precision="{product.precision}"'] if product.precision else []
        result = f"{acc}_step" if compensated else acc
        lines.append(f"{result} = tl.dot({', '.join([*arguments, *options])})")
        opens = False
    if compensated:
        lines += [
            f"{acc}_step -= {acc}_lost",
            f"{acc}_next = {acc} + {acc}_step",
            f'{acc}_lost = tl.where(tl.abs({acc}_next) < float("inf"), ({acc}_next - {acc}) - {acc}_step, 0.0)',
            f"{acc} = {acc}_next",
        ]
    return tuple(lines)


def _cut(name: str, source: str, dtype: str) -> list[str]:
    return [f"{', '.join(name + third for third in THIRDS)} = in_pieces({source}, {dtype})"]


def _factors(left: str, right: str, product: Product) -> Iterator[tuple[str, str]]:
    """The operands of each dot, those of the smallest product first."""
    lefts, rights = (
        [name + third for third in THIRDS] if side in product.cut else [source.format(operand=name, other=other)]
        for side, name, other, source in (("left", left, right, product.left), ("right", right, left, product.right))
    )
    pairs = [(i, j) for i in range(len(lefts)) for j in range(len(rights)) if i + j < len(THIRDS)]
    return ((lefts[i], rights[j]) for i, j in sorted(pairs, key=lambda pair: (-sum(pair), pair)))
