"""The groups that the shipped table is measured for, in an order of worth.

The projections of Llama-8B (of which Mistral-7B has the shapes) and Qwen2.5-7B, alone and with what their tiles end
with in these models, for 1, 2, 4, ... 8192 rows and adapters of rank 16, 8, 64 and none, in bf16 and, as PEFT makes
them unless told otherwise, in fp32.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from layers import FAMILIES, Family, Layer, group_of

from fusioncc.chain import ROTATE_HALF, Argument, Chain, Op, Result
from fusioncc.group import Epilogue, Group
from fusioncc.operand import Operand
from fusioncc.tuning.place import BUCKETS

MODELS = {name: FAMILIES[name] for name in ("Llama-3-8B", "Qwen2.5-7B")}
RANKS = (16, 8, 64, 0)
ADAPTERS = ("bf16", "fp32")
ENDED = {
    "q/k/v": (range(1, 129), range(2048, 8193)),
    "o": (range(128, 8193),),
    "gate/up": (range(2, 513),),
    "down": (),
}
"""For how many rows the planner ends tiles on an H200. It changes the order only."""
DECODED = 64
"""Rows up to which a group is taken to be of decoding."""
MUL, ADD = "aten.mul.Tensor", "aten.add.Tensor"
ALPHA = Argument(None, "1", "alpha")
HEAD = 128
"""Columns of a head in all of these models."""


@dataclass(frozen=True)
class Case:
    """One group of a model: its projections, rows, rank (0: no adapters), the dtype of those, and whether its tiles end
    with what follows in the model: rotary embeddings of q and k, SiLU and product of gate and up, the residual sum."""

    model: str
    site: str
    m: int
    rank: int
    adapters: str
    ended: bool

    @property
    def worth(self) -> tuple[int, ...]:
        """Less is measured earlier: bf16, what is planned, rank 16, few rows."""
        usual = self.ended == any(self.m in rows for rows in ENDED[self.site])
        decoded, plain = self.m <= DECODED, self.rank == 0
        stage = 2 * (self.rank != RANKS[0]) + (not decoded) + 4 * (not usual)
        return ADAPTERS.index(self.adapters), stage, plain, RANKS.index(self.rank), BUCKETS.index(self.m)


def cases(adapters: tuple[str, ...] = ADAPTERS) -> list[Case]:
    """All groups, in an order of worth. A projection without adapters is no group unless others share its X."""

    def every() -> Iterator[Case]:
        for dtype in adapters:
            for rank in RANKS if dtype == adapters[0] else RANKS[:-1]:
                for site in ("q/k/v", "o", "gate/up", "down") if rank else ("q/k/v", "gate/up"):
                    for model in MODELS:
                        for m in BUCKETS:
                            yield from (Case(model, site, m, rank, dtype, ended) for ended in (True, False))

    return sorted(every(), key=lambda case: case.worth)


def group(case: Case) -> Group:
    """The group of a case as the planner finds it."""
    family = MODELS[case.model]
    made = group_of(layer(case, family))
    of_adapters = {"dtype": case.adapters}
    members = tuple(
        each if each.role == "main" else replace(each, weight=replace(each.weight, **of_adapters), **of_adapters)
        for each in made.members
    )
    made = replace(made, members=members)
    return replace(made, epilogues=epilogues(case, made)) if case.ended else made


def layer(case: Case, family: Family) -> Layer:
    """Its products."""
    k = {"o": family.queries, "down": family.intermediate}.get(case.site, family.hidden)
    widths = {
        "q/k/v": (family.queries, family.keys, family.keys),
        "gate/up": (family.intermediate, family.intermediate),
    }.get(case.site, (family.hidden,))
    return Layer(case.model, case.site, case.m, k, widths, case.rank, family.bias and case.site == "q/k/v")


def epilogues(case: Case, of: Group) -> tuple[Epilogue, ...]:
    """What the tiles end with."""
    first, *others = of.mains
    n = of.members[first].n
    if case.site == "q/k/v":
        return tuple(Epilogue((main,), rotation(case.m, of.members[main].n)) for main in (first, others[0]))
    if case.site == "gate/up":
        return (Epilogue((first, others[0]), product(case.m, n)),)
    return (Epilogue((first,), residual(case.m, n)),)


def rotation(m: int, n: int) -> Chain:
    """``x * cos + rotate_half(x) * sin`` of every head."""
    angles = [Operand(name, (m, HEAD), (HEAD, 1), "bf16") for name in ("cos", "sin")]
    half = (Argument(0), Argument(None, str(HEAD)))
    steps = [(MUL, values(0, 1)), (ROTATE_HALF, half), (MUL, values(4, 2)), (ADD, (*values(3, 5), ALPHA))]
    return chain(m, n, 1, angles, steps)


def product(m: int, n: int) -> Chain:
    """``silu(gate) * up``."""
    return chain(m, n, 2, [], [("aten.silu.default", values(0)), (MUL, values(2, 1))])


def residual(m: int, n: int) -> Chain:
    """``x + y``."""
    return chain(m, n, 1, [Operand("x", (m, n), (n, 1), "bf16")], [(ADD, (*values(1, 0), ALPHA))])


def values(*numbers: int) -> tuple[Argument, ...]:
    """Arguments that are values."""
    return tuple(map(Argument, numbers))


def chain(m: int, n: int, products: int, beside: list[Operand], steps: list[tuple[str, tuple[Argument, ...]]]) -> Chain:
    """A chain over ``[m, n]`` in bf16 behind so many products, whose last step is its result."""
    inputs = (*(Operand(f"y{at}", (m, n), (n, 1), "bf16") for at in range(products)), *beside)
    ops = tuple(Op(f"op{at}", target, args, "bf16", (m, n)) for at, (target, args) in enumerate(steps))
    return Chain("end", (m, n), inputs, ops, (Result(len(inputs) + len(ops) - 1, "result", (n, 1)),))
