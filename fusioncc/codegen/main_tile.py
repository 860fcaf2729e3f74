"""One tile of a main member's GEMM: its vectors, its operands, its accumulator, and the epilogue that stores it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusioncc.codegen.context import Context
from fusioncc.codegen.descriptor import DescriptorTile
from fusioncc.codegen.k_loop import KLoop
from fusioncc.codegen.kernel import ROWS, TILE, Kernel, Param, Part, buffer_pointer, constant, part, total
from fusioncc.codegen.launch import Blocks, Buffer
from fusioncc.codegen.low_rank import LowRankTile, low_ranks
from fusioncc.codegen.precision import Product, dot, main_product, multiply_add
from fusioncc.codegen.tile import INT32_ELEMENTS, Axis, Tile, block_constants, column_vectors, row_vectors, wide_rows
from fusioncc.codegen.tile_order import main_order, one_row_block, tile_count
from fusioncc.descriptors import contiguous_dim
from fusioncc.group import Member, Operand
from fusioncc.schedule import Pool


@dataclass(frozen=True)
class MainTile:
    """The tile ``[BLOCK_M, BLOCK_N]`` of member ``main`` that a program of ``pool`` computes, maybe transposed. One of
    several members has a tile of each of ``mains``."""

    context: Context
    pool: Pool
    main: int
    mains: tuple[int, ...]

    @property
    def tail(self) -> str:
        """What tells its names from those of the other members of its program."""
        return str(self.mains.index(self.main)) if len(self.mains) > 1 else ""

    @property
    def acc(self) -> str:
        """Name of the accumulator."""
        return f"acc{self.tail}"

    @property
    def member(self) -> Member:
        return self.context.member(self.main)

    @property
    def loop(self) -> KLoop:
        return KLoop(self.context, self.pool)

    @property
    def low_ranks(self) -> tuple[LowRankTile, ...]:
        every = tuple(branch for main in self.mains for branch in self.context.group.branches_of(main))
        lows = low_ranks(self.context, every, self.pool.tile)
        return tuple(replace(each, acc=self.acc) for each in lows if each.branch.main == self.main)

    @property
    def n(self) -> Param:
        return constant("N", self.member.n, f"{self.context.expression(self.member.weight)}.shape[1]")

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
    def x(self) -> Tile | DescriptorTile:
        if self.pool.tile.tma:
            sizes, starts = ("M", "K"), ("row_block * BLOCK_M", "k")
            return self._described("x", self.context.group.lhs, ("M", "K"), sizes, starts)
        axes = (self.read_rows, self.loop.axis)
        return self.context.tile("x", self.context.group.lhs, axes, self.pool.tile.swaps_x, self.loop.bounds)

    @property
    def w(self) -> Tile | DescriptorTile:
        if self.pool.tile.tma:
            sizes, starts = ("K", "N"), ("k", "col_block * BLOCK_N")
            return self._described(f"w{self.tail}", self.member.weight, ("K", "N"), sizes, starts)
        axes = (self.loop.axis, self.read_cols)
        return self.context.tile(f"w{self.tail}", self.member.weight, axes, self._swap, self.loop.bounds)

    def written(self, name: str, buffer: Buffer) -> Tile | DescriptorTile:
        """The tile of a buffer ``[M, N]`` that the program writes."""
        params = (buffer_pointer(f"{name}_ptr", buffer), self.n)
        if self.pool.tile.tma:
            starts = ("row_block * BLOCK_M", "col_block * BLOCK_N")
            blocks = block_constants(self.pool.tile, "M", "N")
            shape = ("BLOCK_M", _fraction("BLOCK_N", self.pool.tile.epilogue_subtiles))
            return DescriptorTile(name, shape, ("M", "N"), starts, 1, "N", (ROWS, *params), blocks)
        return Tile(name, f"{name}_ptr", (self.write_rows, self._cols()[2]), ("N", "1"), params, self._swap)

    def kernel(self, stem: str, body: Part, tiles: Sequence[Tile | DescriptorTile], helpers: tuple[str, ...]) -> Kernel:
        """The kernel that runs ``body``, which calls ``helpers``, for every tile of the member; it reads and writes
        ``tiles``."""
        tile = self.pool.tile
        k_split, split = self.pool.k_split, self._k_split
        count = f"triton.cdiv({self.n.expression}, {tile.block_n})" + (f" * {k_split}" if split else "")
        made = ", ".join(buffer.name for main in self.mains for buffer in self.context.made(main))
        blocks = Blocks(tile.block_m, -(-self.member.n // tile.block_n) * k_split, count, stem, made)
        columns = part(
            "tl.cdiv(N, BLOCK_N)" + "".join(f" * {each.name}" for each in split),
            params=(self.n, *split, *block_constants(tile, "N")),
        )
        count_source = tile_count(self.context.group, self.pool, columns)
        declared = total([each.declare() for each in tiles if isinstance(each, DescriptorTile)])
        number = self.context.mains.index(self.main)
        return Kernel(stem, body, tile, (blocks,), count_source, helpers, self.pool.workers, declared, number)

    def vectors(self) -> Part:
        """Which tile this program computes, and its index vectors."""
        order = main_order(self.context.group, self.pool, self.n)
        if self.pool.k_split > 1:
            order = part("k_slice = tile % K_SPLIT", "tile = tile // K_SPLIT", params=(TILE, *self._k_split)) + order
        if not self.pool.tile.tma:
            ks = Part() if self.pool.role == "up" else self.loop.vectors()
            return order + self._rows()[0] + self._cols()[0] + ks
        joined = any(self.context.group.branches_of(main) for main in self.mains)
        rows = self._rows()[0] if joined or self._ends else Part()
        cols = rows.lines or any(self.context.member(main).bias for main in self.mains)
        return order + rows + (self._cols()[0] if cols else Part())

    def zero(self) -> Part:
        letters = ("N", "K" if self.pool.tile.one_row else "M") if self._swap else ("M", "N")
        shape = ", ".join(f"BLOCK_{letter}" for letter in letters)
        zeros = part(f"{self.acc} = tl.zeros(({shape}), tl.float32)", params=block_constants(self.pool.tile, *letters))
        return zeros + self.correction()

    def correction(self) -> Part:
        """Where the product is compensated: what the accumulator has lost so far."""
        return part(f"{self.acc}_lost = tl.zeros_like({self.acc})") if self._product.compensated else Part()

    @property
    def carried(self) -> tuple[str, ...]:
        """What is added to behind the K loop, with its correction: all that a factor of the product multiplies."""
        return (self.acc, f"{self.acc}_lost") if self._product.compensated and self.low_ranks else (self.acc,)

    def accumulate(self) -> Part:
        """``acc += x @ w``; a tile of one row leaves the sum along K to :meth:`settled`."""
        if self.pool.tile.one_row:
            dtypes = (self.context.group.lhs.dtype, self.member.weight.dtype)
            return part(multiply_add("x", f"w{self.tail}", self.acc, *dtypes))
        return part(*dot("x", f"w{self.tail}", self.acc, self._product, self._swap))

    def settled(self) -> Part:
        """Behind the K loop ``acc`` is the product."""
        return part(f"{self.acc} = tl.sum({self.acc}, 1, keep_dims=True)") if self.pool.tile.one_row else Part()

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that the tile calls, each once."""
        found = [*self._product.helpers, *(helper for low_rank in self.low_ranks for helper in low_rank.helpers)]
        return tuple(dict.fromkeys(found))

    def load_product(self, k_split: int) -> Part:
        """``acc``: the product that an earlier launch wrote, its slices added in order."""
        product = self._product_tile("acc", "product_ptr", self.read_rows, self.read_cols, k_split)
        read = product.setup() + product.load()
        if k_split == 1:
            return read
        return read + part(
            "for _ in tl.static_range(1, PRODUCT_SLICES):",
            "    acc_tile += M * N",
            "    acc += tl.load(acc_tile)",
            params=(constant("PRODUCT_SLICES", k_split),),
        )

    def store_product(self) -> Part:
        """Write the accumulator as it is."""
        start = "product_ptr + k_slice * M * N" if self.pool.k_split > 1 else "product_ptr"
        product = self._product_tile("product", start, self.write_rows, self._cols()[2], self.pool.k_split)
        return product.setup() + product.store("acc")

    def biased(self) -> Part:
        """The biases, added in fp32."""
        body = self._add_bias(f"bias{self.tail}", self.member.bias, 1.0)
        for low_rank in self.low_ranks:
            body += self._add_bias(f"b_bias{low_rank.tail}", low_rank.up.bias, low_rank.up.bias_scale)
        return body

    def store(self, tile: Tile | DescriptorTile, value: str, cast: str) -> Part:
        """Store ``value``, rounded by ``cast``, whole or in the parts in which the tile is to be stored."""
        parts = self.pool.tile.epilogue_subtiles
        if not isinstance(tile, DescriptorTile) or parts == 1:
            return tile.setup() + tile.store(value + cast)
        lines = [f"# Stored in {parts} parts, one after another: the shared memory of one is enough."]
        part_of, names = f"{tile.name}_part", [""]
        while len(names) < parts:
            shape = f"(BLOCK_M, 2, {_fraction('BLOCK_N', 2 * len(names))})"
            for name in names:
                halves, whole = f"{part_of}{name}0, {part_of}{name}1", f"{part_of}{name}" if name else value
                lines.append(f"{halves} = tl.split(tl.permute(tl.reshape({whole}, {shape}), (0, 2, 1)))")
            names = [name + half for name in names for half in "01"]
        row, col = tile.starts
        stores = part(*lines, params=tile.blocks)
        for at, name in enumerate(names):
            start = f"{col} + {at} * ({_fraction('BLOCK_N', parts)})" if at else col
            stores += replace(tile, starts=(row, start)).store(f"{part_of}{name}{cast}")
        return stores

    def rounding(self, name: str, dtype: str) -> str:
        """What rounds a value in fp32 to the dtype of the buffer ``name``."""
        element = f"{name}_desc.dtype" if self.pool.tile.tma else f"{name}_ptr.dtype.element_ty"
        return "" if dtype == "fp32" else f".to({element})"

    @property
    def _product(self) -> Product:
        return Product() if self.pool.tile.one_row else main_product(self.context.group, self.member.weight.dtype)

    @property
    def _swap(self) -> bool:
        return self.pool.tile.swap_operands

    @property
    def _k_split(self) -> tuple[Param, ...]:
        """The number of slices of K, where there are several."""
        return (constant("K_SPLIT", self.pool.k_split),) if self.pool.k_split > 1 else ()

    def _product_tile(self, name: str, base: str, rows: Axis, cols: Axis, k_split: int) -> Tile:
        params = (buffer_pointer("product_ptr", self.context.product(self.main, k_split)), self.n)
        return Tile(name, base, (rows, cols), ("N", "1"), params, self._swap)

    def _described(
        self, name: str, operand: Operand, letters: tuple[str, str], sizes: tuple[str, str], starts: tuple[str, str]
    ) -> DescriptorTile:
        contiguous = contiguous_dim(operand)
        outer = 1 - contiguous
        expression = f"{self.context.expression(operand)}.stride({outer})"
        stride = constant(f"{name.upper()}_STRIDE_{letters[outer]}", operand.strides[outer], expression)
        extents = (self.loop.k, ROWS if "M" in letters else self.n)
        params = (self.context.pointer(f"{name}_ptr", operand), stride, *extents, *block_constants(self.pool.tile, "K"))
        blocks = block_constants(self.pool.tile, *(letter for letter in letters if letter != "K"))
        shape = (f"BLOCK_{letters[0]}", f"BLOCK_{letters[1]}")
        return DescriptorTile(name, shape, sizes, starts, contiguous, stride.name, params, blocks)

    def _rows(self) -> tuple[Part, Axis, Axis]:
        one = one_row_block(self.context.group, self.pool)
        width = max([self.member.n, *(operand.strides[0] for operand in self._ends if operand.shape)])
        return row_vectors(self.pool.tile, one_block=one, wide=wide_rows(self.context.group, width))

    @property
    def _ends(self) -> tuple[Operand, ...]:
        """What the epilogue reads beside the accumulators."""
        epilogue = self.context.group.epilogue_of(self.main)
        return epilogue.operands if epilogue is not None else ()

    def _cols(self) -> tuple[Part, Axis, Axis]:
        group = self.context.group
        branches = (branch for main in self.mains for branch in group.branches_of(main))
        weights = [group.members[at].weight for at in (*self.mains, *(branch.up for branch in branches))]
        stride = max(operand.strides[1] for operand in (*weights, *(each for each in self._ends if each.shape)))
        wide = self.member.n * stride >= INT32_ELEMENTS
        epilogue = group.epilogue_of(self.main)
        head = epilogue.head if epilogue is not None else 1
        return column_vectors(self.pool.tile, self.member.n, self.n, wide=wide, head=head)

    def _add_bias(self, name: str, bias: Operand | None, scale: float) -> Part:
        if bias is None:
            return Part()
        stride = constant(f"{name.upper()}_STRIDE", bias.strides[0], f"{self.context.expression(bias)}.stride(0)")
        cast = "" if bias.dtype == "fp32" else ".to(tl.float32)"
        spread = "[:, None]" if self._swap else "[None, :]"
        factor = () if scale == 1.0 else (constant(f"{name.upper()}_SCALE", scale),)
        return part(
            f"{name} = tl.load({name}_ptr + {self.read_cols.index} * {stride.name}){cast}",
            f"{self.acc} += {name}{spread}" + "".join(f" * {param.name}" for param in factor),
            params=(self.context.pointer(f"{name}_ptr", bias), stride, *factor),
        )


def main_tiles(context: Context, pool: Pool, mains: tuple[int, ...]) -> tuple[MainTile, ...]:
    """The tiles of one program, one of each of ``mains``."""
    return tuple(MainTile(context, pool, main, mains) for main in mains)


def operand_tiles(tiles: Sequence[MainTile]) -> tuple[Tile | DescriptorTile, ...]:
    """X, which all the tiles of a program read, and the weight of each."""
    return (tiles[0].x, *(tile.w for tile in tiles))


def low_ranks_of(tiles: Sequence[MainTile]) -> tuple[LowRankTile, ...]:
    """The branches of all the tiles of a program, in order."""
    return tuple(low_rank for tile in tiles for low_rank in tile.low_ranks)


def _fraction(size: str, parts: int) -> str:
    """Source of one of so many equal parts of a size."""
    return size if parts == 1 else f"{size} // {parts}"
