"""What an emitted module contains, for those who launch it: buffers, launches and their arguments, in order.

``codegen.emit`` returns an :class:`EmittedModule`; the module's own ``launch`` function, the insertion into Inductor's
graph and the build for a device are all made from this one description.
"""

from dataclasses import dataclass
from typing import Literal

from fusioncc.group import Operand

M = "M"
"""Stands for the number of rows in a shape."""


@dataclass(frozen=True)
class Buffer:
    """A contiguous tensor that the module allocates: an output or a scratch buffer.

    ``shape`` entries are sizes, or ``M``. ``role`` says what it holds: ``output`` (of main member ``member``),
    ``saved`` (the down product of member ``member``, written out), ``scratch`` (fp32 partial slices), ``counters``
    (zeros at the start of every launch), ``operand`` (of a vendor GEMM behind the module, all members together),
    ``result`` (number ``at`` of what the tiles of main member ``member``, first of its epilogue, end with).
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    role: Literal["output", "saved", "operand", "result", "scratch", "counters"]
    member: int
    at: int = 0

    @property
    def kept(self) -> bool:
        """Whether the rest of the graph reads it."""
        return self.role in ("output", "saved", "operand", "result")


@dataclass(frozen=True)
class Arg:
    """One kernel argument: an operand (tensor input), a buffer (by name), the number of rows, that of an operand which
    repeats in them (``size``; of a symbolic M), or a constexpr.

    A ``local`` is none of a launch: the kernel defines it, and its device functions take it. A ``trace`` is what the
    module's own ``launch`` allocates for a traced kernel: int64, four numbers for each tile.
    """

    name: str
    kind: Literal["local", "operand", "buffer", "trace", "rows", "size", "constexpr"]
    operand: Operand | None = None
    value: int | float | bool | str | None = None
    """Name of the buffer, or the value of the constexpr."""


@dataclass(frozen=True)
class Blocks:
    """Tiles of one height: ``count`` of them for each block of ``block_m`` rows."""

    block_m: int
    count: int
    expression: str = ""
    """``count`` as source in ``launch()``; empty for one."""
    role: str = ""
    made: str = ""
    """What the tiles are (``main``, ``down``, ``up``), and the names of the tensors that they make: for a trace."""

    def tiles(self, m: int) -> int:
        """Tiles for ``m`` rows."""
        return -(-m // self.block_m) * self.count

    @property
    def source(self) -> str:
        """Tiles for ``m`` rows, as source in ``launch()``."""
        rows = f"triton.cdiv(m, {self.block_m})"
        return f"{rows} * {self.expression}" if self.expression else rows


@dataclass(frozen=True)
class KernelLaunch:
    """One launch on a one-dimensional grid: a program for each tile of ``grid``, or at most ``workers`` persistent
    programs."""

    kernel: str
    args: tuple[Arg, ...]
    grid: tuple[Blocks, ...]
    num_warps: int
    num_stages: int
    workers: int | None = None
    dependent: bool = False
    """Starts while the launch before it still runs (programmatic dependent launch)."""

    def programs(self, m: int) -> int:
        """Programs for ``m`` rows."""
        tiles = sum(blocks.tiles(m) for blocks in self.grid)
        return tiles if self.workers is None else min(tiles, self.workers)


@dataclass(frozen=True)
class EmittedModule:
    """One readable Triton module: its source and what its ``launch`` does."""

    name: str
    source: str
    buffers: tuple[Buffer, ...]
    launches: tuple[KernelLaunch, ...]
    operands: tuple[Operand, ...]
    """Tensor arguments of the module's ``launch``, in order, without repetition."""
    forks: bool = False
    """``launch`` also runs vendor GEMMs, and on streams of its own: ``launches`` lists its kernels, and is not all."""
    traced: bool = False
    """``launch`` also keeps what its persistent kernels record of their tiles, in ``TRACES``."""

    @property
    def opaque(self) -> bool:
        """``launch`` does more than launch kernels, so that it is called as a whole."""
        return self.forks or self.traced
