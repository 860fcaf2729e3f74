"""Tiles that end with a chain where the number of rows is symbolic: one plan for every number, and what stays apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as f
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import fusioncc
from fusioncc.api import dump_data
from fusioncc.capture import capture
from fusioncc.chain import ROTATE_HALF
from fusioncc.decision import Rejected
from fusioncc.group import Operand
from fusioncc.passes.epilogue_form import Behind, in_rows, same_tiles, several_rows
from fusioncc.pipeline import rewrite
from fusioncc.plan import Plan
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.load import load
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice
from fusioncc.sizes import Symbolic
from tests.passes.test_end_groups import ENDED_MODEL, End, K, N, Products, behind_of, close, setting
from tests.passes.test_norms import Normed, llama
from tests.shown import shown

SEQUENCES = ((3, 5), (4, 16), (2, 50), (10, 10))
ROWS = ((3,), (17,), (64,), (100,))


def heads(product: torch.Tensor, count: int) -> torch.Tensor:
    """A product ``[b, s, n]`` as so many heads in front of the rows of each sequence."""
    return product.unflatten(-1, (count, -1)).transpose(1, 2)


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return apply_rotary_pos_emb(heads(q, 2), heads(k, 2), cos, sin, unsqueeze_dim=cos.dim() - 2)


Shapes = Callable[[int, int], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Case:
    """What stands behind the products of X ``[b, s, K]``, the shapes of what else it reads, and how many it ends."""

    end: End
    reads: Shapes = lambda b, s: []
    widths: tuple[int, ...] = (N, N)
    ended: tuple[int, ...] = (2,)


ENDED = {
    "swiglu": Case(lambda p, q: f.silu(p) * q),
    "residual": Case(lambda p, r: r + p, lambda b, s: [(b, s, N)], (N,), (1,)),
    "residual as a matrix": Case(lambda p, r: r + p.flatten(0, 1), lambda b, s: [(b * s, N)], (N,), (1,)),
    "residual with gaps": Case(lambda p, r: r[..., ::2] + p, lambda b, s: [(b, s, 2 * N)], (N,), (1,)),
    "gelu, scaled": Case(lambda p: f.gelu(p) * 0.5, widths=(N,), ended=(1,)),
    "a cast": Case(lambda p, q: (p * q).half()),
    "quantised": Case(lambda p: (p * 3).clamp(-8, 7).to(torch.int8), widths=(N,), ended=(1,)),
    "a row vector": Case(lambda p, q, s: p * s + q, lambda b, s: [(N,)]),
    "a column vector": Case(lambda p, q, s: (p * s).sigmoid() * q, lambda b, s: [(b, s, 1)]),
    "a column of a sequence": Case(lambda p, q, s: (p * s).sigmoid() * q, lambda b, s: [(s, 1)]),
    "rows of a sequence": Case(lambda p, q, r: p * r + q, lambda b, s: [(s, N)]),
    "heads in front of rows": Case(
        lambda p, q, r: heads(p, 3) * heads(r, 3) + heads(q, 3).relu(), lambda b, s: [(b, s, N)]
    ),
    "rows in another order": Case(lambda p, q: p.transpose(0, 1).relu() * q.transpose(0, 1)),
    "zeros like a product": Case(lambda p, q: torch.where(p > 0, p * q, torch.zeros_like(p))),
    "a sum in front of a norm": Case(
        lambda p, r: ((s := r + p), f.rms_norm(s, (N,))), lambda b, s: [(b, s, N)], (N,), (1,)
    ),
    "rotary of each row": Case(rotary, lambda b, s: [(b, s, 32)] * 2, (64, 64), (1, 1)),
    "rotary of a sequence": Case(rotary, lambda b, s: [(s, 32)] * 2, (64, 64), (1, 1)),
    "rotary of one position": Case(rotary, lambda b, s: [(1, 32)] * 2, (64, 64), (1, 1)),
}


def any_rows(value: torch.Tensor) -> torch.Tensor:
    """The tensor, all of whose sizes but the last may be others."""
    for dim, size in enumerate(value.shape[:-1]):
        if size > 1:
            torch._dynamo.mark_dynamic(value, dim)
    return value


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))) / 8


def served(model: nn.Module, shapes: tuple[tuple[int, ...], ...], reads: Any = None, **options: Any) -> Plan:
    """The one plan with which results are those of eager for every shape of rows."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    given = {"epilogues": "always", "on_error": "raise", "chains": "never", "rest": "eager", **options}
    compiled = fusioncc.optimize(model, **given)
    for shape in shapes:
        args = [any_rows(drawn(*each)) for each in ((*shape, K), *(reads(*shape) if reads else ()))]
        with torch.no_grad():
            got, wanted = compiled(*args), model(*args)
        close(*((each,) if isinstance(each, torch.Tensor) else each for each in (got, wanted)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    (plan,) = fusioncc.plan_of(compiled)
    return plan


@pytest.mark.parametrize("name", shown(ENDED, 4))
def test_sequences_and_their_number_are_symbolic(name: str) -> None:
    case = ENDED[name]
    plan = served(Products(case.end, case.widths, len(case.widths)), SEQUENCES, case.reads, schedule="inline")
    (group,) = plan.groups
    assert "*" in group.m_symbol and not plan.rejections
    assert tuple(len(each.mains) for each in group.epilogues) == case.ended
    turns = [any(op.target == ROTATE_HALF for op in each.chain.ops) for each in group.epilogues]
    assert turns == [name.startswith("rotary")] * len(turns)


@pytest.mark.parametrize("kind", shown(["inline", "split", "two_pool", "concat", "horizontal"], 2))
def test_every_kind_serves_any_number_of_rows(kind: str) -> None:
    adapted = 0 if kind in ("concat", "horizontal") else 2
    plan = served(Products(lambda p, q: f.silu(p) * q, adapted=adapted), ROWS, schedule=kind)
    (group,) = plan.groups
    assert group.schedule.kind == kind and group.m_symbol and [len(each.mains) for each in group.epilogues] == [2]


@pytest.mark.exhaustive
def test_beside_inductor() -> None:
    plan = served(
        Products(lambda p, r: r + p, (N,), 1), SEQUENCES, lambda b, s: [(b, s, N)], schedule="inline", rest="inductor"
    )
    assert [len(each.mains) for each in plan.groups[0].epilogues] == [1]


def test_a_norm_begins_and_a_chain_ends() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normed = Normed(llama)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, up = self.normed(x)
            return f.silu(gate) * up

    (group,) = served(Both(), SEQUENCES, schedule="inline", norms="always").groups
    assert group.norm is not None and [len(each.mains) for each in group.epilogues] == [2] and "*" in group.m_symbol


class Parts(nn.Module):
    """An end of 2 * n rows, of which each half meets the same n rows of what else is read."""

    def __init__(self) -> None:
        super().__init__()
        self.products = Products(lambda p, q, r: p.view(2, -1, N).relu() * q.view(2, -1, N) + r)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> Any:
        return self.products(x, r)


def exported() -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    return torch.export.export(Parts(), (drawn(2 * 7, K), drawn(7, N)), dynamic_shapes=({0: 2 * rows}, {0: rows}))


@pytest.mark.parametrize("form", ["visible", pytest.param("call", marks=pytest.mark.exhaustive)])
def test_the_rows_of_a_part_are_read_at_run_time(form: str) -> None:
    program = exported()
    module = capture(program)
    rest = "inductor" if form == "visible" else "eager"
    plan = rewrite(module.graph, setting(schedule="split", rest=rest, chains="never"), form)
    module.graph.lint()
    module.recompile()
    (group,) = plan.groups
    assert group.insertion == form and [each.shape for each in group.epilogues[0].operands] == [(7, N)]
    held = [program.state_dict[each] for each in program.graph_signature.parameters]
    for rows in (2, 7, 50):
        args = drawn(2 * rows, K), drawn(rows, N)
        with mended(), interpreted_libdevice():
            close(module(*held, *args), (Parts()(*args),))


def test_a_dump_is_readable_and_its_kernel_stands_alone() -> None:
    planned = dump_data(exported(), schedule="inline", epilogues="always", on_error="raise", rest="eager")
    (group,), (module,) = planned.plan.groups, planned.modules
    assert Plan.from_json(planned.plan.to_json()) == planned.plan
    assert f"[{group.m_symbol} (planned for 14)" in str(planned.plan)
    assert f"[about 7, {N}]" in module.source and "Z_M=z.shape[0]" in module.source
    loaded = load(module.name, module.source)
    assert loaded.check(loaded.draw(0)) == ""


@pytest.mark.exhaustive
def test_a_plan_is_applied_again() -> None:
    case = ENDED["rows of a sequence"]
    model = Products(case.end)
    plan = served(model, SEQUENCES[:1], case.reads, schedule="inline")
    again = served(model, SEQUENCES[:2], case.reads, plan=plan.to_json())
    assert again.groups[0].group.signature() == plan.groups[0].group.signature()
    assert again.groups[0].epilogues and again.groups[0].schedule == plan.groups[0].schedule


REFUSED: dict[str, tuple[End, Shapes, str, str]] = {
    "a vector of each sequence": (lambda p, q, s: p * s + q, lambda b, s: [(b, 1, N)], "in_rows", "no one stride"),
    "a residual of other rows": (
        lambda p, q, r: p * q + r[:, None, None],
        lambda b, s: [(b + 1, N)],
        "same_tiles",
        "not that of the products",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_apart_and_why(name: str) -> None:
    end, reads, rule, reason = REFUSED[name]
    plan = served(Products(end), SEQUENCES[:2], reads, schedule="inline")
    (group,) = plan.groups
    assert group.epilogues == () and group.schedule.kind == "inline"
    assert reason in next(each.reason for each in plan.rejections if each.rule == rule)


def symbol(name: str, hint: int) -> Symbolic:
    return Symbolic(hint, sympy.Symbol(name, integer=True, positive=True))


B, S = symbol("s0", 2), symbol("s1", 10)


def any_behind(*shape: int, m: int = B * S) -> Behind:
    """The end of a model with a symbolic number of rows, ``[s0, s1, N]``, which reads a matrix of this shape too."""
    behind = behind_of(ENDED_MODEL)
    products = [replace(each, shape=(B, S, N), strides=(S * N, N, 1)) for each in behind.chain.inputs]
    steps = [prod(shape[at + 1 :]) for at in range(len(shape))]
    inputs = (*products, *([Operand("r", shape, tuple(steps), "fp32")] if shape else ()))
    ops = tuple(replace(op, shape=(B, S, N)) for op in behind.chain.ops)
    made = len(inputs) + len(ops) - 1
    results = (replace(behind.chain.results[0], value=made, strides=(S * N, N, 1)),)
    chain = replace(behind.chain, shape=(B, S, N), inputs=inputs, ops=ops, results=results)
    return replace(behind, chain=chain, m=m)


def reason_of(decision: Any) -> str:
    assert isinstance(decision, Rejected)
    return decision.reason


def test_rows_are_those_of_the_products_as_an_expression() -> None:
    assert same_tiles(any_behind())
    assert "no rows and columns" in reason_of(same_tiles(any_behind(m=symbol("s2", 20))))
    assert "no rows and columns" in reason_of(same_tiles(any_behind(m=20)))


def test_what_is_read_has_the_rows_or_a_part_of_them_as_an_expression() -> None:
    for rows in ((B, S), (S,), (1,), (1, 1)):
        assert in_rows(any_behind(*rows, N)), rows
    assert "no one stride" in reason_of(in_rows(any_behind(B, 1, N)))


def test_a_matrix_that_lies_by_columns_is_refused() -> None:
    behind = any_behind(B, S, N)
    *products, r = behind.chain.inputs
    inputs = (*products, replace(r, strides=(S, 1, B * S)))
    decision = in_rows(replace(behind, chain=replace(behind.chain, inputs=inputs)))
    assert "the strides [1, s0*s1] of its rows are symbolic" in reason_of(decision)


def test_a_part_that_looks_like_all_rows_is_refused() -> None:
    """One sequence when it was planned, of a size that is symbolic all the same."""
    one = symbol("s0", 1)
    behind = any_behind(S, N)
    inputs = [replace(each, shape=(one, S, N)) for each in behind.chain.inputs[:2]]
    chain = replace(behind.chain, shape=(one, S, N), inputs=(*inputs, behind.chain.inputs[2]))
    decision = in_rows(replace(behind, chain=chain, m=one * S))
    assert "looks like one or like all" in reason_of(decision)


def test_one_row_of_any_number_is_refused() -> None:
    assert several_rows(any_behind()) and several_rows(replace(any_behind(), m=1))
    assert "one was there" in reason_of(several_rows(any_behind(m=symbol("s0", 1))))


class Adapted(nn.Module):
    """A projection with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = nn.Linear(64, 128), nn.Linear(64, 8, bias=False), nn.Linear(8, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return f.gelu(self.w(x) + 2 * self.b(self.a(x)))


def test_an_exported_program_of_any_batch_and_length() -> None:
    """The views of torch.export have strides that are the same for all lengths, and say so only by their bounds."""
    model, sizes = Adapted().bfloat16().eval(), {0: torch.export.Dim("b", max=64), 1: torch.export.Dim("s", max=4096)}
    program = torch.export.export(model, (torch.randn(3, 17, 64).bfloat16(),), dynamic_shapes=(sizes,))
    (group,) = fusioncc.plan(program, device="h200").groups
    assert "*" in group.group.m_symbol and group.epilogues
    with torch.no_grad():
        optimized = fusioncc.optimize(program, schedule="inline", on_error="raise")
        for batch, length in ((2, 5), (3, 17), (5, 40)):
            x = torch.randn(batch, length, 64).bfloat16()
            torch.testing.assert_close(optimized(x), model(x), atol=0.02, rtol=0.02)
    plans = fusioncc.plan_of(optimized)  # of the first length, and of any
    assert [group.schedule.kind for plan in plans for group in plan.groups] == ["inline", "inline"]
