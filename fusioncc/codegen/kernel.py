"""What kernels are composed of: parameters, parts of a body, and the kernel that they make.

A :class:`Part` is some lines of a kernel body together with the parameters that those lines read. Parts are added, so
a kernel is the sum of its parts and its signature follows from them: nothing is declared that the body does not use.
"""

import re
from dataclasses import dataclass

from fusioncc.codegen.launch import Arg, Buffer, KernelLaunch
from fusioncc.codegen.lines import call, indented
from fusioncc.group import Operand
from fusioncc.schedule import TileConfig

KINDS = ("operand", "buffer", "rows", "constexpr")
"""Order of a signature: tensors that are read, tensors that are written, M, constants."""
CONSTANTS = ("N", "K", r"R\d*", r"RP\d*", r".*_STRIDE.*", r".*SCALE\d*", "GROUP_M", "WORKERS", "K_.*", "BLOCK_.*")
"""Order of the constants: sizes, strides, factors, tiling."""


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
        matches = (i for i, pattern in enumerate(CONSTANTS) if re.fullmatch(pattern, self.name))
        return KINDS.index(self.arg.kind), next(matches) if self.arg.kind == "constexpr" else 0

    @property
    def declaration(self) -> str:
        """The parameter in the signature."""
        return f"{self.name}: tl.constexpr" if self.arg.kind == "constexpr" else self.name


ROWS = Param(Arg("M", "rows"), "m")


def pointer(name: str, operand: Operand, expression: str) -> Param:
    """The pointer ``name`` to an operand that ``launch()`` calls ``expression``."""
    return Param(Arg(name, "operand", operand=operand), expression)


def buffer_pointer(name: str, buffer: Buffer) -> Param:
    """The pointer ``name`` to a buffer that the module allocates."""
    return Param(Arg(name, "buffer", value=buffer.name), buffer.name)


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


def total(parts: "list[Part] | tuple[Part, ...]") -> Part:
    """The sum of the parts, in order."""
    return sum(parts, Part())


@dataclass(frozen=True)
class Kernel:
    """One launch of one kernel, before its function has a name.

    ``blocks`` is the number of programs for one block of rows, and ``blocks_expression`` the same as source in
    ``launch()`` (empty for one).
    """

    stem: str
    body: Part
    tile: TileConfig
    blocks: int
    blocks_expression: str
    helpers: tuple[str, ...] = ()
    """Source of the device functions that the body calls."""
    workers: int | None = None
    """Programs of a persistent kernel; None: one program a tile."""

    @property
    def params(self) -> tuple[Param, ...]:
        """The signature: every parameter of the body once; equal values may come from different tensors."""
        by_name: dict[str, Param] = {}
        for param in self.body.params:
            if by_name.setdefault(param.name, param).arg != param.arg:
                raise ValueError(f"parameter {param.name} of a {self.stem} kernel has two meanings")
        return tuple(sorted(by_name.values(), key=lambda param: param.place))

    def source(self, name: str) -> tuple[str, ...]:
        """The function with this name."""
        signature = indented(f"{param.declaration}," for param in self.params)
        return ("@triton.jit", f"def {name}(", *signature, "):", *indented(self.body.lines))

    def launch(self, name: str) -> KernelLaunch:
        """The launch as data."""
        return KernelLaunch(
            kernel=name,
            args=tuple(param.arg for param in self.params),
            block_m=self.tile.block_m,
            programs_per_row_block=self.blocks,
            num_warps=self.tile.num_warps,
            num_stages=self.tile.num_stages,
            workers=self.workers,
        )

    def launch_source(self, name: str) -> tuple[str, ...]:
        """The launch as source."""
        rows = f"triton.cdiv(m, {self.tile.block_m})"
        grid = f"{rows} * {self.blocks_expression}" if self.blocks_expression else rows
        if self.workers is not None:
            grid = f"min({self.workers}, {grid})"
        arguments = [f"{param.name}={param.expression}" for param in self.params]
        options = [f"num_warps={self.tile.num_warps}", f"num_stages={self.tile.num_stages}"]
        return call(f"{name}[({grid},)]", [*arguments, *options])
