"""One tile of a main member's GEMM: its vectors, its operands, its accumulator, and the epilogue that stores it."""

from dataclasses import dataclass

from fusioncc.codegen.context import Context
from fusioncc.codegen.k_loop import KLoop
from fusioncc.codegen.kernel import Param, Part, buffer_pointer, constant, part
from fusioncc.codegen.low_rank import LowRank, low_ranks
from fusioncc.codegen.precision import dot, main_product
from fusioncc.codegen.tile import INT32_ELEMENTS, Axis, Tile, block_constants, column_vectors, row_vectors, wide_rows
from fusioncc.codegen.tile_order import main_order, one_row_block
from fusioncc.group import Member, Operand
from fusioncc.schedule import Pool


@dataclass(frozen=True)
class MainTile:
    """The tile ``[BLOCK_M, BLOCK_N]`` of member ``main`` that a program of ``pool`` computes, maybe transposed."""

    context: Context
    pool: Pool
    main: int

    @property
    def member(self) -> Member:
        return self.context.member(self.main)

    @property
    def loop(self) -> KLoop:
        return KLoop(self.context, self.pool)

    @property
    def low_ranks(self) -> tuple[LowRank, ...]:
        return low_ranks(self.context, self.context.group.branches_of(self.main), self.pool.tile)

    @property
    def n(self) -> Param:
        return constant("N", self.member.n, f"{self.context.expression(self.member.weight)}.shape[1]")

    @property
    def col_blocks(self) -> int:
        return -(-self.member.n // self.pool.tile.block_n)

    @property
    def col_blocks_expression(self) -> str:
        return f"triton.cdiv({self.n.expression}, {self.pool.tile.block_n})"

    @property
    def read_rows(self) -> Axis:
        return self._rows()[1]

    @property
    def write_rows(self) -> Axis:
        return self._rows()[2]

    @property
    def read_cols(self) -> Axis:
        return self._cols()[1]

    @property
    def x(self) -> Tile:
        axes = (self.read_rows, self.loop.axis)
        return self.context.tile("x", self.context.group.lhs, axes, self._swap, self.loop.bounds)

    @property
    def w(self) -> Tile:
        axes = (self.loop.axis, self.read_cols)
        return self.context.tile("w", self.member.weight, axes, self._swap, self.loop.bounds)

    def vectors(self) -> Part:
        """Which tile this program computes, and its index vectors."""
        order = main_order(self.context.group, self.pool, self.n)
        return order + self._rows()[0] + self._cols()[0] + self.loop.vectors()

    def zero(self) -> Part:
        shape = "(BLOCK_N, BLOCK_M)" if self._swap else "(BLOCK_M, BLOCK_N)"
        return part(f"acc = tl.zeros({shape}, tl.float32)", params=block_constants(self.pool.tile, "M", "N"))

    def accumulate(self) -> Part:
        """``acc += x @ w``."""
        return part(*dot("x", "w", "acc", main_product(self.context.group, self.member.weight.dtype), self._swap))

    def epilogue(self) -> Part:
        """Biases in fp32, one rounding, the masked store."""
        body = self._add_bias("bias", self.member.bias, 1.0)
        for low_rank in self.low_ranks:
            body += self._add_bias(f"b_bias{low_rank.tail}", low_rank.up.bias, low_rank.up.bias_scale)
        output = self.context.output(self.main)
        cols = self._cols()[2]
        params = (buffer_pointer("out_ptr", output), self.n)
        tile = Tile("out", "out_ptr", (self.write_rows, cols), ("N", "1"), params, self._swap)
        value = "acc" if output.dtype == "fp32" else "acc.to(out_ptr.dtype.element_ty)"
        return body + tile.setup() + tile.store(value)

    @property
    def _swap(self) -> bool:
        return self.pool.tile.swap_operands

    def _rows(self) -> tuple[Part, Axis, Axis]:
        one = one_row_block(self.context.group, self.pool)
        return row_vectors(self.pool.tile, one_block=one, wide=wide_rows(self.context.group, self.member.n))

    def _cols(self) -> tuple[Part, Axis, Axis]:
        ups = [low_rank.up.weight for low_rank in self.low_ranks]
        stride = max(weight.strides[1] for weight in (self.member.weight, *ups))
        wide = self.member.n * stride >= INT32_ELEMENTS
        return column_vectors(self.pool.tile, self.member.n, self.n, wide=wide)

    def _add_bias(self, name: str, bias: Operand | None, scale: float) -> Part:
        if bias is None:
            return Part()
        stride = constant(f"{name.upper()}_STRIDE", bias.strides[0], f"{self.context.expression(bias)}.stride(0)")
        cast = "" if bias.dtype == "fp32" else ".to(tl.float32)"
        spread = "[:, None]" if self._swap else "[None, :]"
        factor = () if scale == 1.0 else (constant(f"{name.upper()}_SCALE", scale),)
        return part(
            f"{name} = tl.load({name}_ptr + {self.read_cols.index} * {stride.name}){cast}",
            f"acc += {name}{spread}" + "".join(f" * {param.name}" for param in factor),
            params=(self.context.pointer(f"{name}_ptr", bias), stride, *factor),
        )
