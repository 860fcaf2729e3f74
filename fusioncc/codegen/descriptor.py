"""TMA form of a main tile: descriptors for X, W and the output.

A descriptor fills with zeros beyond the tensor when it loads and drops what lies beyond when it stores, so that a tile
needs no masks. Descriptors are made once a program; programs therefore stay and walk over the tiles.
"""

from dataclasses import dataclass

from fusioncc.codegen.kernel import Param, Part, part
from fusioncc.codegen.launch import Arg
from fusioncc.codegen.tile import Axis

ALLOCATOR = '''def scratch(size, alignment, stream):
    """Memory for the descriptors that the kernels make."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
'''


@dataclass(frozen=True)
class DescriptorTile:
    """A tile read or written through a descriptor; the counterpart of :class:`~fusioncc.codegen.tile.Tile`.

    ``shape`` (of a tile), ``sizes`` and ``starts`` are source, in the order of the mathematics; ``contiguous`` is the
    dimension that lies contiguously in memory and comes last in the descriptor; ``stride`` is source of the other one's
    stride.
    """

    name: str
    shape: tuple[str, str]
    sizes: tuple[str, str]
    starts: tuple[str, str]
    contiguous: int
    stride: str
    params: tuple[Param, ...]
    blocks: tuple[Param, ...]
    """Constants that ``starts`` and ``shape`` read."""

    def declare(self) -> Part:
        """``name_desc``: made once, in front of the loop over tiles."""
        sizes, shape = self._ordered(self.sizes), self._ordered(self.shape)
        line = f"{self.name}_desc = tl.make_tensor_descriptor({self.name}_ptr, {sizes}, [{self.stride}, 1], {shape})"
        return part(line, params=(*self.params, *self.blocks))

    def setup(self) -> Part:
        return Part()

    def load(self) -> Part:
        """``name``: the tile's values, in the order of the mathematics."""
        turned = ".T" if self.contiguous == 0 else ""
        line = f"{self.name} = {self.name}_desc.load({self._ordered(self.starts)}){turned}"
        return part(line, params=(self._descriptor, *self.blocks))

    def advance(self, axis: Axis, step: str) -> Part:
        return Part()

    def store(self, value: str) -> Part:
        """Write the tile; rows and columns beyond the tensor are dropped."""
        line = f"{self.name}_desc.store({self._ordered(self.starts)}, {value})"
        return part(line, params=(self._descriptor, *self.blocks))

    @property
    def _descriptor(self) -> Param:
        return Param(Arg(f"{self.name}_desc", "local"), "")

    def _ordered(self, pair: tuple[str, ...]) -> str:
        first, last = pair if self.contiguous == 1 else pair[::-1]
        return f"[{first}, {last}]"
