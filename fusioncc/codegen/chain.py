"""The kernel of a chain: loads, one line an op, stores; and the module around it.

A value is held in fp32 where eager has a half or an 8-bit float. In the tier ``fp32`` it stays so until it is stored;
in the tier ``eager`` every op rounds as eager would.
"""

from dataclasses import dataclass, field
from functools import cached_property

from fusioncc.chain import IN_ORDER, Chain, ChainTile
from fusioncc.codegen import pointwise
from fusioncc.codegen.chain_check import TORCH, check_sections, numbered
from fusioncc.codegen.chain_ops import EXTREMES, LARGER, ChainOps, Value, approximates, bare
from fusioncc.codegen.chain_space import Space, space_of
from fusioncc.codegen.launch import Arg, Blocks, Buffer, EmittedModule, KernelLaunch
from fusioncc.codegen.lines import call, indented, paragraph, returned
from fusioncc.codegen.module import IMPORTS, LANGUAGE, LIBDEVICE
from fusioncc.errors import EmissionError

CHAIN_TIERS = ("eager", "fp32")
MAX_TILE = 2**16
"""Most elements of a tile."""


def check_chain(chain: Chain, tier: str) -> None:
    """What :func:`emit_chain` refuses, before anything is written.

    Raises:
        EmissionError: the chain has no emitted form in this tier.
    """
    if tier not in CHAIN_TIERS:
        raise EmissionError(f"tier {tier!r} has no emitted form for chains; emitted tiers: {', '.join(CHAIN_TIERS)}")
    summed = next((op for op in chain.ops if op.target in IN_ORDER), None)
    if tier == "eager" and summed is not None:
        raise EmissionError(f"{summed.node} adds up rows in an order of its own: not the bits of eager")


def check_tile(chain: Chain, tile: ChainTile) -> None:
    """What a plan edited by hand may hold.

    Raises:
        EmissionError: the tile has no emitted form for this chain.
    """
    space = space_of(chain)
    flat = len(space.sizes) == 1 and not chain.by_rows
    blocks = (tile.block_n,) if flat else (tile.block_m, tile.block_n)
    if flat != (tile.block_m == 0) or any(block < 1 or block & (block - 1) for block in blocks):
        raise EmissionError("the sides of a chain's tile are powers of two, block_m is 0 where it has one dimension")
    if tile.num_warps not in (1, 2, 4, 8, 16) or max(1, tile.block_m) * tile.block_n > MAX_TILE:
        raise EmissionError(f"num_warps is a power of two up to 16, a chain's tile has at most {MAX_TILE} elements")
    if chain.by_rows and tile.block_n < space.sizes[-1]:
        raise EmissionError(f"block_n {tile.block_n} does not hold a row of {space.sizes[-1]} elements")


def emit_chain(chain: Chain, tile: ChainTile, *, name: str, tier: str, why: str) -> EmittedModule:
    """The Triton module of a chain.

    Args:
        name: name of the module, an identifier (``c0_silu_mul_1024x12288``).
        tier: rounding tier, ``eager`` or ``fp32``.
        why: why it is one kernel, a line for the header.

    Raises:
        EmissionError: the chain has no emitted form in this tier.
    """
    check_chain(chain, tier)
    check_tile(chain, tile)
    return _Writer(chain, tile, name, tier, " ".join(why.split())).emitted()


@dataclass
class _Writer:
    chain: Chain
    tile: ChainTile
    name: str
    tier: str
    why: str
    values: list[Value] = field(default_factory=list)

    @cached_property
    def space(self) -> Space:
        return space_of(self.chain)

    @property
    def flat(self) -> bool:
        """Whether tiles have one dimension."""
        return self.tile.block_m == 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that are read."""
        return numbered("x", len(self.chain.inputs))

    @property
    def outputs(self) -> tuple[str, ...]:
        return numbered("out", len(self.chain.results))

    @property
    def ragged(self) -> bool:
        """Whether the last tile of a row ends behind the row."""
        return self.space.sizes[-1] % self.tile.block_n != 0

    def emitted(self) -> EmittedModule:
        kernel = "\n".join(self._kernel()) + "\n"
        near = self.tier == "fp32" and approximates(self.chain)
        called = pointwise.fast(kernel) if near else (*pointwise.helpers(kernel), kernel)
        functions = [*self._reducers(kernel), *called]
        libdevice = LIBDEVICE * any("libdevice." in each for each in functions)
        exact = self.tier == "eager" and bool(libdevice)
        sections = [
            "\n".join(self._header()) + "\n\n" + IMPORTS + LANGUAGE + libdevice,
            *functions,
            "\n".join(self._launch(exact)) + "\n",
            *check_sections(self.chain, self.space, self.name, self.tier, interpreted=not libdevice),
        ]
        buffers = tuple(
            Buffer(output, self.chain.shape_of(result.value), self.chain.dtype_of(result.value), "output", at)
            for at, (output, result) in enumerate(zip(self.outputs, self.chain.results, strict=True))
        )
        blocks = Blocks(self.tile.block_n, 1) if self.flat else Blocks(self.tile.block_m, self._tiles_a_row)
        args = (
            *(Arg(f"{x}_ptr", "operand", each) for x, each in zip(self.inputs, self.chain.inputs, strict=True)),
            *(Arg(f"{out}_ptr", "buffer", value=out) for out in self.outputs),
            Arg("M", "rows"),
            *(Arg(constant, "constexpr", value=value) for constant, value in self._constants()),
        )
        launch = KernelLaunch("chain", args, (blocks,), self.tile.num_warps, 1)
        return EmittedModule(self.name, "\n\n".join(sections), buffers, (launch,), self.chain.inputs)

    @property
    def _tiles_a_row(self) -> int:
        return -(-self.space.sizes[-1] // self.tile.block_n)

    def _constants(self) -> list[tuple[str, int]]:
        blocks = [] if self.flat else [("N", self.space.sizes[-1]), ("BLOCK_M", self.tile.block_m)]
        return [*blocks, ("BLOCK_N", self.tile.block_n)]

    def _kernel(self) -> tuple[str, ...]:
        declared = [f"{each}_ptr" for each in (*self.inputs, *self.outputs)]
        declared += ["M", *(f"{constant}: tl.constexpr" for constant, _ in self._constants())]
        body = [*self._indices(), "", *self._loads(), *self._ops(), "", *self._stores()]
        return ("@triton.jit", *call("def chain", declared, ":", depth=0), *indented(body))

    def _indices(self) -> list[str]:
        wide = ".to(tl.int64)" * self.space.wide
        tile = f"tl.program_id(0){wide}"
        if self.flat:
            return [f"cols = {tile} * BLOCK_N + tl.arange(0, BLOCK_N)", "inside = cols < M"]
        if self.chain.by_rows:
            lines = [f"rows = {tile} * BLOCK_M + tl.arange(0, BLOCK_M)", f"cols = tl.arange(0, BLOCK_N){wide}"]
        else:
            lines = [
                f"tile = {tile}",
                "tiles_a_row = tl.cdiv(N, BLOCK_N)",
                "rows = tile // tiles_a_row * BLOCK_M + tl.arange(0, BLOCK_M)",
                "cols = tile % tiles_a_row * BLOCK_N + tl.arange(0, BLOCK_N)",
            ]
        below = 1
        leading = self.space.sizes[:-1]
        for dim in reversed(range(len(leading))) if len(leading) > 1 else ():
            quotient = f"rows // {below}" if below > 1 else "rows"
            lines.append(f"i{dim} = {quotient}" + (f" % {leading[dim]}" if dim else ""))
            below *= leading[dim]
        lines.append("inside = rows[:, None] < M")
        if self.ragged:
            lines[-1] = "inside = (rows[:, None] < M) & (cols[None, :] < N)"
        return lines

    def _loads(self) -> list[str]:
        lines = []
        for at, (name, operand) in enumerate(zip(self.inputs, self.chain.inputs, strict=True)):
            along = self._along(at)
            load = f"tl.load({self._address(f'{name}_ptr', at)}{self._mask(along)})"
            lines.append(f"{name} = {bare(pointwise.loaded(load, operand.dtype))}")
            self.values.append(Value(name, along))
        return lines

    def _ops(self) -> list[str]:
        one = "(1,)" if self.flat else "(1, 1)"
        ops = ChainOps(self.chain, self.tier == "eager", {*self.inputs, *self.outputs}, one, self.ragged)
        lines = ops.lines(self.values)
        self.values = ops.values
        return lines

    def _reducers(self, text: str) -> list[str]:
        """The functions by which the kernel reduces."""
        return [
            LARGER.format(name=name, reduction=reduction, op=op)
            for name, reduction, op, _ in EXTREMES.values()
            if f", {name}, keep_dims" in text
        ]

    def _stores(self) -> list[str]:
        lines = []
        for at, (name, result) in enumerate(zip(self.outputs, self.chain.results, strict=True)):
            whole = self.chain.shape_of(result.value)[-1:] == self.chain.shape[-1:]
            along = (not self.flat, whole or not self.chain.by_rows)
            made = self.values[result.value]
            value = made.source if made.cast else pointwise.stored(made.source, self.chain.dtype_of(result.value))
            address = self._address(f"{name}_ptr", len(self.chain.inputs) + at)
            lines.append(f"tl.store({address}, {value}{self._mask(along)})")
        return lines

    def _along(self, at: int) -> tuple[bool, bool]:
        """Whether a tensor differs along rows, and along columns."""
        strides = self.space.strides[at]
        return any(strides[:-1]), strides[-1] != 0

    def _address(self, base: str, at: int) -> str:
        strides = self.space.strides[at]
        if at >= len(self.chain.inputs) and not any(strides):  # one element, which is written as a block too
            return f"{base} + cols" if self.flat else f"{base} + rows[:, None]"
        if self.flat:
            return base + _term("cols", strides[0])
        leading = [f"i{dim}" for dim in range(len(strides) - 1)] if len(strides) > 2 else ["rows"]
        terms = [_term(f"{index}[:, None]", step) for index, step in zip(leading, strides[:-1], strict=False)]
        return base + "".join([*terms, _term("cols[None, :]", strides[-1])])

    def _mask(self, along: tuple[bool, bool]) -> str:
        if self.flat:
            return ", mask=inside" * along[1]
        if all(along):
            return ", mask=inside"
        return ", mask=rows[:, None] < M" * along[0] + ", mask=cols[None, :] < N" * (along[1] and self.ragged)

    def _header(self) -> list[str]:
        lines = [f'"""{self.name}: a chain of {len(self.chain.ops)} ops, tier {self.tier}.', ""]
        for name, operand in zip(self.inputs, self.chain.inputs, strict=True):
            lines.append(f"    {name:8} {list(operand.shape)} {operand.dtype}, strides {operand.strides}")
        for name, result in zip(self.outputs, self.chain.results, strict=True):
            shape, dtype = self.chain.shape_of(result.value), self.chain.dtype_of(result.value)
            lines.append(f"    {name:8} {list(shape)} {dtype}, strides {result.strides}")
        size = f"{self.tile.block_n} elements" if self.flat else f"{self.tile.block_m} x {self.tile.block_n} elements"
        lines += ["", f"    chain: tiles of {size}, {self.tile.num_warps} warps", ""]
        return [*lines, *paragraph(f"Why one kernel: {self.why}"), '"""']

    def _launch(self, exact: bool) -> tuple[str, ...]:
        """``launch()``. Where it is to be ``exact``, libdevice does not take denormal numbers for zero."""
        outer, below = self.space.outer, self.space.below
        for size in self.space.sizes[1:-1]:
            below *= size
        holder, dim = self._holder(outer)
        body = [f'"""{", ".join(self.outputs)} from tensors as in the header; ``empty`` allocates."""']
        body.append(f"outer = {holder}.shape[{dim}]" if holder else f"outer = {(self.chain.shape or (1,))[outer]}")
        body.append(
            "m = outer" + (f" * {below}" if below > 1 else "") if len(self.space.sizes) > 1 or self.flat else "m = 1"
        )
        device = f"{self.inputs[0]}.device"
        for name, result in zip(self.outputs, self.chain.results, strict=True):
            shape = self.chain.shape_of(result.value)
            at = outer - (len(self.chain.shape) - len(shape))
            sizes = ["outer" if dim == at and size > 1 else str(size) for dim, size in enumerate(shape)]
            sides = [
                _tuple(sizes),
                _tuple(list(map(str, result.strides))),
                f"dtype={TORCH[self.chain.dtype_of(result.value)]}",
            ]
            body += call(f"{name} = empty", [*sides, f"device={device}"])
        block = self.tile.block_n if self.flat else self.tile.block_m
        grid = f"triton.cdiv(m, {block})" + (
            f" * {self._tiles_a_row}" if self._tiles_a_row > 1 and not self.flat else ""
        )
        arguments = [*self.inputs, *self.outputs, "m", *(f"{name}={value}" for name, value in self._constants())]
        options = [f"num_warps={self.tile.num_warps}", *["enable_reflect_ftz=False"] * exact]
        body += call(f"chain[({grid},)]", [*arguments, *options])
        body.append(returned(self.outputs))
        return (*call("def launch", [*self.inputs, "empty=torch.empty_strided"], ":", depth=0), *indented(body))

    def _holder(self, outer: int) -> tuple[str, int]:
        """An input that has all of the outermost dimension, and which of its own that is."""
        for name, operand in zip(self.inputs, self.chain.inputs, strict=True):
            dim = outer - (len(self.chain.shape) - len(operand.shape))
            if 0 <= dim < len(operand.shape) and operand.shape[dim] == self.chain.shape[outer]:
                return name, dim
        return "", 0


def _term(index: str, stride: int) -> str:
    return "" if stride == 0 else f" + {index}" + (f" * {stride}" if stride != 1 else "")


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
