"""What kernels are composed of: parameters, parts of a body, and the kernel that they make.

A :class:`Part` is some lines of a kernel body together with the parameters that those lines read. Parts are added, so
a kernel is the sum of its parts and its signature follows from them: nothing is declared that the body does not use.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusioncc.codegen.launch import Arg, Blocks, Buffer, KernelLaunch
from fusioncc.codegen.lines import call, indented
from fusioncc.group import Operand
from fusioncc.schedule import TileConfig

KINDS = ("local", "operand", "buffer", "trace", "rows", "size", "constexpr")
"""Order of a signature: what the caller defines, tensors that are read, tensors that are written, a trace, M, parts of
it, constants."""
SIDES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
WALK = ("GROUP_M", ".*WORKERS", "LATE", "CHUNK", "PRODUCT_SLICES", "K_.*")
CONSTANTS = (
    "N",
    "K",
    r"R\d*",
    r"RP\d*",
    r"Z\d*_[MN]",
    "HEAD",
    "EPSILON",
    "XY_.*",
    r".*_STRIDE.*",
    r".*SCALE\d*",
    *WALK,
    *SIDES,
)
"""Order of the constants: sizes, strides, factors, tiling. ``_0`` at the end of a name counts for nothing."""


@dataclass(frozen=True)
class Param:
    """A kernel parameter: its :class:`Arg` in the launch description, and the same value as source in ``launch()``."""

    arg: Arg
    expression: str

    @property
    def name(self) -> str:
        return self.arg.name

    @property
    def place(self) -> tuple[int, int]:
        """Sort key of the signature."""
        name = re.sub(r"_\d+$", "", self.name)
        matches = (i for i, pattern in enumerate(CONSTANTS) if re.fullmatch(pattern, name))
        return KINDS.index(self.arg.kind), next(matches) if self.arg.kind == "constexpr" else 0

    @property
    def declaration(self) -> str:
        """The parameter in the signature."""
        return f"{self.name}: tl.constexpr" if self.arg.kind == "constexpr" else self.name


ROWS = Param(Arg("M", "rows"), "m")
TILE = Param(Arg("tile", "local"), "tile")
"""The number of the tile that a body works on."""


def pointer(name: str, operand: Operand, expression: str) -> Param:
    """The pointer ``name`` to an operand that ``launch()`` calls ``expression``."""
    return Param(Arg(name, "operand", operand=operand), expression)


def buffer_pointer(name: str, buffer: Buffer) -> Param:
    """The pointer ``name`` to a buffer that the module allocates."""
    return Param(Arg(name, "buffer", value=buffer.name), buffer.name)


def repeated_rows(name: str, operand: Operand, expression: str) -> Param:
    """The number of rows of an operand that repeats in M, at run time; ``launch()`` has it as ``expression``."""
    return Param(Arg(name, "size", operand=operand), expression)


def constant(name: str, value: int | float, expression: str = "") -> Param:
    """A compile-time constant; ``expression`` where ``launch()`` takes it from its tensors."""
    return Param(Arg(name, "constexpr", value=value), expression or repr(value))


@dataclass(frozen=True)
class Part:
    """Lines of a kernel body and the parameters that they read."""

    lines: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()

    def __add__(self, other: "Part") -> "Part":
        return Part(self.lines + other.lines, self.params + other.params)

    def indented(self) -> "Part":
        """The same lines one level deeper."""
        return Part(indented(self.lines), self.params)


def part(*lines: str, params: tuple[Param, ...] = ()) -> Part:
    """A part from its lines."""
    return Part(lines, params)


TRIGGER = part(
    "# The next launch may start now: it waits for this one where it reads what is written here.",
    "gdc_launch_dependents()",
)


WAIT = part("# The launch before may still run; what it writes is complete from here on.", "gdc_wait()")


def total(parts: "list[Part] | tuple[Part, ...]") -> Part:
    """The sum of the parts, in order."""
    return sum(parts, Part())


def signature(params: Iterable[Param], stem: str) -> tuple[Param, ...]:
    """Every parameter once, in the order of a signature; equal values may come from different tensors."""
    by_name: dict[str, Param] = {}
    for param in params:
        if by_name.setdefault(param.name, param).arg != param.arg:
            raise ValueError(f"parameter {param.name} of a {stem} kernel has two meanings")
    return tuple(sorted(by_name.values(), key=lambda param: param.place))


@dataclass(frozen=True)
class Kernel:
    """One launch of one kernel, before its function has a name."""

    stem: str
    body: Part
    """The work of tile number ``tile``."""
    tile: TileConfig
    grid: tuple[Blocks, ...]
    tiles: Part
    """One line: the number of tiles, as source in the kernel."""
    helpers: tuple[str, ...] = ()
    """Source of the device functions that the body calls."""
    workers: int | None = None
    """Programs of a persistent kernel; None: one program a tile."""
    prologue: Part = Part()
    """What a program does once, before its tiles."""
    number: int = 0
    """Tells members of one kind apart in a bundle."""
    bundled: tuple[str, ...] = ()
    """Tile shapes of a bundle's members; empty for a single kernel."""
    walks: bool = False
    """Whether the body finds its tiles itself."""
    dependent: bool = False
    """Whether it starts while the launch before it still runs."""
    waits: bool = False
    """Whether the body of a dependent kernel waits by itself; otherwise the kernel does first of all: before it makes
    descriptors, whose memory the launch before may still use."""
    triggers: bool = False
    """Whether the next launch may start as soon as all programs of this one have."""
    traced: tuple[Blocks, ...] = ()
    """The tiles that the kernel records, in the order of their rows; empty: it records nothing."""

    @property
    def shape(self) -> str:
        """The tile in words: ``64x128x64``."""
        if self.bundled:
            return " and ".join(self.bundled)
        columns = "RP" if self.stem == "down" else str(self.tile.block_n)
        depth = "" if self.stem == "up" else f"x{self.tile.block_k}"
        return f"{self.tile.block_m}x{columns}{depth}" + (", transposed" if self.tile.swap_operands else "")

    @property
    def whole(self) -> Part:
        """The function's lines: one tile, or a loop in which the program walks over every ``WORKERS``-th tile."""
        wait = WAIT if self.dependent and not self.waits else Part()
        start = (TRIGGER if self.triggers else Part()) + wait + self.prologue
        if self.walks:
            return start + self.body
        if self.workers is None:
            number = part("tile = tl.program_id(0)") if TILE in self.body.params else Part()
            return start + number + self.body
        workers = constant("WORKERS", self.workers)
        tiles = part(*(f"tiles = {line}" for line in self.tiles.lines), params=self.tiles.params)
        loop = part("for tile in tl.range(tl.program_id(0), tiles, WORKERS):", params=(workers,))
        # also a program without a tile waits, so that launches end in order
        end = part("") + WAIT if self.dependent and self.waits else Part()
        return start + tiles + loop + self.body.indented() + end

    @property
    def params(self) -> tuple[Param, ...]:
        """The signature of the kernel."""
        return tuple(param for param in signature(self.whole.params, self.stem) if param.arg.kind != "local")

    def source(self, name: str) -> tuple[str, ...]:
        """The function with this name."""
        return function(name, self.params, self.whole)

    @property
    def texts(self) -> tuple[str, ...]:
        """Its lines and its device functions."""
        return (*self.helpers, *self.whole.lines)

    def launch(self, name: str) -> KernelLaunch:
        """The launch as data."""
        args = tuple(param.arg for param in self.params)
        tile = self.tile
        return KernelLaunch(name, args, self.grid, tile.num_warps, tile.num_stages, self.workers, self.dependent)

    def launch_source(self, name: str) -> tuple[str, ...]:
        """The launch as source."""
        first, *others = (blocks.source for blocks in self.grid)
        counted = (f"tiles = {first}", *(f"tiles += {other}" for other in others)) if others else ()
        tiles = "tiles" if others else first
        grid = tiles if self.workers is None else f"min({self.workers}, {tiles})"
        arguments = [f"{param.name}={param.expression}" for param in self.params]
        options = [f"num_warps={self.tile.num_warps}", f"num_stages={self.tile.num_stages}"]
        options += ["**DEPENDENT"] if self.dependent else []
        rows = [f'("{blocks.role}", "{blocks.made}", {blocks.source})' for blocks in self.traced]
        trace = call("trace = traced", [f'"{name}"', "x.device", *rows]) if rows else ()
        return (*counted, *trace, *call(f"{name}[({grid},)]", [*arguments, *options]))


def function(name: str, params: Sequence[Param], body: Part) -> tuple[str, ...]:
    """A Triton function."""
    declarations = indented(f"{param.declaration}," for param in params)
    return ("@triton.jit", f"def {name}(", *declarations, "):", *indented(body.lines))
