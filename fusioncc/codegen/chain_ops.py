"""The ops of a chain as lines of a kernel, one an op, for a kernel of their own or for the tiles of another."""

from dataclasses import dataclass, field

from fusioncc.chain import CONSTANT, ROTATE_HALF, Chain, Op
from fusioncc.codegen import pointwise, pointwise_table
from fusioncc.codegen.rotary import rotate_half

LARGER = """@triton.jit
def {name}(a, b):
    # Unlike tl.{reduction}, a NaN wins.
    return tl.{op}(a, b, propagate_nan=tl.PropagateNan.ALL)
"""
EXTREMES = {
    "aten.amax.default": ("larger", "max", "maximum", 'float("-inf")'),
    "aten.amin.default": ("smaller", "min", "minimum", 'float("inf")'),
}
NARROW = ("bf16", "fp16", "fp8e4m3", "fp8e5m2", "int8", "uint8", "bool")
"""Dtypes of results that round far more away than approximations of fp32 do."""
WHOLE = ("int8", "uint8", "int16", "int32", "int64", "bool")
JUMPS = ("ceil", "floor", "floor_divide", "fmod", "frac", "remainder", "round", "sgn", "sign", "trunc")
"""Ops, beside those with results in ``WHOLE`` dtypes, of which a last place of an operand decides the result; and"""
QUOTIENTS = ("div", "floor_divide", "fmod", "pow", "reciprocal", "remainder", "true_divide")
"""ops that make exact quotients."""
TRANSCENDENTAL = frozenset(pointwise_table.LIBDEVICE) - {"rsqrt"} | {"sigmoid"}
"""Ops whose results are none that one could name."""
RESERVED = ("rows", "cols", "tile", "tiles_a_row", "inside", "larger", "smaller", "libdevice", "rotate_half")
"""Names that no value of a kernel has; nor those of the functions that expressions call."""
SHORT = {"convert_element_type": "cast", "to_copy": "cast", "to": "cast", "rotate_half": "rotated"}
"""Names of values that are not called like their op."""


@dataclass(frozen=True)
class Value:
    """A value in the kernel: its name or source, and whether it differs along rows and along columns."""

    source: str
    along: tuple[bool, bool]
    cast: bool = False
    """Whether it is of the dtype that is stored already, and not held."""


@dataclass
class ChainOps:
    """Writes the ops of ``chain``; in the ``exact`` tier each rounds as eager would. ``used`` are the names that are
    taken, ``one`` the shape of a constant, ``ragged`` whether tiles of whole rows end behind them."""

    chain: Chain
    exact: bool
    used: set[str]
    one: str
    ragged: bool = False
    width: int = 0
    """Columns of a tile, which may be a part of a head."""
    values: list[Value] = field(default_factory=list)

    def lines(self, inputs: list[Value]) -> list[str]:
        """A line for each op that computes something; ``values`` then has every value by its number."""
        self.values = list(inputs)
        lines = []
        read = {value for op in self.chain.ops for value in op.values}
        for op in self.chain.ops:
            source, along = self._source(op)
            if len(self.values) not in read and op.dtype in pointwise.EIGHTS:  # only stored, as it is
                name = self._name(op)
                lines.append(f"{name} = {bare(source).removesuffix('.to(tl.float32)')}")
                self.values.append(Value(name, along, cast=True))
                continue
            source = bare(pointwise.rounded(source, op.dtype) if self.exact else source)
            if source.isidentifier():  # a cast that rounds nothing here
                self.values.append(Value(source, along))
                continue
            name = self._name(op)
            lines.append(f"{name} = {source}")
            self.values.append(Value(name, along))
        return lines

    def _name(self, op: Op) -> str:
        """The name of an op's value: the op's own, numbered where it is taken."""
        stem = name = SHORT.get(op.stem, op.stem)
        number = 0
        while name in self.used or name in RESERVED or pointwise.helpers(f"{name}("):
            number += 1
            name = f"{stem}_{number}"
        self.used.add(name)
        return name

    def _source(self, op: Op) -> tuple[str, tuple[bool, bool]]:
        read = [self.values[value] for value in op.values]
        along = (any(each.along[0] for each in read), any(each.along[1] for each in read))
        if op.target == CONSTANT:
            value = pointwise.constant(op.args[0].constant, op.dtype)
            return f"tl.full({self.one}, {value}, {pointwise.TRITON[pointwise.held(op.dtype)]})", along
        if op.reduces:
            return self._reduction(op, read[0]), (along[0], False)
        if op.target == ROTATE_HALF:
            return rotate_half(read[0].source, min(op.head, self.width)), along
        terms = [
            pointwise.Term(arg.constant)
            if arg.value is None
            else pointwise.Term(
                self.values[arg.value].source, self.chain.dtype_of(arg.value), not self.chain.shape_of(arg.value)
            )
            for arg in op.args
        ]
        return pointwise.expression(op.target, terms, op.dtype, exact=self.exact), along

    def _reduction(self, op: Op, value: Value) -> str:
        source = value.source
        if not value.along[1]:
            source = f"tl.broadcast_to({source}, (BLOCK_M, BLOCK_N))"
        function, _, _, neutral = EXTREMES.get(op.target, ("", "", "", "0.0"))
        if self.ragged:
            source = f"tl.where(cols[None, :] < N, {source}, {neutral})"
        if function:
            return f"tl.reduce({source}, 1, {function}, keep_dims=True)"
        mean = " * (1.0 / N)" if op.target == "aten.mean.dim" else ""
        return f"tl.sum({source}, 1, keep_dims=True){mean}"


def bare(source: str) -> str:
    """An expression without parentheses around all of it."""
    depth = 0
    for at, letter in enumerate(source):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(source) - 1:
            return source
    return source[1:-1] if source.startswith("(") else source


def approximates(chain: Chain) -> bool:
    """Whether approximations of fp32 are far below the rounding of every result: there is none that jumps where a
    quotient is exact."""
    narrow = all(chain.dtype_of(each.value) in NARROW for each in chain.results)
    jumps = any(op.stem in JUMPS or op.dtype in WHOLE for op in chain.ops)
    return narrow and not (jumps and _has_exact_quotient(chain))


def _has_exact_quotient(chain: Chain) -> bool:
    """Whether a quotient may be exact. One of what a transcendental function makes, as SiLU is (``x / (1 + exp(-x))``),
    is so by chance only, in eager too."""
    smooth: set[int] = set()
    for at, op in enumerate(chain.ops, len(chain.inputs)):
        if op.stem in TRANSCENDENTAL or not smooth.isdisjoint(op.values):
            smooth.add(at)
        elif op.stem in QUOTIENTS:
            return True
    return False
