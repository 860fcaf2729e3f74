"""The end of a tile: biases, what the group's epilogue makes of the accumulators, one rounding, the stores."""

from dataclasses import dataclass, replace
from functools import cached_property

from fusioncc.codegen import pointwise, rotary
from fusioncc.codegen.chain_check import numbered
from fusioncc.codegen.chain_ops import ChainOps, Value, approximates, bare
from fusioncc.codegen.descriptor import DescriptorTile
from fusioncc.codegen.kernel import Param, Part, constant, part, repeated_rows, total
from fusioncc.codegen.main_tile import MainTile
from fusioncc.codegen.tile import Axis, Tile
from fusioncc.group import Epilogue, Operand

NAMES = ("a", "b", "g", "k", "m", "n", "out", "product", "rstd", "squares", "w", "wide", "x", "y")
"""Stems of what kernels call their own; with a number behind as well."""


@dataclass(frozen=True)
class Ending:
    """What one program does with the accumulators of its ``tiles``."""

    tiles: tuple[MainTile, ...]

    @property
    def body(self) -> Part:
        """Biases in fp32, the outputs that are wanted, the epilogue, the stores of its results."""
        outputs = total([tile.store(out, tile.acc, _rounding(tile)) for tile, out in self._outputs])
        return total([tile.biased() for tile in self.tiles]) + outputs + (self._chain.body if self._chain else Part())

    @property
    def written(self) -> tuple[Tile | DescriptorTile, ...]:
        """The tiles that it stores."""
        return (*(out for _, out in self._outputs), *(self._chain.results if self._chain else ()))

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that the tiles and the epilogue call, each once."""
        called = [helper for tile in self.tiles for helper in tile.helpers]
        return tuple(dict.fromkeys([*called, *(self._chain.helpers if self._chain else ())]))

    @property
    def _outputs(self) -> list[tuple[MainTile, Tile | DescriptorTile]]:
        """Outputs that are stored as they are."""
        stored = [tile for tile in self.tiles if tile.context.is_stored(tile.main)]
        return [(tile, tile.written(f"out{tile.tail}", tile.context.output(tile.main))) for tile in stored]

    @cached_property
    def _chain(self) -> "_Chain | None":
        epilogue = self.tiles[0].context.group.epilogue_of(self.tiles[0].main)
        return _Chain(self.tiles, epilogue) if epilogue is not None else None


def _rounding(tile: MainTile) -> str:
    return tile.rounding(f"out{tile.tail}", tile.context.output(tile.main).dtype)


@dataclass(frozen=True)
class _Chain:
    """The epilogue of ``tiles``, in fp32 until it is stored."""

    tiles: tuple[MainTile, ...]
    epilogue: Epilogue

    @property
    def body(self) -> Part:
        """Load what it reads beside the accumulators, one line an op, store."""
        loads = total([self._load(name, operand) for name, operand in self._operands])
        return loads + part(*self._written[1]) + self._stores

    @property
    def results(self) -> tuple[Tile | DescriptorTile, ...]:
        """The tiles of what it makes."""
        buffers = self.tiles[0].context.results(self.epilogue)
        return tuple(map(self.tiles[0].written, numbered("h", len(buffers)), buffers))

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that its lines call."""
        swap, text = self.tiles[0].pool.tile.swap_operands, "\n".join(self._ops[0])
        return (*rotary.helpers(text, swap=swap), *self._written[0], *pointwise.helpers("\n".join(self._stores.lines)))

    @property
    def _operands(self) -> tuple[tuple[str, Operand], ...]:
        """What it reads beside the accumulators, by its name in the kernel."""
        operands = self.epilogue.operands
        return tuple(zip(numbered("z", len(operands)), operands, strict=True))

    def _load(self, name: str, operand: Operand) -> Part:
        """One operand, held, in a shape that broadcasts to the tile."""
        first, context = self.tiles[0], self.tiles[0].context
        axes, sizes = self._axes(name, operand)
        swap = first.pool.tile.swap_operands
        along = [dim for dim, size in enumerate(operand.shape) if size > 1]
        if len(along) == 2:
            tile = context.tile(name, operand, axes, swap, sizes)
            held = bare(pointwise.loaded(name, operand.dtype))
            return tile.setup() + tile.load() + (part(f"{name} = {held}") if held != name else Part())
        pointer = context.pointer(f"{name}_ptr", operand)
        if not along:
            source = bare(pointwise.loaded(f"tl.load({name}_ptr)", operand.dtype))
            return part(f"{name} = {source}", params=(pointer,))
        (dim,) = along
        axis, source = axes[dim], f"{context.expression(operand)}.stride({dim})"
        stride = constant(f"{name.upper()}_STRIDE_{axis.letter}", operand.strides[dim], source)
        load = f"tl.load({name}_ptr + {axis.index} * {stride.name}){'[:, None]' if (dim == 0) != swap else '[None, :]'}"
        return part(f"{name} = {bare(pointwise.loaded(load, operand.dtype))}", params=(pointer, stride, *sizes))

    def _axes(self, name: str, operand: Operand) -> tuple[tuple[Axis, Axis], tuple[Param, ...]]:
        """The rows and columns of an operand that a tile reads, and the sizes of those sides that are repeated."""
        first, source = self.tiles[0], self.tiles[0].context.expression(operand)
        axes, sizes = [first.read_rows, first.read_cols], []
        for dim, (size, whole) in enumerate(zip(operand.shape, self.epilogue.chain.shape, strict=False)):
            if 1 < size < whole:
                axis, stem = axes[dim], f"{name.upper()}_{axes[dim].letter}"
                length = f"{source}.shape[{dim}]"
                known = dim == 1 or not self.tiles[0].context.group.m_symbol
                sizes.append(constant(stem, size, length) if known else repeated_rows(stem, operand, length))
                axes[dim] = replace(axis, index=f"({axis.index} % {sizes[-1].name})")
        return (axes[0], axes[1]), tuple(sizes)

    @cached_property
    def _ops(self) -> tuple[list[str], list[Value]]:
        """The lines of the ops, and the values of the chain by their numbers."""
        operands = [name for name, _ in self._operands]
        used = {stem + tail for stem in NAMES for tail in ("", *map(str, range(16)))}
        used |= {*operands, *(tile.name for tile in self.results)}
        ops = ChainOps(self.epilogue.chain, exact=False, used=used, one="(1, 1)", width=self.tiles[0].pool.tile.block_n)
        values = (*(tile.acc for tile in self.tiles), *operands)
        return ops.lines([Value(each, (True, True)) for each in values]), ops.values

    @cached_property
    def _written(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Device functions, and the lines that call them; approximate where that is far below what results round."""
        text = "\n".join(self._ops[0])
        if approximates(self.epilogue.chain):
            *helpers, text = pointwise.fast(text)
            return tuple(helpers), tuple(text.splitlines())
        return pointwise.helpers(text), tuple(text.splitlines())

    @property
    def _stores(self) -> Part:
        body, chain = Part(), self.epilogue.chain
        for result, tile in zip(chain.results, self.results, strict=True):
            value, dtype = self._ops[1][result.value], chain.dtype_of(result.value)
            half = dtype in ("bf16", "fp16")
            source = value.source if value.cast or half else pointwise.stored(value.source, dtype)
            if not source.isidentifier():
                body += part(f"{tile.name} = {source}")
                source = tile.name
            body += self.tiles[0].store(tile, source, self.tiles[0].rounding(tile.name, dtype) if half else "")
        return body
