"""An RMSNorm in front of the products, carried out by their tiles: columns in the K loop, rows behind it.

``(x * rstd * g) @ W`` is ``rstd * ((x * g) @ W)``: a row's scale is not known before all of the row was read, and does
not have to be. Each program walks over all of K, so it sums the squares of its rows on the way.
"""

from dataclasses import dataclass

from fusioncc.codegen.kernel import Part, constant, part, total
from fusioncc.codegen.main_tile import MainTile
from fusioncc.codegen.tile import INT32_ELEMENTS, block_constants
from fusioncc.group import Norm, Operand


@dataclass(frozen=True)
class RowNorm:
    """What a program adds to the K loop of ``tile``, the first of its tiles; nothing where the group has no norm."""

    tile: MainTile

    @property
    def norm(self) -> Norm | None:
        return self.tile.context.group.norm

    def zero(self) -> Part:
        """The squares, summed element by element of the tile of X: nothing is reduced inside the loop."""
        if self.norm is None:
            return Part()
        letters = ("K", "M") if self._swap else ("M", "K")
        shape = ", ".join(f"BLOCK_{letter}" for letter in letters)
        blocks = block_constants(self.tile.pool.tile, *letters)
        return part(f"squares = tl.zeros(({shape}), tl.float32)", params=blocks)

    def step(self) -> Part:
        """Add the squares of a tile of X, and scale its columns."""
        if self.norm is None:
            return Part()
        x = "x" if self._is_wide else "wide"
        body = Part() if self._is_wide else part("wide = x.to(tl.float32)")
        body += part(f"squares += {x} * {x}")
        return body if self.norm.weight is None else body + self._columns(x, self.norm.weight)

    def scaled(self, *products: str) -> Part:
        """Scale the rows of the ``products``."""
        if self.norm is None:
            return Part()
        spread = "[None, :]" if self.tile.pool.tile.swap_operands else "[:, None]"
        epsilon = constant("EPSILON", self.norm.epsilon)
        mean = part(
            "",
            "# The norm scales the rows of X, which is to scale the rows of its products.",
            f"rstd = tl.rsqrt(tl.sum(squares, {0 if self._swap else 1}) / K + EPSILON)",
            params=(self.tile.loop.k, epsilon),
        )
        return mean + total([part(f"{product} *= rstd{spread}") for product in products])

    @property
    def _swap(self) -> bool:
        return self.tile.pool.tile.swaps_x

    @property
    def _is_wide(self) -> bool:
        """Whether X is fp32."""
        return self.tile.context.group.lhs.dtype == "fp32"

    def _columns(self, x: str, weight: Operand) -> Part:
        context, ks = self.tile.context, self.tile.loop.axis
        stride = constant("G_STRIDE", weight.strides[0], f"{context.expression(weight)}.stride(0)")
        wide = ".to(tl.int64)" if context.group.k * weight.strides[0] >= INT32_ELEMENTS else ""
        mask = f", mask={ks.index} < {ks.bound}, other=0.0" if ks.bound else ""
        cast = "" if weight.dtype == "fp32" else ".to(tl.float32)"
        product = f"{x} * g{'[:, None]' if self._swap else '[None, :]'}"
        return part(
            f"g = tl.load(g_ptr + (k + {ks.index}){wide} * {stride.name}{mask}){cast}",
            f"x = {product}" if self._is_wide else f"x = ({product}).to(x.dtype)",
            params=(context.pointer("g_ptr", weight), stride, *self.tile.loop.bounds),
        )
