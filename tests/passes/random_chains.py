"""Random chains as hypothesis draws them: inputs of many shapes, dtypes and layouts, and lines of source, so that a
failure can be read.

Every line is evaluated while it is written; one that torch refuses, or whose result does not broadcast to the shape of
the rest, is not written.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from tests.passes.chain_lines import EXACT, FLOATS, INEXACT, JUMPS, NUMBERS, ROUNDED, SUMMED, WHOLE, WHOLES

SIZES = (1, 2, 3, 5, 8, 16, 33, 70)
LAYOUTS = ("plain", "plain", "plain", "transposed", "expanded", "sliced", "channels_last")
DTYPES = ("torch.float32", "torch.bfloat16", "torch.float16", "torch.int32", "torch.int64", "torch.bool")


@dataclass(frozen=True)
class Input:
    """A tensor that a chain reads: random, with infinities and NaN if it is ``special``."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    special: bool = False

    def tensor(self, seed: int, device: str = "cpu") -> torch.Tensor:
        """The same values for the same seed on any device."""
        values = torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        if self.special and dtype.is_floating_point:
            specials = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e-41, 300.0])
            flat = values.flatten()
            flat[::3] = specials[torch.arange(len(flat[::3])) % len(specials)]
            values = flat.view(self.shape)
        values = values > 0 if dtype == torch.bool else values if dtype.is_floating_point else values * 5
        return _laid_out(values.to(dtype).to(device), self.layout)


def _laid_out(plain: torch.Tensor, layout: str) -> torch.Tensor:
    """The values in another layout; ``expanded`` repeats the first along the first dimension."""
    if layout == "transposed" and plain.dim() > 1:
        return plain.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded" and plain.dim() and plain.numel():
        return plain[:1].expand(plain.shape)
    if layout == "sliced" and plain.dim() and plain.numel():
        return torch.stack([plain, plain], -1)[..., 0]
    if layout == "channels_last" and plain.dim() == 4:
        return plain.contiguous(memory_format=torch.channels_last)
    return plain


@dataclass(frozen=True)
class Program:
    """A function of tensors as source. ``exact``: nothing in it differs between a CPU and a card, or from a kernel."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    exact: bool

    def __repr__(self) -> str:
        body = "\n    ".join((*self.lines, f"return {', '.join(self.returned)},"))
        given = "\n".join(f"# x{at}: {each}" for at, each in enumerate(self.inputs))
        names = ", ".join(f"x{at}" for at in range(len(self.inputs)))
        return f"{given}\ndef function({names}):\n    {body}\n"

    def model(self) -> nn.Module:
        """The function as a module."""
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(repr(self), space)

        class Model(nn.Module):
            def forward(self, *tensors: torch.Tensor) -> Any:
                return space["function"](*tensors)

        return Model()

    def arguments(self, device: str = "cpu") -> list[torch.Tensor]:
        return [each.tensor(seed, device) for seed, each in enumerate(self.inputs)]


@dataclass
class Writer:
    """What has been written, a value of every line, and which values are ``sure``: the same in any precision."""

    draw: Any
    base: tuple[int, ...]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def of_kind(self, letter: str, only_sure: bool) -> list[str]:
        wanted = {"x": 2, "y": 2, "w": 2, "i": 1, "j": 1, "b": 0, "c": 0}[letter]
        names = [name for name, value in self.values.items() if _kind(value) == wanted]
        return [name for name in names if not only_sure or name in self.sure]

    def line(self, template: str, only_sure: bool, keeps: bool) -> None:
        """Write a line of the template, if there is what it needs. ``keeps``: its result is sure where its operands
        are and it has the widest dtype of theirs."""
        given: dict[str, Any] = {}
        for letter in dict.fromkeys(_fields(template)):
            if letter in "xywijbc":
                there = self.of_kind(letter, only_sure)
                if not there:
                    return
                latest = there[-3:] if self.draw(st.booleans()) else there
                given[letter] = self.pick(latest)
            else:
                options = {"n": NUMBERS, "dtype": FLOATS, "whole": WHOLES, "base": (self.base,)}[letter]
                given[letter] = self.pick(options)
        expression = template.format(**given)
        try:
            value = eval(expression, {"torch": torch, "F": F, **self.values})
        except (RuntimeError, IndexError, TypeError):
            return
        if not _broadcasts(value, self.base):
            return
        name = f"v{len(self.lines)}"
        operands = [given[letter] for letter in given if letter in "xywijbc"]
        self.lines.append(f"{name} = {expression}")
        self.read.update(operands)
        narrowed = any(_kind(self.values[each]) == 2 and self.values[each].dtype != value.dtype for each in operands)
        if _kind(value) < 2 or (keeps and self.sure.issuperset(operands) and not narrowed):
            self.sure.add(name)
        self.values[name] = value


def _fields(template: str) -> Iterator[str]:
    return (name for _, name, _, _ in string.Formatter().parse(template) if name)


def _kind(value: torch.Tensor) -> int:
    return 2 if value.dtype.is_floating_point else 0 if value.dtype == torch.bool else 1


def _broadcasts(value: torch.Tensor, base: tuple[int, ...]) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, base) == base
    except RuntimeError:
        return False


@st.composite
def inputs(draw: Any, base: tuple[int, ...], special: bool) -> Input:
    """A tensor that broadcasts to ``base``."""
    shape = base[draw(st.sampled_from((0, 0, 0, *range(len(base) + 1)))) :]
    if draw(st.booleans()):
        shape = tuple(draw(st.sampled_from((1, size, size))) for size in shape)
    return Input(shape, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS)), special)


@st.composite
def programs(draw: Any, exact: bool = False) -> Program:
    """Up to 20 lines. ``exact`` ones hold nothing of which the last bits depend on the device."""
    base = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=0, max_size=4)))
    base = base if draw(st.integers(0, 39)) < 39 or not base else (0, *base[1:])
    special = exact and draw(st.booleans())
    first = Input(base, draw(st.sampled_from(DTYPES[:3])), draw(st.sampled_from(LAYOUTS)), special)
    given = (first, *draw(st.lists(inputs(base, special), min_size=0, max_size=5)))
    values = {f"x{at}": each.tensor(at) for at, each in enumerate(given)}
    writer = Writer(draw, base, dict(values), set(values))
    tables = ((EXACT, False, True), (ROUNDED, False, False), (JUMPS, not exact, True), (WHOLE, False, True))
    if not exact:
        tables += ((INEXACT, False, False), (INEXACT, False, False), (SUMMED, False, False))
    for _ in range(draw(st.integers(2, 20))):
        table, only_sure, keeps = draw(st.sampled_from(tables))
        writer.line(draw(st.sampled_from(table)), only_sure, keeps)
    made = [name for name in writer.values if name not in values]
    returned = [name for name in made if name not in writer.read or draw(st.integers(0, 7)) == 7]
    return Program(given, tuple(writer.lines), tuple(returned) or ("x0",), exact)
