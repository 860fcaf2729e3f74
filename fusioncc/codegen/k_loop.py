"""The K loop: load the operands' tiles, multiply, move on."""

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncc.codegen.context import Context
from fusioncc.codegen.descriptor import DescriptorTile
from fusioncc.codegen.kernel import Param, Part, constant, part, total
from fusioncc.codegen.tile import INT32_ELEMENTS, Axis, Tile, block_constants
from fusioncc.schedule import Pool


@dataclass(frozen=True)
class KLoop:
    """The loop over all of K, or over one slice of it."""

    context: Context
    pool: Pool

    @property
    def k(self) -> Param:
        return constant("K", self.context.group.k, "x.shape[1]")

    @property
    def ragged(self) -> bool:
        """Whether the last step passes the end of K."""
        return self.context.group.k % self.pool.tile.block_k != 0

    @property
    def even(self) -> bool:
        """Whether all slices have the same number of whole steps."""
        return self.context.group.k % (self.pool.tile.block_k * self.pool.k_split) == 0

    @property
    def axis(self) -> Axis:
        return Axis("K", "ks", "K - k" if self.ragged else "")

    @property
    def bounds(self) -> tuple[Param, ...]:
        return (self.k,) if self.ragged else ()

    @property
    def stride(self) -> int:
        """The largest stride along K of X and of the weights that read it."""
        read = [member.weight.strides[0] for member in self.context.group.members if member.role != "up"]
        return max(self.context.group.lhs.strides[1], *read)

    def vectors(self) -> Part:
        cast = ".to(tl.int64)" if self.pool.tile.block_k * self.stride >= INT32_ELEMENTS else ""
        return part(f"ks = tl.arange(0, BLOCK_K){cast}", params=block_constants(self.pool.tile, "K"))

    def starts(self, *tiles: Tile | DescriptorTile) -> Part:
        """Pointers of the tiles at the first step."""
        setups = total([tile.setup() for tile in tiles])
        if self.pool.k_split == 1:
            return setups
        return setups + self._first_k() + total([tile.advance(self.axis, "first_k") for tile in tiles])

    def run(self, tiles: Sequence[Tile | DescriptorTile], products: list[Part]) -> Part:
        """The loop itself."""
        loads = total([tile.load() for tile in tiles])
        moves = total([tile.advance(self.axis, "BLOCK_K") for tile in tiles])
        return self._header() + (loads + total(products) + moves).indented()

    def _slice(self) -> Param:
        step = self.pool.tile.block_k
        steps = -(-self.context.group.k // (step * self.pool.k_split))
        return constant("K_SLICE", steps * step, f"triton.cdiv(x.shape[1], {step * self.pool.k_split}) * {step}")

    def _first_k(self) -> Part:
        k_slice = "k_slice.to(tl.int64)" if self.context.group.k * self.stride >= INT32_ELEMENTS else "k_slice"
        return part(f"first_k = {k_slice} * K_SLICE", params=(self._slice(),))

    def _header(self) -> Part:
        blocks = block_constants(self.pool.tile, "K")
        if self.pool.k_split == 1:
            steps = "tl.static_range" if self.pool.unrolls(self.context.group.k) else "range"
            return part(f"for k in {steps}(0, K, BLOCK_K):", params=(self.k, *blocks))
        if self.even:
            return part("for k in range(0, K_SLICE, BLOCK_K):", params=(self._slice(), *blocks))
        stop = "min(first_k + K_SLICE, K)"
        return part(f"for k in range(first_k, {stop}, BLOCK_K):", params=(self._slice(), self.k, *blocks))
