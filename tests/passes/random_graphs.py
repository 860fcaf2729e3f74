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

K = 64
ROWS = ((40, K), (2, 20, K), (1, K), (17, K), (1, 40, K), (20, 2, K))
WIDTHS = (32, 48, 96, 64, 40, 33, 1)
RANKS = (4, 8, 1, 16)
FACTORS = ("2", "-1", "0.5", "0", "1")

# Formatted with x, the tensor; k, its last size; c, a one-element tensor; v, a vector [k].
FORMS_OF_X = (
    *("{x}.clone()", "{x}.contiguous()", "{x} * 2", "0.5 * {x}", "-{x}", "{x} / 4", "{x} * {c}", "{x} * {v}"),
    *("{x}.double().to({x}.dtype)", "{x}.half()", "{x}.float()", "{x}.unsqueeze(0)", "{x}.squeeze(0)", "{x}.relu()"),
    *("{x}.transpose(-1, -2).transpose(-1, -2)", "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)"),
    *(
        "{x}[..., :32]",
        "{x}[..., 32:]",
        "{x}[..., ::2]",
        "{x}[:20]",
        "{x}[1:]",
        "{x}[::2]",
        "{x}[0]",
        "{x}.chunk(2)[1]",
    ),
    *("F.pad({x}, (0, 8))", "F.pad({x}, (8, 0))", "F.pad({x}, (0, 0, 0, 8))", "F.pad({x}, (0, -32))"),
    *("{x}.flatten(0, -2)", "{x}.reshape(-1, 20, {k})", "{x}.reshape(-1, 8, {k})", "{x}.expand(2, *{x}.shape)"),
    *("{x}.transpose(0, 1)", "{x}.reshape({k}, -1).t()", "{x}.reshape(-1, 32)", "torch.cat([{x}, {x}])", "{x}.flip(0)"),
    *("{x} + 1", "{x} + {x}", "{x}.t()", "{x}.repeat(2, 1)"),
)
SCALED = (
    *("{x} * 2", "2 * {x}", "{x} / 4", "-{x}", "{x} * {c}", "{c} * {x}", "{x} * 0.5 * {c}", "{x} / {c}", "{x} * {v}"),
    *("{x} + {x}", "{x} * 0", "{x}.clone()", "{x}.double().to({x}.dtype)", "{x}.half().float()", "{x}.unsqueeze(0)"),
    *("{x}.mul_(2)", "{x}.neg_()", "{x}.relu()", "{x} - 0.5", "{x} + {v}", "{x}.add_({v})", "{x}.t().contiguous().t()"),
    *("{x} * {c}.float()", "{x} * {c}.long()", "{x} * {x}.mean()", "{x} * {x}[..., :1]", "{x}.float()", "{x}.half()"),
    *("{x}.transpose(-1, -2)", "{x}[:1]", "{x}.double()"),
)
# How a weight [k, n] comes out of a parameter, and the parameter's shape.
WEIGHTS: tuple[tuple[str, Any], ...] = (
    ("{w}", lambda k, n: (k, n)),
    ("{w}.t()", lambda k, n: (n, k)),
    ("{w}[:, :{n}]", lambda k, n: (k, n + 16)),
    ("{w}[:, 8:8 + {n}]", lambda k, n: (k, n + 16)),
    ("{w}[:, 1:]", lambda k, n: (k, n + 1)),
    ("{w}[:, ::2]", lambda k, n: (k, 2 * n)),
    ("{w}[8:]", lambda k, n: (k + 8, n)),
    ("{w}[1]", lambda k, n: (2, k, n)),
    ("{w}.squeeze(0)", lambda k, n: (1, k, n)),
    ("{w}.expand({k}, {n})", lambda k, n: (k, 1)),
    ("{w}.expand({k}, {n})", lambda k, n: (1, n)),
    ("{w}.view({n}, {k}).t()", lambda k, n: (k * n,)),
    ("{w}.reshape({k}, {n})", lambda k, n: (n, k)),
    ("{w}.t().contiguous()", lambda k, n: (n, k)),
    ("({w} * 2)", lambda k, n: (k, n)),
    ("({w} + 1)", lambda k, n: (k, n)),
    ("{w}.t().double().to({w}.dtype)", lambda k, n: (n, k)),
    ("{w}.chunk(2, 1)[1]", lambda k, n: (k, 2 * n)),
    ("torch.cat([{w}, {w}], 1)[:, :{n}]", lambda k, n: (k, n)),
    ("{w}.permute(1, 2, 0)[0]", lambda k, n: (n, 2, k)),
    ("{w}.expand({k}, {n})", lambda k, n: (1, 1)),
    ("{w}.as_strided(({k}, {n}), (1, 1))", lambda k, n: (k + n,)),
    ("{w}.as_strided(({k}, {n}), ({n}, 1), 3)", lambda k, n: (k * n + 3,)),
    ("{w}.flip(0)", lambda k, n: (k, n)),
    ("({w} @ {w})[:, :{n}]", lambda k, n: (k, k)),
    ("F.pad({w}, (0, 0, 0, max({k} - 8, 0)))", lambda k, n: (min(k, 8), n)),
)
PRODUCTS = (
    *("{x} @ {w}", "F.linear({x}, {w}.t())", "F.linear({x}, {w}.t(), {b})", "torch.addmm({a}, {x}, {w}{ab})"),
    *("torch.addmm({b}, {x}, {w})", "torch.mm({x}, {w})", "({w}.t() @ {x}.transpose(-1, -2)).transpose(-1, -2)"),
    *("torch.einsum('mk,kn->mn', {x}, {w})", "torch.einsum('mk,nk->mn', {x}, {w}.t())", "torch.tensordot({x}, {w}, 1)"),
    *("torch.einsum('mk,kn->nm', {x}, {w})", "torch.bmm({x}[None], {w}[None])", "torch.bmm({x}[None], {w}[None])[0]"),
    *("torch.baddbmm({a}, {x}[None], {w}[None]{ab})[0]", "torch.einsum('bmk,kn->bmn', {x}, {w})"),
    *(
        "torch.bmm({x}, {w}.expand({x}.shape[0], -1, -1))",
        "torch.baddbmm({a}, {x}, {w}.expand({x}.shape[0], -1, -1){ab})",
    ),
    *(
        "torch.bmm({x}, {w} * torch.ones_like({x}[:, :1, :1]))",
        "torch.addbmm({a}, {x}, {w}.expand({x}.shape[0], -1, -1){ab})",
    ),
    *(
        "({x}.flatten(0, -2) @ {w}).view(*{x}.shape[:-1], -1)",
        "{x} @ {w} + {b}",
        "{b} - {x} @ {w}",
        "{x}[..., None, :] @ {w}",
    ),
    *("torch.addmm({a}, {x}, {w}{ab}).add_(1)", "torch.cat([{x} @ {w}, {x} @ {w}], -1)", "{x} @ {w}[:, 0]"),
    *(
        "F.pad({x}, (0, 8)) @ F.pad({w}, (0, 0, 0, 8))",
        "(F.pad({x}, (0, 8, 0, 8)) @ F.pad({w}, (0, 8)))[..., :-8, :-8]",
    ),
    *(
        "(F.pad({x}, (0, 8, 0, 8)) @ F.pad({w}, (0, 8, 0, 8)))[..., :-8, :-8]",
        "F.pad({x}, (0, 8)) @ F.pad({w}, (0, 0, 8, 0))",
    ),
    *("F.pad({x}, (0, 8), value=1.0) @ F.pad({w}, (0, 0, 0, 8))", "(F.pad({x}, (0, 0, 0, 8)) @ {w})[..., :-8, :]"),
    *(
        "({x} @ F.pad({w}, (0, 8)))[..., 8:]",
        "({x} @ F.pad({w}, (0, 8)))[..., :-8]",
        "F.linear({x}, {w}.t(), {b}).half()",
    ),
    "torch.addmm({b}, F.pad({x}, (0, 8, 0, 8)), F.pad({w}, (0, 0, 0, 8)))[:-8]",
    *(
        "{x} @ ({l} @ {h})",
        "{x} @ ({w} + {l} @ {h})",
        "{x} @ {w} + ({x} @ {l}) @ {h}",
        "({x} @ {l}) @ {h}",
        "{x} @ {w} + {x} @ {w}",
    ),
    *(
        "{x} @ {w} + {x} @ ({l} @ {h})",
        "{x} @ {w} - F.linear({x}, {l}.t()) @ {h} * 2",
        "{x} @ {w} + ({x} * {x}.mean() @ {l}) @ {h}",
    ),
)
SUMS = (
    *("{p} + {u}", "{u} + {p}", "{p} - {u}", "{u} - {p}", "torch.add({p}, {u}, alpha={f})", "{p} + {u} + {b}"),
    *("torch.add({u}, {p}, alpha={f})", "torch.sub({p}, {u}, alpha={f})", "{p}.add_({u})", "{p}.add_({u}, alpha={f})"),
    *("{p}.sub_({u})", "({p} + {b}) + {u}", "({p} + {u}).half()", "{p} + 2 * ({u} + {u})", "{p} + {u}.unsqueeze(0)"),
    *(
        "2 * ({p} + {u})",
        "{p} * 2 + {u}",
        "{p} + {a} + {u}",
        "({p} + {u}) + {p}",
        "{u} + {u} + {p}",
        "{p}.view(-1) + {u}.reshape(-1)",
    ),
    *(
        "{p}.transpose(-1, -2) + {u}.transpose(-1, -2)",
        "{p}.transpose(-1, -2) + {u}",
        "{p} + {u}.float()",
        "{p}.float() + {u}",
    ),
    *(
        "({p} + {b}) - ({u} + {b})",
        "{p} + ({u} - {p})",
        "{p} + {u}.mean()",
        "{p} + {u}[:1]",
        "{p} / 2 + {u}",
        "{p} * {u}",
    ),
    *(
        "torch.rsub({u}, {p})",
        "torch.stack([{p}, {u}]).sum(0)",
        "({p} + {u}).transpose(-1, -2).contiguous()",
        "{p}.clone() + {u}",
    ),
    *(
        "({p} - {b}) + {u}",
        "({p} + {b}.float()) + {u}",
        "torch.add({p}, {b}, alpha=2) + {u}",
        "{b} + {p} + {u}",
        "torch.where({p} > 9, {p}, {p} + {u})",
    ),
)
# A vector [n] out of a parameter, and the parameter's shape; so too for tensors of one element.
VECTORS: tuple[tuple[str, Any], ...] = (
    ("{v}", lambda n: (n,)),
    ("{v}[::2]", lambda n: (2 * n,)),
    ("{v}[1:]", lambda n: (n + 1,)),
    ("{v}.expand({n})", lambda n: (1,)),
    ("{v}[1]", lambda n: (2, n)),
    ("{v}[:, 1]", lambda n: (n, 2)),
    ("{v}[None]", lambda n: (n,)),
    ("{v}.t()", lambda n: (n, 1)),
    ("({v} * 2)", lambda n: (n,)),
    ("{v}.expand(1, {n})", lambda n: (1, 1)),
)
SCALES: tuple[tuple[str, tuple[int, ...]], ...] = (
    *(("{v}", ()), ("{v}", (1,)), ("{v}", (1, 1)), ("{v}", (1, 1, 1)), ("{v}[1]", (4,)), ("{v}[1:2]", (4,))),
    *(("{v}.mean()", (4,)), ("({v} * 2)", (1,)), ("{v}.squeeze()", (1, 1)), ("{v}[1, 2]", (2, 4))),
)
FUSED_SUMS = (
    *("torch.addmm({p}, {y}, {w})", "torch.addmm({p}, {y}, {w}{ab})", "torch.addmm({p}, {y}, {w}).relu_()"),
    *("torch.baddbmm({p}, {y}, {w}.expand({y}.shape[0], -1, -1){ab})", "{p}.addmm_({y}, {w}{ab})"),
)
USES = (
    *("{r}.relu()", "{r}.mul_(2)", "{r}.relu_()", "{r}[0].zero_()", "{r}.sum()", "{r} * {r}", "{r}[..., :16]", "{r}"),
    *("{r}.transpose(-1, -2)", "{r}.view(-1)", "{r}.add_(1).sum(-1)", "{r}.half()", "{r} + {o}", "{r}.softmax(-1)"),
)
AFTER = ("{x}.mul_(2)", "{x}.add_(1)", "{w}.mul_(0.5)")


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
