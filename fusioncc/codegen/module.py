"""The module around the kernels: header, imports, ``launch``, and the self-check."""

from dataclasses import dataclass

from fusioncc.codegen import pointwise, trace
from fusioncc.codegen.chain_check import TORCH
from fusioncc.codegen.context import Context
from fusioncc.codegen.descriptor import ALLOCATOR
from fusioncc.codegen.kernel import Kernel
from fusioncc.codegen.launch import Buffer, EmittedModule, M
from fusioncc.codegen.lines import call, indented, paragraph, returned
from fusioncc.codegen.self_check import SelfCheck
from fusioncc.codegen.streams import Fork
from fusioncc.group import Epilogue, Operand
from fusioncc.schedule import Schedule

IMPORTS = """import math
import os
import sys

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import triton
"""
LANGUAGE = "import triton.language as tl\n"
LIBDEVICE = "from triton.language.extra import libdevice\n"
DEPENDENT = """if triton.knobs.runtime.interpret:  # one launch after another, nothing to wait for
    DEPENDENT = {}

    def gdc_launch_dependents():
        pass

    def gdc_wait():
        pass
else:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    DEPENDENT = {"launch_pdl": True}  # starts while the launch before it still runs
"""


@dataclass(frozen=True)
class Module:
    """Everything that the text of a module is made from."""

    context: Context
    schedule: Schedule
    name: str
    why: str
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    fork: Fork | None = None
    """What runs on streams of its own; None: the kernels, one after another."""

    def emitted(self) -> EmittedModule:
        """The module: its source and its launch description."""
        names = self._function_names()
        return EmittedModule(
            name=self.name,
            source=self._source(names),
            buffers=self.buffers,
            launches=tuple(kernel.launch(name) for kernel, name in zip(self.kernels, names, strict=True)),
            operands=tuple(self.context.names()),
            forks=self.fork is not None,
            traced=self._traced,
        )

    @property
    def _traced(self) -> bool:
        """Whether a kernel records its tiles."""
        return any(kernel.traced for kernel in self.kernels)

    @property
    def _calls_libdevice(self) -> bool:
        return any("libdevice." in each for kernel in self.kernels for each in kernel.texts)

    @property
    def _needs_a_card(self) -> bool:
        """Whether the check on a CPU, in which fp16 stands for bf16, does not run the kernels as they are: in the
        interpreter without libdevice, with numbers of 8 bits, or where a tensor of no dimension is rounded."""
        ends = self.context.epilogues
        eights = any(dtype in pointwise.EIGHTS for epilogue in ends for dtype in epilogue.chain.dtypes)
        scalars = any(not operand.shape for epilogue in ends for operand in epilogue.operands)
        return self._calls_libdevice or scalars or eights

    @property
    def _described(self) -> bool:
        """Whether a kernel makes descriptors."""
        return any(kernel.tile.tma for kernel in self.kernels)

    def _function_names(self) -> tuple[str, ...]:
        """One function for kernels of one text; numbered by the position of the first launch of its kind."""
        by_text: dict[tuple[str, ...], str] = {}
        positions: dict[str, int] = {}
        names = []
        for kernel in self.kernels:
            position = positions.get(kernel.stem, 0)
            positions[kernel.stem] = position + 1
            names.append(by_text.setdefault(kernel.source(kernel.stem), f"{kernel.stem}_{position}"))
        return tuple(names)

    def _source(self, names: tuple[str, ...]) -> str:
        helpers = tuple(dict.fromkeys(helper for kernel in self.kernels for helper in kernel.helpers))
        functions = {name: kernel.source(name) for kernel, name in zip(self.kernels, names, strict=True)}
        check = SelfCheck(self.context, self.schedule, self.name, self._traced, self._needs_a_card)
        sections = [
            "\n".join(self._header()) + "\n\n" + self._imports(),
            *([ALLOCATOR] if self._described else []),
            *(self.fork.helpers if self.fork is not None else ()),
            *((trace.CLOCK, trace.TRACES) if self._traced else ()),
            *helpers,
            *("\n".join(lines) + "\n" for lines in functions.values()),
            "\n".join(self._launch(names)) + "\n",
            *check.sections(),
        ]
        return "\n\n".join(sections)

    def _imports(self) -> str:
        early = f"\n{DEPENDENT}" * any(kernel.dependent for kernel in self.kernels)
        first, last = (self.fork.imports, self.fork.later_imports) if self.fork is not None else ("", "")
        language = LANGUAGE * bool(self.kernels) + LIBDEVICE * self._calls_libdevice
        return first + trace.IMPORTS * self._traced + IMPORTS + language + last + early

    def _header(self) -> tuple[str, ...]:
        group = self.context.group
        rows = f"M (about {group.m})" if group.m_symbol else str(group.m)
        lines = [f'"""{self.name}: schedule {self.schedule.kind}, tier {self.context.tier}.', ""]
        names = self.context.names()
        lines.append(f"    x        [{rows}, {group.k}] {_layout(group.lhs)}")
        lines += self._normed()
        for main in self.context.mains:
            member = self.context.member(main)
            output = self.context.output(main)
            operands = [member.weight, member.bias]
            for branch in group.branches_of(main):
                down, up = self.context.member(branch.down), self.context.member(branch.up)
                operands += [down.weight, down.bias, up.weight, up.bias, *branch.scale_tensors]
            for operand in operands:
                if operand in names:
                    lines.append(f"    {names[operand]:8} {list(operand.shape)} {_layout(operand)}")
            if not self.context.concat:
                size = f"[{M}, {member.n}] {output.dtype}" if self.context.is_stored(main) else "in registers"
                lines.append(f"    {output.name:8} {size} = {_formula(self.context, main)}")
        for epilogue in self.context.epilogues:
            lines += self._ended(epilogue)
        if self.context.concat:
            xy = self.context.operand()
            lines.append(f"    {xy.name:8} [{M}, {xy.shape[1]}] {xy.dtype} = {_beside(self.context)}")
        lines.append("")
        for kernel, name in zip(self.kernels, self._function_names(), strict=True):
            lines += paragraph(_tile_words(kernel), first=f"    {name}: ", rest="        ")
        lines += () if self.fork is None else self.fork.header(self._function_names())
        return (*lines, "", *paragraph(f"Why this schedule: {self.why}"), '"""')

    def _normed(self) -> list[str]:
        """What is made of x before it is multiplied."""
        group, norm = self.context.group, self.context.group.norm
        if norm is None:
            return []
        weight = [] if norm.weight is None else [f"    g        {list(norm.weight.shape)} {_layout(norm.weight)}"]
        made = f"x * rsqrt(mean(x * x) + {norm.epsilon!r})" + " * g" * bool(weight)
        return [*weight, f"    xn       [{M}, {group.k}] in registers = {made}"]

    def _ended(self, epilogue: Epilogue) -> list[str]:
        """What the tiles of some members end with."""
        names = self.context.names()
        read = [self.context.output(main).name for main in epilogue.mains]
        lines = [f"    {names[each]:8} {self._sides(each)} {_layout(each)}" for each in epilogue.operands]
        read += [names[each] for each in epilogue.operands]
        for buffer in self.context.results(epilogue):
            ops = ", ".join(op.stem for op in epilogue.chain.ops)
            lines.append(f"    {buffer.name:8} [{M}, {buffer.shape[1]}] {buffer.dtype} of {', '.join(read)}: {ops}")
        return lines

    def _sides(self, operand: Operand) -> str:
        """The shape of what an epilogue reads; of a symbolic number of rows the rows are M, or not known."""
        group, (rows, *columns) = self.context.group, (*operand.shape, 0)
        if not group.m_symbol or len(operand.shape) < 2 or rows == 1:
            return str(list(operand.shape))
        return f"[{M if rows == group.m else f'about {rows}'}, {columns[0]}]"

    def _launch(self, names: tuple[str, ...]) -> tuple[str, ...]:
        tensors = tuple(self.context.names().values())
        results = [buffer.name for buffer in self.buffers if buffer.kept]
        body: list[str] = [
            *paragraph(
                f'"""{", ".join(results)} from tensors in the shapes of the header ([K, N] for weights); '
                '``empty`` allocates."""',
                rest="",
            ),
            *(["triton.set_allocator(scratch)"] if self._described else []),
            *(["TRACES.clear()"] if self._traced else []),
            "m = x.shape[0]",
        ]
        for buffer in self.buffers:
            make = "torch.zeros" if buffer.role == "counters" else "empty"
            body += call(
                f"{buffer.name} = {make}", [self._shape(buffer), f"dtype={self._dtype(buffer)}", "device=x.device"]
            )
        if self.fork is not None:
            body += self.fork.lines(names)
        else:
            for kernel, name in zip(self.kernels, names, strict=True):
                body += kernel.launch_source(name)
        body.append(returned(results))
        return (*call("def launch", [*tensors, "empty=torch.empty"], ":", depth=0), *indented(body))

    def _shape(self, buffer: Buffer) -> str:
        member = self.context.member(buffer.member)
        sizes = ["m" if size == M else str(size) for size in buffer.shape]
        if buffer.role == "operand":
            sizes[-1] = f"x.shape[1] + {int(buffer.shape[1]) - self.context.group.k}"
        elif buffer.kept or (buffer.role == "scratch" and member.role == "main"):
            sizes[-1] = f"{self.context.expression(member.weight)}.shape[1]"
        return f"({', '.join(sizes)})"

    def _dtype(self, buffer: Buffer) -> str:
        return "x.dtype" if buffer.dtype == self.context.group.lhs.dtype else TORCH[buffer.dtype]


def _layout(operand: Operand) -> str:
    return f"{operand.dtype}" + (f", strides {operand.strides}" if operand.strides else "")


def _formula(context: Context, main: int) -> str:
    names, member = context.names(), context.member(main)
    x = context.left
    terms = [f"{x} @ {names[member.weight]}"] + ([] if member.bias is None else [names[member.bias]])
    for branch in context.group.branches_of(main):
        down, up = context.member(branch.down), context.member(branch.up)
        b, scales = names[up.weight], [names[scale] for scale in branch.scale_tensors]
        terms.append(_scaled(branch.scale, *scales, f"({x} @ {names[down.weight]}) @ {b}"))
        if down.bias is not None:
            terms.append(_scaled(down.bias_scale, f"{names[down.bias]} @ {b}"))
        if up.bias is not None:
            terms.append(_scaled(up.bias_scale, names[up.bias]))
    return " + ".join(terms)


def _beside(context: Context) -> str:
    """The columns of ``[X | s X A]``; what a rank leaves free is zero."""
    names, columns = context.names(), ["x"]
    for branch in context.branches:
        down, scales = context.member(branch.down), [names[scale] for scale in branch.scale_tensors]
        y = _scaled(branch.scale, *scales, f"(x @ {names[down.weight]})")
        columns.append(y if down.bias is None else f"{y} + {_scaled(down.bias_scale, names[down.bias])}")
    return f"[{' | '.join(columns)}]"


def _scaled(scale: float, *factors: str) -> str:
    return " * ".join([*([] if scale == 1.0 else [repr(scale)]), *factors])


def _tile_words(kernel: Kernel) -> str:
    count = " + ".join(f"{blocks.count}" for blocks in kernel.grid)
    early = ", starts during the launch before" * kernel.dependent
    programs = f"{count} programs for a block of rows"
    if kernel.workers is not None:
        tma = ", TMA" * kernel.tile.tma
        programs = f"{count} tiles for a block of rows{tma}, {kernel.workers} persistent programs"
    return f"tile {kernel.shape}, {programs}, {kernel.tile.num_warps} warps, {kernel.tile.num_stages} stages{early}"
