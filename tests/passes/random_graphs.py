"""Random small functions around one input X, as hypothesis draws them: lines of source, so that a failure can be read.

Every line is evaluated while it is written, which tells the shapes for the next; a line that torch refuses is not
written.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from tests.passes.doors import TOLERANCE
from tests.passes.models import Model
from tests.passes.random_lines import (
    AFTER,
    FACTORS,
    FORMS_OF_X,
    FUSED_SUMS,
    PRODUCTS,
    RANKS,
    ROWS,
    SCALED,
    SCALES,
    SUMS,
    USES,
    VECTORS,
    WEIGHTS,
    WIDTHS,
)


@dataclass(frozen=True)
class Program:
    """A function of X ``[..., K]``, as source; ``shapes`` are those of its parameters, of X's dtype but for
    those named ``wide``, which are fp32."""

    rows: tuple[int, ...]
    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]]
    lines: tuple[str, ...]
    returned: tuple[str, ...]

    def __repr__(self) -> str:
        body = "\n    ".join((*self.lines, f"return {', '.join(self.returned)},"))
        return f"# x {self.rows} {self.dtype}, {self.shapes}\ndef function(s, x):\n    {body}\n"

    @property
    def tolerance(self) -> float:
        """Absolute and relative: that of the narrowest dtype in it."""
        text = repr(self)
        narrow = [torch.float16] if "half()" in text or "float16" in text.replace("bfloat16", "") else []
        narrow += [torch.bfloat16] if "bfloat16" in text else []
        return max(TOLERANCE[dtype] for dtype in (self.dtype, *narrow))

    def model(self) -> Model:
        """The function as a module with parameters."""
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(repr(self), space)
        return Model(
            space["function"], **{name: parameter(name, shape, self.dtype) for name, shape in self.shapes.items()}
        )

    def example(self) -> torch.Tensor:
        """An X."""
        return torch.ones(self.rows, dtype=self.dtype)


def parameter(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A parameter of a program."""
    return torch.ones(shape, dtype=torch.float32 if name.startswith("wide") else dtype)


@dataclass
class Writer:
    """What has been written of a program, and a value of every line. A ``calm`` one has the commoner templates only."""

    draw: Any
    dtype: torch.dtype
    calm: bool
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def some(self, templates: tuple[str, ...], common: int) -> tuple[str, ...]:
        """All templates, or the first ones of them."""
        return templates[:common] if self.calm or self.pick(True, False) else templates

    def rarely(self) -> bool:
        return bool(self.pick(False, False, False, True))

    def evaluate(self, expression: str) -> torch.Tensor | None:
        parameters = {name: parameter(name, shape, self.dtype) for name, shape in self.shapes.items()}
        space = {"torch": torch, "F": F, "s": type("Parameters", (), parameters), **self.values}
        try:
            value = eval(expression, space)
        except (RuntimeError, IndexError):
            return None
        return value if isinstance(value, torch.Tensor) and 0 not in value.shape else None

    def line(self, expression: str, *reads: str) -> str:
        """Write ``name = expression`` and give the name; the empty string where torch refuses the expression."""
        value = self.evaluate(expression)
        if value is None:
            return ""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values[name] = value
        self.read.update(reads)
        return name

    def parameter(self, shape: tuple[int, ...], prefix: str = "p") -> str:
        """A new parameter, or one that is there."""
        there = [name for name, other in self.shapes.items() if other == shape and name.startswith(prefix)]
        if there and self.rarely():
            return f"s.{self.pick(*there)}"
        self.shapes[name := f"{prefix}{len(self.shapes)}"] = shape
        return f"s.{name}"

    def weight(self, k: int, n: int, dtype: torch.dtype) -> str:
        made = [
            f"{name}{turn}"
            for name, v in self.values.items()
            for turn in ("", ".t()")
            if v.dim() == 2 and v.dtype is dtype and tuple(v.shape) == ((k, n) if not turn else (n, k))
        ]
        if made and self.rarely():
            return self.pick(*made)
        wide = dtype is torch.float32 and dtype is not self.dtype and self.pick(True, False)
        template, shape = WEIGHTS[0] if self.pick(True, False) else self.pick(*WEIGHTS)
        made = template.format(w=self.parameter(shape(k, n), "wide" if wide else "p"), k=k, n=n)
        return made if wide or dtype is self.dtype else f"{made}.to({dtype})"

    def vector(self, n: int) -> str:
        plain = self.calm or self.pick(True, False)
        template, shape = VECTORS[0] if plain else self.pick(*VECTORS)
        return template.format(v=self.parameter(shape(n)), n=n)

    def scale(self) -> str:
        template, shape = self.pick(*SCALES)
        return template.format(v=self.parameter(shape))

    def fill(self, templates: tuple[str, ...], rows: tuple[int, ...], n: int, **given: str) -> str:
        """A line of one of the templates, with what is added to ``[*rows, n]`` drawn where the template asks."""
        template = self.pick(*templates)
        alpha, beta = self.pick(*FACTORS), self.pick(*FACTORS)
        if "{a}" in template:
            around = [
                (n,),
                (1, n),
                (1,),
                (*rows[-1:], 1),
                (*rows, n),
                (1, 1),
                (),
                (1, *rows[-1:], n),
                (*rows[:1], 1, n),
            ]
            given["a"] = self.parameter(self.pick(*around))
        if "{b}" in template:
            given["b"] = self.vector(n)
        if "{v}" in template:
            given["v"] = self.vector(n)
        if "{l}" in template:
            k, rank = self.values[given["x"]].shape[-1], self.pick(4, 8)
            given |= {"l": self.parameter((k, rank)), "h": self.parameter((rank, n))}
        if "{c}" in template:
            given["c"] = self.scale()
        given["ab"] = self.pick("", f", alpha={alpha}", f", beta={beta}", f", alpha={alpha}, beta={beta}")
        return self.line(template.format(k=n, f=alpha, **given), *given.values())

    def like(self, name: str, templates: tuple[str, ...], **more: str) -> str:
        """A line of one of the templates, about a value; the value itself where that does not go."""
        value = self.values[name]
        rows, n = (tuple(value.shape[:-1]), value.shape[-1]) if value.dim() else ((), 1)
        return self.fill(templates, rows, n, x=name, r=name, **more) or name

    def product(self, x: str, n: int, templates: tuple[str, ...] = PRODUCTS) -> str:
        value = self.values[x]
        weight = self.weight(value.shape[-1], n, value.dtype)
        for chosen in (templates, PRODUCTS[:1]):
            if made := self.fill(chosen, tuple(value.shape[:-1]), n, x=x, w=weight):
                return made
        return x

    def branch(self, x: str, main: str, downs: list[str]) -> str:
        """A branch of ``x`` beside ``main``, and their sum."""
        shape, dtype = self.values[main].shape, self.values[x].dtype
        fit = [y for y in downs if self.values[y].shape[:-1] == shape[:-1] and self.values[y].dtype is dtype]
        if fit and self.rarely():
            low = self.pick(*fit)
        else:
            x = self.like(x, self.some(SCALED, 8)) if self.rarely() else x
            low = self.product(x, self.pick(*(RANKS[:2] if self.calm else RANKS)), self.some(PRODUCTS, 5))
            downs.append(low)
        low = self.like(low, self.some(SCALED, 8)) if self.pick(True, False) else low
        n = shape[-1] if shape else 1
        rows, rank = tuple(self.values[low].shape[:-1]), self.values[low].shape[-1] if self.values[low].dim() else 1
        if self.rarely():
            fused = self.fill(FUSED_SUMS, rows, n, p=main, y=low, w=self.weight(rank, n, self.values[low].dtype))
            if fused:
                return fused
        up = self.product(low, self.pick(*WIDTHS, 1) if not self.calm and self.rarely() else n, self.some(PRODUCTS, 5))
        self.read.add(low)
        up = self.like(up, self.some(SCALED, 8)) if self.pick(True, False) else up
        if self.rarely() and (
            other := self.line(f"{up} {self.pick('+', '-')} {self.product(low, n, PRODUCTS[:5])}", up)
        ):
            self.read.add(self.lines[-2].split(" = ")[0])
            up = other
        if self.values[up].dtype is not self.values[main].dtype and self.pick(True, False):
            up = self.line(f"{up}.to({self.values[main].dtype})", up)
        return self.fill(self.some(SUMS, 7), rows, n, p=main, u=up) or main


@st.composite
def programs(draw: Any) -> Program:
    """Two to four products of X, some with low-rank branches, some used again."""
    dtype = draw(st.sampled_from((torch.float32, torch.float32, torch.float16, torch.bfloat16)))
    rows = draw(st.sampled_from(ROWS))
    writer = Writer(draw, dtype, draw(st.sampled_from((True, True, False))))
    writer.values["x"] = torch.ones(rows, dtype=dtype)
    first = writer.like("x", FORMS_OF_X) if writer.pick(False, True) else "x"
    first = first if writer.values[first].dim() else "x"
    xs, downs, results = [first], [], []
    for _ in range(draw(st.integers(2, 4))):
        x = writer.pick(first, *xs)
        if writer.rarely():
            x = writer.like(x, FORMS_OF_X)
            x = x if writer.values[x].dim() else first
            xs.append(x)
        result = writer.product(x, writer.pick(*WIDTHS), writer.some(PRODUCTS, 6))
        for _ in range(writer.pick(0, 1, 1, 2)):
            result = writer.branch(writer.pick(x, x, x, x, *xs), result, downs)
        results.append(result)
        if writer.rarely():
            results.append(writer.like(writer.pick(*results), USES, o=writer.pick(*results)))
        if writer.rarely() and writer.values[results[-1]].dim() > 1:
            results.append(writer.product(results[-1], writer.pick(*WIDTHS)))
        if writer.rarely() and writer.rarely():
            writer.fill(AFTER, (), 1, x=writer.pick(*xs), w=f"s.{writer.pick(*writer.shapes)}")
    names = [name for name in writer.values if name != "x"]
    returned = [name for name in names if name in results or name not in writer.read]
    returned += [name for name in names if name not in returned and draw(st.integers(0, 9)) == 9]
    return Program(rows, dtype, writer.shapes, tuple(writer.lines), tuple(dict.fromkeys(returned)))
