"""Low-rank branches inside a kernel: accumulating ``y = X @ A``, saving it, and joining ``scale * y @ B``."""

from dataclasses import dataclass, replace

from fusioncc.codegen.context import Context
from fusioncc.codegen.kernel import Param, Part, buffer_pointer, constant, part, total
from fusioncc.codegen.launch import Buffer
from fusioncc.codegen.precision import Product, dot, down_product, join_product, multiply_add
from fusioncc.codegen.tile import Axis, Tile, block_constants, masked
from fusioncc.group import Branch, Member
from fusioncc.schedule import COMPENSATED_STEP, UNROLLED_SLICES, TileConfig, padded_rank, pieces_beside


@dataclass(frozen=True)
class LowRankTile:
    """One branch as a kernel sees it: the low-rank counterpart of a main tile.

    ``tail`` tells its names from those of the kernel's other branches; ``rank_tail`` is empty where all branches of the
    kernel have one rank.
    """

    context: Context
    branch: Branch
    tile: TileConfig
    tail: str
    rank_tail: str
    acc: str = "acc"
    """Name of the accumulator that it joins."""

    @property
    def down(self) -> Member:
        return self.context.member(self.branch.down)

    @property
    def up(self) -> Member:
        return self.context.member(self.branch.up)

    @property
    def y(self) -> str:
        """Name of the fp32 product ``X @ A`` (later ``scale * X @ A``)."""
        return f"y{self.tail}"

    @property
    def rank(self) -> Param:
        return constant(f"R{self.rank_tail}", self.down.n)

    @property
    def padded(self) -> Param:
        return constant(f"RP{self.rank_tail}", padded_rank(self.down.n))

    @property
    def axis(self) -> Axis:
        """The rank as a dimension of tiles; bounded where it is padded."""
        axis = Axis("R", f"ranks{self.rank_tail}")
        return axis if padded_rank(self.down.n) == self.down.n else masked(axis, self.rank.name)

    @property
    def bounds(self) -> tuple[Param, ...]:
        return (self.rank,) if self.axis.bound else ()

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that the products of the branch call."""
        return self._down_product.helpers + self._join_product.helpers

    def vectors(self) -> Part:
        return part(f"{self.axis.index} = tl.arange(0, {self.padded.name})", params=(self.padded,))

    @property
    def stepped(self) -> bool:
        """Whether a join from memory takes the ranks in steps: the products of one are one chain of additions."""
        return self._join_product.compensated and padded_rank(self.down.n) > COMPENSATED_STEP

    def steps(self, body: Part) -> Part:
        """``body``, which reads ``y`` and joins it, for each step of the ranks: a loop, since unrolled it spilled 704
        bytes in a tile of ``two_pool`` (rank 128)."""
        loop = part(
            f"for first_rank in tl.range(0, {self.padded.name}, {COMPENSATED_STEP}, num_stages=1):",
            params=(self.padded,),
        )
        ranks = part(f"{self.axis.index} = first_rank + tl.arange(0, {COMPENSATED_STEP})")
        return loop + (ranks + body).indented()

    def a_tile(self, ks: Axis, bounds: tuple[Param, ...]) -> Tile:
        """The tile of A that the K loop reads."""
        return self._tile(f"a{self.tail}", self.down, (ks, self.axis), bounds)

    def zero(self) -> Part:
        letter = "K" if self.tile.one_row else "M"
        shape = (f"4 * {self.padded.name}" if self._down_product.beside else self.padded.name, f"BLOCK_{letter}")
        params = (self.padded, *block_constants(self.tile, letter))
        ordered = shape if self.tile.swap_operands else shape[::-1]
        zeros = part(f"{self.y} = tl.zeros(({', '.join(ordered)}), tl.float32)", params=params)
        return zeros + (part(f"{self.y}_lost = tl.zeros_like({self.y})") if self._down_product.compensated else Part())

    def accumulate(self) -> Part:
        """``y += x @ a``; a tile of one row leaves the sum along K to :meth:`settled`."""
        a, dtypes = f"a{self.tail}", (self.context.group.lhs.dtype, self.down.weight.dtype)
        if self.tile.one_row:
            return part(multiply_add("x", a, self.y, *dtypes))
        return part(*dot("x", a, self.y, self._down_product, self.tile.swap_operands))

    def settled(self) -> Part:
        """Behind the K loop ``y`` is the product: the sum along K in a tile of one row, or that of the pieces of A."""
        if self.tile.one_row:
            return part(f"{self.y} = tl.sum({self.y}, 1, keep_dims=True)")
        if self._down_product.beside:
            pieces = f"tl.reshape({self.y}, (BLOCK_M, {self.padded.name}, 4))"
            return part(f"{self.y} = tl.sum({pieces}, 2)", params=(self.padded, *block_constants(self.tile, "M")))
        return Part()

    def store_slice(self, buffer: Buffer, rows: Axis, wide: bool) -> Part:
        """Write the partial sum of this program's slice of K."""
        k_slice = "k_slice.to(tl.int64)" if wide else "k_slice"
        start = "" if buffer.shape[0] == 1 else f" + {k_slice} * M * {self.padded.name}"
        tile = self._buffer_tile(
            self.y, buffer, rows, f"y{self.tail}_ptr{start}", self.padded, Axis("R", self.axis.index)
        )
        return tile.setup() + tile.store(self.y)

    def load_slices(self, buffer: Buffer, rows: Axis) -> Part:
        """Read ``y``: the sum of its slices in a fixed order."""
        tile = self._buffer_tile(self.y, buffer, rows, f"y{self.tail}_ptr", self.padded, Axis("R", self.axis.index))
        read = tile.setup() + tile.load()
        if buffer.shape[0] == 1:
            return read
        split = constant("K_SPLIT", int(buffer.shape[0]))
        unrolled = int(buffer.shape[0]) <= UNROLLED_SLICES
        turn = "turn" if self.stepped else "_"  # inside a loop, no name that another loop had before it
        return read + part(
            f"for {turn} in {'tl.static_range(1, K_SPLIT)' if unrolled else 'tl.range(1, K_SPLIT, num_stages=1)'}:",
            f"    {self.y}_tile += M * {self.padded.name}",
            f"    {self.y} += tl.load({self.y}_tile)",
            params=(split, self.padded),
        )

    def store_beside(self, buffer: Buffer, rows: Axis, begin: Param, width: Param, stride: Param) -> Part:
        """Write ``scale * y``, and zeros up to ``width``, into the columns of ``[X | s X A]`` from ``begin`` on."""
        axis = Axis("R", self.axis.index, "" if padded_rank(self.down.n) == width.arg.value else width.name)
        params = (buffer_pointer(f"{buffer.name}_ptr", buffer), begin, stride, *((width,) if axis.bound else ()))
        base = f"{buffer.name}_ptr + {begin.name}"
        tile = Tile(self.y, base, (rows, axis), (stride.name, "1"), params, self.tile.swap_operands)
        scaled = self._masked() + self._scaled() + (self.load_bias() + self._biased())
        return scaled + tile.setup() + tile.store(f"{self.y}.to({buffer.name}_ptr.dtype.element_ty)")

    def save(self, buffer: Buffer, rows: Axis) -> Part:
        """Write the down product itself, in its own dtype."""
        tile = self._saved_tile(buffer, rows)
        value = self.y if self.down.bias is None else f"({self.y} + {self._along_rank(f'a_bias{self.tail}')})"
        return tile.setup() + tile.store(f"{value}.to({tile.base}.dtype.element_ty)")

    def load_saved(self, buffer: Buffer, rows: Axis) -> Part:
        """Read the saved down product back as ``y``."""
        tile = self._saved_tile(buffer, rows)
        name = tile.name
        return tile.setup() + tile.load() + part(f"{self.y} = {name}.to(tl.float32)")

    def load_bias(self) -> Part:
        """The bias of the down member, as fp32."""
        if self.down.bias is None:
            return Part()
        name, bias = f"a_bias{self.tail}", self.down.bias
        stride = constant(f"{name.upper()}_STRIDE", bias.strides[0], f"{self.context.expression(bias)}.stride(0)")
        mask = f", mask={self.axis.index} < {self.axis.bound}, other=0.0" if self.axis.bound else ""
        load = f"{name} = tl.load({name}_ptr + {self.axis.index} * {stride.name}{mask})"
        cast = "" if bias.dtype == "fp32" else ".to(tl.float32)"
        return part(load + cast, params=(self.context.pointer(f"{name}_ptr", bias), stride, *self.bounds))

    def join(self, cols: Axis, *, bias: bool, opens: bool) -> Part:
        """``acc += scale * y @ b``, or ``acc =`` that where it ``opens``; ``bias`` adds the down member's."""
        tile = self._tile(f"b{self.tail}", self.up, (self.axis, cols), ())
        names = (self.y, f"b{self.tail}", self.acc)
        joined = (
            part(f"{self.acc} += tl.sum({self._fp32_b} * tl.trans({self.y}), 1, keep_dims=True)")
            if self.tile.one_row
            else part(*dot(*names, self._join_product, self.tile.swap_operands, opens=opens), params=self._x())
        )
        y = self._masked() + self._scaled() + (self._biased() if bias else Part())
        return y + tile.setup() + tile.load() + joined

    @property
    def _fp32_b(self) -> str:
        return f"b{self.tail}" + ("" if self.up.weight.dtype == "fp32" else ".to(tl.float32)")

    @property
    def _down_product(self) -> Product:
        if self.tile.one_row:
            return Product()
        product = down_product(self.context.group, self.down.weight.dtype, self.context.tier)
        beside = product.cut == ("right",) and pieces_beside(self.tile, padded_rank(self.down.n))
        return replace(product, beside=beside)

    @property
    def _join_product(self) -> Product:
        if self.tile.one_row:
            return Product()
        return join_product(self.context.group, self.down.weight.dtype, self.up.weight.dtype, self.context.tier)

    def _x(self) -> tuple[Param, ...]:
        """X, where the join asks for its dtype."""
        return (self.context.pointer("x_ptr", self.context.group.lhs),) if self._join_product.needs_x else ()

    def _masked(self) -> Part:
        """An infinity in X times the padding of A is no number: the columns of y beyond the rank are zero again."""
        if not self.axis.bound:
            return Part()
        inside = f"{self._along_rank(self.axis.index)} < {self.axis.bound}"
        return part(f"{self.y} = tl.where({inside}, {self.y}, 0.0)", params=self.bounds)

    def _scaled(self) -> Part:
        factors: list[Part] = []
        if self.branch.scale != 1.0:
            name = f"SCALE{self.tail}"
            factors.append(part(name, params=(constant(name, self.branch.scale),)))
        for index, scale in enumerate(self.branch.scale_tensors):
            name = f"scale{self.tail}" + (f"_{index}" if len(self.branch.scale_tensors) > 1 else "") + "_ptr"
            factors.append(part(f"tl.load({name}).to(tl.float32)", params=(self.context.pointer(name, scale),)))
        if not factors:
            return Part()
        product = total(factors)
        return part(f"{self.y} *= {' * '.join(product.lines)}", params=product.params)

    def _biased(self) -> Part:
        if self.down.bias is None:
            return Part()
        value = self._along_rank(f"a_bias{self.tail}")
        if self.down.bias_scale == 1.0:
            return part(f"{self.y} += {value}")
        factor = constant(f"A_BIAS_SCALE{self.tail}", self.down.bias_scale)
        return part(f"{self.y} += {value} * {factor.name}", params=(factor,))

    def _along_rank(self, vector: str) -> str:
        return f"{vector}[:, None]" if self.tile.swap_operands else f"{vector}[None, :]"

    def _tile(self, name: str, member: Member, axes: tuple[Axis, Axis], bounds: tuple[Param, ...]) -> Tile:
        return self.context.tile(name, member.weight, axes, self.tile.swap_operands, (*self.bounds, *bounds))

    def _saved_tile(self, buffer: Buffer, rows: Axis) -> Tile:
        name = f"saved{self.tail}"
        return self._buffer_tile(name, buffer, rows, f"{name}_ptr", self.rank, self.axis)

    def _buffer_tile(self, name: str, buffer: Buffer, rows: Axis, base: str, width: Param, axis: Axis) -> Tile:
        params = (buffer_pointer(f"{name}_ptr", buffer), width, *self.bounds)
        return Tile(name, base, (rows, axis), (width.name, "1"), params, self.tile.swap_operands)


def low_ranks(context: Context, branches: tuple[Branch, ...], tile: TileConfig) -> tuple[LowRankTile, ...]:
    """The branches of one kernel, in order."""
    one = len(branches) == 1
    one_rank = len({context.member(branch.down).n for branch in branches}) == 1
    return tuple(
        LowRankTile(context, branch, tile, "" if one else str(i), "" if one_rank else str(i))
        for i, branch in enumerate(branches)
    )


def rank_vectors(lows: tuple[LowRankTile, ...]) -> Part:
    """Index vectors of the ranks, each once."""
    vectors = total([low_rank.vectors() for low_rank in lows])
    return Part(tuple(dict.fromkeys(vectors.lines)), vectors.params)


def joined_vectors(lows: tuple[LowRankTile, ...]) -> Part:
    """Those of a kernel that reads the down products from memory: branches that go in steps have theirs there."""
    return rank_vectors(tuple(low_rank for low_rank in lows if not low_rank.stepped))


def helpers(lows: tuple[LowRankTile, ...]) -> tuple[str, ...]:
    """Device functions that the branches call, each once."""
    return tuple(dict.fromkeys(helper for low_rank in lows for helper in low_rank.helpers))
