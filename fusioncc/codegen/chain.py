"""The kernel of a chain: loads, one line an op, stores; and the module around it.

A value is held in fp32 where eager has a half or an 8-bit float. In the tier ``fp32`` it stays so until it is stored;
in the tier ``eager`` every op rounds as eager would.
"""

from dataclasses import dataclass, field
from functools import cached_property

from fusioncc.chain import CONSTANT, Chain, ChainTile, Op
from fusioncc.codegen import pointwise
from fusioncc.codegen.chain_check import TORCH, check_sections, numbered
from fusioncc.codegen.chain_space import Space, space_of
from fusioncc.codegen.launch import Arg, Blocks, Buffer, EmittedModule, KernelLaunch
from fusioncc.codegen.lines import call, indented, paragraph, returned
from fusioncc.codegen.module import IMPORTS, LANGUAGE
from fusioncc.errors import EmissionError

CHAIN_TIERS = ("eager", "fp32")
IN_ORDER = ("aten.sum.dim_IntList", "aten.mean.dim")
"""Reductions whose result depends on the order of the additions."""
LIBDEVICE = "from triton.language.extra import libdevice\n"
LARGER = """@triton.jit
def {name}(a, b):
    # Unlike tl.{reduction}, a NaN wins.
    return tl.{op}(a, b, propagate_nan=tl.PropagateNan.ALL)
"""
RESERVED = ("rows", "cols", "tile", "tiles_a_row", "inside", "larger", "smaller", "libdevice")
"""Names that no value of a kernel has; nor those of the functions that expressions call."""
EXTREMES = {
    "aten.amax.default": ("larger", "max", "maximum", 'float("-inf")'),
    "aten.amin.default": ("smaller", "min", "minimum", 'float("inf")'),
}


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
    return _Writer(chain, tile, name, tier, " ".join(why.split())).emitted()


@dataclass(frozen=True)
class _Value:
    """A value in the kernel: its name or source, and whether it differs along rows and along columns."""

    source: str
    along: tuple[bool, bool]


@dataclass
class _Writer:
    chain: Chain
    tile: ChainTile
    name: str
    tier: str
    why: str
    values: list[_Value] = field(default_factory=list)

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
        kernel = self._kernel()
        text = "\n".join(kernel)
        libdevice = LIBDEVICE * pointwise.uses_libdevice(text)
        sections = [
            "\n".join(self._header()) + "\n\n" + IMPORTS + LANGUAGE + libdevice,
            *(helper for helper in self._reducers(text)),
            *pointwise.helpers(text),
            text + "\n",
            "\n".join(self._launch()) + "\n",
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
            load = f"tl.load({self._address(f'{name}_ptr', at)}{self._mask(along, load=True)})"
            held = pointwise.held(operand.dtype)
            cast = "" if held == operand.dtype != "bool" else f".to({_triton(held)})"
            lines.append(f"{name} = {load}{cast}")
            self.values.append(_Value(name, along))
        return lines

    def _ops(self) -> list[str]:
        lines, used = [], {*self.inputs, *self.outputs, *RESERVED}
        for op in self.chain.ops:
            stem = name = _stem(op)
            number = 0
            while name in used or pointwise.helpers(f"{name}("):
                number += 1
                name = f"{stem}_{number}"
            source, along = self._source(op)
            source = _bare(pointwise.rounded(source, op.dtype) if self.tier == "eager" else source)
            if source.isidentifier():  # a cast that rounds nothing here
                self.values.append(_Value(source, along))
                continue
            used.add(name)
            lines.append(f"{name} = {source}")
            self.values.append(_Value(name, along))
        return lines

    def _source(self, op: Op) -> tuple[str, tuple[bool, bool]]:
        read = [self.values[value] for value in op.values]
        along = (any(each.along[0] for each in read), any(each.along[1] for each in read))
        if op.target == CONSTANT:
            shape = "(1,)" if self.flat else "(1, 1)"
            value = pointwise.constant(op.args[0].constant, op.dtype)
            return f"tl.full({shape}, {value}, {_triton(pointwise.held(op.dtype))})", along
        if op.reduces:
            return self._reduction(op, read[0]), (along[0], False)
        terms = [
            pointwise.Term(arg.constant)
            if arg.value is None
            else pointwise.Term(
                self.values[arg.value].source, self.chain.dtype_of(arg.value), not self.chain.shape_of(arg.value)
            )
            for arg in op.args
        ]
        return pointwise.expression(op.target, terms, op.dtype, exact=self.tier == "eager"), along

    def _reduction(self, op: Op, value: _Value) -> str:
        source = value.source
        if not value.along[1]:
            source = f"tl.broadcast_to({source}, (BLOCK_M, BLOCK_N))"
        function, _, _, neutral = EXTREMES.get(op.target, ("", "", "", "0.0"))
        if self.ragged:
            source = f"tl.where(cols[None, :] < N, {source}, {neutral})"
        if function:
            return f"tl.reduce({source}, 1, {function}, keep_dims=True)"
        mean = " * (1.0 / N)" if op.target == "aten.mean.dim" else ""
        return f"tl.sum({source}, 1, keep_dims=True){mean}"

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
            along = self._along(len(self.chain.inputs) + at)
            if self.chain.by_rows and self.chain.shape_of(result.value)[-1:] == (1,) != self.chain.shape[-1:]:
                along = (True, False)
            else:
                along = (not self.flat, True)
            value = pointwise.stored(self.values[result.value].source, self.chain.dtype_of(result.value))
            address = self._address(f"{name}_ptr", len(self.chain.inputs) + at)
            lines.append(f"tl.store({address}, {value}{self._mask(along)})")
        return lines

    def _along(self, at: int) -> tuple[bool, bool]:
        """Whether a tensor differs along rows, and along columns."""
        strides = self.space.strides[at]
        return (any(strides[:-1]), strides[-1] != 0) if not self.flat else (False, strides[0] != 0)

    def _address(self, base: str, at: int) -> str:
        strides = self.space.strides[at]
        if at >= len(self.chain.inputs) and not any(strides):  # one element, which is written as a block too
            return f"{base} + cols" if self.flat else f"{base} + rows[:, None]"
        if self.flat:
            return base + _term("cols", strides[0])
        leading = [f"i{dim}" for dim in range(len(strides) - 1)] if len(strides) > 2 else ["rows"]
        terms = [_term(f"{index}[:, None]", step) for index, step in zip(leading, strides[:-1], strict=False)]
        return base + "".join([*terms, _term("cols[None, :]", strides[-1])])

    def _mask(self, along: tuple[bool, bool], load: bool = False) -> str:
        if self.flat:
            return ", mask=inside" * along[1]
        rows, cols = along[0], along[1] and self.ragged
        if rows and (cols or (along[1] and not self.ragged)):
            return ", mask=inside"
        return ", mask=rows[:, None] < M" * rows + ", mask=cols[None, :] < N" * (cols and not rows)

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

    def _launch(self) -> tuple[str, ...]:
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
        body += call(f"chain[({grid},)]", [*arguments, f"num_warps={self.tile.num_warps}"])
        body.append(returned(self.outputs))
        return (*call("def launch", [*self.inputs, "empty=torch.empty_strided"], ":", depth=0), *indented(body))

    def _holder(self, outer: int) -> tuple[str, int]:
        """An input that has all of the outermost dimension, and which of its own that is."""
        for name, operand in zip(self.inputs, self.chain.inputs, strict=True):
            dim = outer - (len(self.chain.shape) - len(operand.shape))
            if 0 <= dim < len(operand.shape) and operand.shape[dim] == self.chain.shape[outer]:
                return name, dim
        return "", 0


def _triton(dtype: str) -> str:
    """The Triton dtype of a held value."""
    return {"fp32": "tl.float32", "fp64": "tl.float64", "bool": "tl.int1"}.get(dtype, f"tl.{dtype}")


def _stem(op: Op) -> str:
    """The name of an op's value: the op's own."""
    stem = op.target.split(".")[1].strip("_")
    return {"convert_element_type": "cast", "to_copy": "cast", "to": "cast"}.get(stem, stem)


def _bare(source: str) -> str:
    """An expression without parentheses around all of it."""
    depth = 0
    for at, letter in enumerate(source):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(source) - 1:
            return source
    return source[1:-1] if source.startswith("(") else source


def _term(index: str, stride: int) -> str:
    return "" if stride == 0 else f" + {index}" + (f" * {stride}" if stride != 1 else "")


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
