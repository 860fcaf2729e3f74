"""Rotary embeddings as the end of q and k: with which results, in which views, and why others stay apart."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as f
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, rotate_half

from fusioncc.chain import ROTATE_HALF
from fusioncc.graph import tensor
from fusioncc.pipeline import draft, rewrite
from fusioncc.plan import Plan
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice
from tests.passes.doors import DOORS, inputs_of
from tests.passes.test_end_groups import close, setting
from tests.shown import one_of_each, shown

K, R = 64, 4
Tensors = tuple[torch.Tensor, ...]
Embed = Callable[..., Tensors]


class Attention(nn.Module):
    """q, k and v of X ``[B, S, K]`` as heads ``[B, H, S, D]``, adapted or not; ``embed`` makes results of them and of
    ``more``."""

    def __init__(self, embed: Embed, heads: tuple[int, ...], d: int, adapted: bool) -> None:
        super().__init__()
        self.embed, self.d = embed, d
        generator = torch.Generator().manual_seed(0)
        self.w, self.a, self.b = (
            nn.ParameterList(torch.randn(*shape(each * d), generator=generator) / 8 for each in heads)
            for shape in (lambda n: (n, K), lambda n: (R, K), lambda n: (n, R))
        )
        self.adapted = adapted

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Tensors:
        products = [f.linear(x, w) for w in self.w]
        if self.adapted:
            parts = zip(products, self.a, self.b, strict=True)
            products = [product + 2 * f.linear(f.linear(x, a), b) for product, a, b in parts]
        return self.embed(*(each.view(*x.shape[:2], -1, self.d).transpose(1, 2) for each in products), *more)


def rotary(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    return (*apply_rotary_pos_emb(q, k, cos, sin), v)


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    turned, *others = rotary(q * 0.5, k, v, cos, sin)
    return (turned.exp(), *others)


def summed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    """q alone, behind which rows of a head are reduced, and k as it is too."""
    turned, other, _ = rotary(q, k, v, cos, sin)
    return turned, f.rms_norm(turned, turned.shape[-1:]), other, k.sum(2), v


def in_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    """As heads ``[B, S, H, D]``."""
    rows = (each.transpose(1, 2) for each in (q, k))
    return (*apply_rotary_pos_emb(*rows, cos, sin, unsqueeze_dim=2), v)


@dataclass(frozen=True)
class Case:
    """Batch, length, heads of q, k and v, their size, sequences of cos and sin; what each product ends with reads."""

    embed: Embed = rotary
    batch: int = 2
    length: int = 6
    heads: tuple[int, ...] = (4, 2, 2)
    d: int = 16
    own: int = 1
    reads: tuple[int, int] = (6, 16)
    kept: int = 0


CASES = {
    "one embedding for all sequences": Case(),
    "an embedding for each sequence": Case(own=2, reads=(12, 16)),
    "one sequence": Case(batch=1, reads=(6, 16)),
    "one position": Case(batch=6, length=1, reads=(1, 16)),
    "one position of one sequence": Case(batch=1, length=1, reads=(1, 16)),
    "one head of k": Case(heads=(3, 1, 1), d=32, reads=(6, 32)),
    "rows in front of heads": Case(in_rows),
    "ops on both sides": Case(scaled),
    "a product that is read too": Case(summed, kept=1),
    "large heads": Case(heads=(2, 1, 1), d=128, reads=(6, 128)),
}


def as_told(graph: fx.Graph, results: Tensors) -> Tensors:
    """Results with the strides of their fake tensors: those of eager are others in dimensions of one element."""
    (made,) = next(node for node in reversed(graph.nodes) if node.op == "output").args
    fakes = (tensor(node) for node in made)
    return tuple(result.as_strided(fake.shape, fake.stride()) for result, fake in zip(results, fakes, strict=True))


def applied(case: Case, door: str, kind: str, form: str, adapted: bool) -> Plan:
    """The plan; results are held against those without kernels."""
    model = Attention(case.embed, case.heads, case.d, adapted)
    more = (torch.ones(case.own, case.length, case.d),) * 2
    module = DOORS[door](model, (torch.ones(case.batch, case.length, K), *more))
    inputs = inputs_of(module.graph)
    wanted = as_told(module.graph, module(*inputs))
    rest = "eager" if form == "call" else "inductor"
    plan = rewrite(module.graph, setting(schedule=kind, rest=rest, chains="never"), form)
    module.graph.lint()
    module.recompile()
    assert Plan.from_json(plan.to_json()) == plan
    with mended(), interpreted_libdevice():
        close(module(*inputs), wanted)
    return plan


def check(case: Case, door: str, kind: str, form: str, adapted: bool) -> None:
    plan = applied(case, door, kind, form, adapted)
    (group,) = plan.groups
    assert (group.schedule.kind, group.insertion) == (kind, form)
    q, k, v = group.mains
    assert [end.mains for end in group.epilogues] == [(q,), (k,)]
    assert group.epilogue_of(v) is None
    assert sum(len(end.kept) for end in group.epilogues) == case.kept
    for end, heads in zip(group.epilogues, case.heads, strict=False):
        assert (end.head, end.chain.shape) == (case.d, (case.batch * case.length, heads * case.d))
        assert [op.target for op in end.chain.ops].count(ROTATE_HALF) == 1
        whole = (case.reads[0], min(case.reads[1], heads * case.d))
        assert [operand.shape for operand in end.operands] == [whole, whole]


@pytest.mark.parametrize("door", shown(DOORS, 1))
@pytest.mark.parametrize("name", shown(CASES, 1))
def test_results_are_equal(name: str, door: str) -> None:
    check(CASES[name], door, "inline", "call", adapted=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", shown(DOORS, 1))
def test_results_are_equal_through_every_door(door: str) -> None:
    check(CASES["one embedding for all sequences"], door, "inline", "visible", adapted=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", shown(["split", "two_pool"], 1))
@pytest.mark.parametrize("name", shown(CASES, 1))
def test_results_are_equal_with_downs_in_tiles_of_their_own(name: str, kind: str) -> None:
    check(CASES[name], "export", kind, "visible", adapted=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", shown(["concat", "horizontal"], 1))
@pytest.mark.parametrize("name", shown(CASES, 1))
def test_results_are_equal_without_branches(name: str, kind: str) -> None:
    check(CASES[name], "export", kind, "call", adapted=False)


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def of_a_part(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    size = q.shape[-1] // 2
    part, rest = q[..., :size], q[..., size:]
    return torch.cat((part * cos[..., :size] + rotate_half(part) * sin[..., :size], rest), -1), k, v


REFUSED: dict[str, tuple[Embed, int, str, str]] = {
    "interleaved": (lambda q, k, v, c, s: (q * c + interleaved(q) * s, k, v), 16, "side_by_side", "(interleaved)"),
    "interleaved behind a cast": (
        lambda q, k, v, c, s: (q.double() * c + interleaved(q.double()) * s, k, v),
        16,
        "side_by_side",
        "(interleaved)",
    ),
    "a part of a head": (of_a_part, 16, "whole_heads", "8 of 16 columns are rotated"),
    "other halves": (
        lambda q, k, v, c, s: (q * c + torch.cat((-q[..., 4:], q[..., :4]), -1) * s, k, v),
        16,
        "side_by_side",
        "not the second and the first half",
    ),
    "heads of 24": (rotary, 24, "rotated_heads", "heads have 24 columns"),
    "heads of 512": (rotary, 512, "rotated_heads", "heads have 512 columns"),
    "an operand of its own": (
        lambda q, k, v, c, s: (q * c + rotate_half(q) * rotate_half(s), k, v),
        16,
        "rotated_heads",
        "no heads that lie side by side",
    ),
    "heads across": (
        lambda q, k, v, c, s: ((t := q.transpose(1, 3)) + rotate_half(t), k, v),
        16,
        "rotated_heads",
        "no heads that lie side by side",
    ),
    "a number for each sequence": (
        lambda q, k, v, c, s: (q * c[:, :, :1, :1] + rotate_half(q) * s, k, v),
        16,
        "in_rows",
        "no one stride",
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", one_of_each(REFUSED, lambda name: REFUSED[name][2]))
def test_what_stays_apart_and_why(name: str) -> None:
    embed, d, rule, reason = REFUSED[name]
    model = Attention(embed, (4, 2, 2), d, adapted=True)
    sizes = (2, 6, d) if embed is rotary else (2, 1, 6, d)  # transformers adds the dimension of the heads
    module = DOORS["export"](model, (torch.ones(2, 6, K), torch.ones(sizes), torch.ones(sizes)))
    drafted = draft(module.graph, setting(on_error="fallback", chains="never"))
    (group,) = drafted.plan.groups
    assert group.epilogue_of(group.mains[0]) is None
    assert any(each.rule == rule and reason in each.reason for each in drafted.plan.rejections)


@pytest.mark.exhaustive
def test_one_row_has_tiles_that_hold_parts_of_both_halves() -> None:
    model = Attention(rotary, (2, 1, 1), 128, adapted=True)
    graph = DOORS["export"](model, (torch.ones(1, 1, K), *(torch.ones(1, 1, 128),) * 2)).graph
    (group,) = draft(graph, setting()).plan.groups
    assert len(group.epilogues) == 2
    assert all(pool.tile.holds_heads(128) for pool in group.schedule.pools if pool.role == "main")
