"""The end of a tile: biases, what the group's epilogue makes of the accumulators, one rounding, the stores."""

from dataclasses import dataclass
from functools import cached_property

from fusioncc.codegen import pointwise
from fusioncc.codegen.chain_check import numbered
from fusioncc.codegen.chain_ops import ChainOps, Value, approximates
from fusioncc.codegen.descriptor import DescriptorTile
from fusioncc.codegen.kernel import Part, constant, part, total
from fusioncc.codegen.main_tile import MainTile
from fusioncc.codegen.tile import Axis, Tile
from fusioncc.group import Epilogue, Operand

NAMES = ("a", "b", "k", "m", "n", "out", "product", "w", "x", "y")
"""Stems of what kernels call their own; with a number behind as well."""


@dataclass(frozen=True)
class Ending:
    """What one program does with the accumulators of its ``tiles``."""

    tiles: tuple[MainTile, ...]

    @property
    def epilogue(self) -> Epilogue | None:
        return self.first.context.group.epilogue_of(self.first.main)

    @property
    def first(self) -> MainTile:
        return self.tiles[0]

    @property
    def body(self) -> Part:
        """Biases in fp32, the epilogue in fp32, one rounding, the stores."""
        outputs = total([tile.store(out, tile.acc, self._rounding(tile)) for tile, out in self._outputs])
        return total([tile.biased() for tile in self.tiles]) + outputs + self._loads + self._ops[0] + self._stores

    @property
    def written(self) -> tuple[Tile | DescriptorTile, ...]:
        """The tiles that it stores."""
        return (*(out for _, out in self._outputs), *self._results)

    @property
    def helpers(self) -> tuple[str, ...]:
        """Device functions that the tiles and the epilogue call, each once."""
        return tuple(dict.fromkeys([*(each for tile in self.tiles for each in tile.helpers), *self._ops[1]]))

    @property
    def _outputs(self) -> list[tuple[MainTile, Tile | DescriptorTile]]:
        """Outputs that are stored as they are."""
        context = self.first.context
        stored = [tile for tile in self.tiles if context.is_stored(tile.main)]
        return [(tile, tile.written(f"out{tile.tail}", context.output(tile.main))) for tile in stored]

    @staticmethod
    def _rounding(tile: MainTile) -> str:
        return tile.rounding(f"out{tile.tail}", tile.context.output(tile.main).dtype)

    @property
    def _results(self) -> tuple[Tile | DescriptorTile, ...]:
        if self.epilogue is None:
            return ()
        buffers = self.first.context.results(self.epilogue)
        return tuple(map(self.first.written, numbered("h", len(buffers)), buffers))

    @property
    def _operands(self) -> tuple[tuple[str, Operand], ...]:
        """What the epilogue reads beside the accumulators, by its name in the kernel."""
        operands = () if self.epilogue is None else self.epilogue.operands
        return tuple(zip(numbered("z", len(operands)), operands, strict=True))

    @property
    def _loads(self) -> Part:
        return total([self._load(name, operand) for name, operand in self._operands])

    def _load(self, name: str, operand: Operand) -> Part:
        """One operand of the epilogue, held, in a shape that broadcasts to the tile."""
        context, swap = self.first.context, self.first.pool.tile.swap_operands
        axes = (self.first.read_rows, self.first.read_cols)
        along = [dim for dim, size in enumerate(operand.shape) if size > 1]
        if len(along) == 2:
            tile = context.tile(name, operand, axes, swap)
            held = pointwise.loaded(name, operand.dtype)
            return tile.setup() + tile.load() + (part(f"{name} = {held}") if held != name else Part())
        pointer = context.pointer(f"{name}_ptr", operand)
        if not along:
            return part(f"{name} = {pointwise.loaded(f'tl.load({name}_ptr)', operand.dtype)}", params=(pointer,))
        (dim,) = along
        axis: Axis = axes[dim]
        stride = constant(
            f"{name.upper()}_STRIDE_{axis.letter}",
            operand.strides[dim],
            f"{context.expression(operand)}.stride({dim})",
        )
        load = f"tl.load({name}_ptr + {axis.index} * {stride.name}){'[:, None]' if (dim == 0) != swap else '[None, :]'}"
        return part(f"{name} = {pointwise.loaded(load, operand.dtype)}", params=(pointer, stride))

    @cached_property
    def _made(self) -> tuple[tuple[str, ...], ChainOps] | None:
        """The lines of the ops, and their values."""
        if self.epilogue is None:
            return None
        operands = [name for name, _ in self._operands]
        used = {stem + tail for stem in NAMES for tail in ("", *map(str, range(16)))}
        used |= {*operands, *numbered("h", len(self.epilogue.chain.results))}
        ops = ChainOps(self.epilogue.chain, exact=False, used=used, one="(1, 1)")
        values = [*(tile.acc for tile in self.tiles), *operands]
        return tuple(ops.lines([Value(each, (True, True)) for each in values])), ops

    @cached_property
    def _ops(self) -> tuple[Part, tuple[str, ...]]:
        """The ops, one a line, and the device functions that they call."""
        if self._made is None or self.epilogue is None:
            return Part(), ()
        lines, _ = self._made
        text = "\n".join(lines)
        near = approximates(self.epilogue.chain)
        *helpers, text = pointwise.fast(text) if near else (*pointwise.helpers(text), text)
        return part(*text.splitlines()), tuple(helpers)

    @property
    def _stores(self) -> Part:
        if self._made is None or self.epilogue is None:
            return Part()
        _, ops = self._made
        body = Part()
        for result, tile in zip(self.epilogue.chain.results, self._results, strict=True):
            value, dtype = ops.values[result.value], self.epilogue.chain.dtype_of(result.value)
            half = dtype in ("bf16", "fp16")
            source = value.source if value.cast or half else pointwise.stored(value.source, dtype)
            if not source.isidentifier():
                body += part(f"{tile.name} = {source}")
                source = tile.name
            body += self.first.store(tile, source, self.first.rounding(tile.name, dtype) if half else "")
        return body
