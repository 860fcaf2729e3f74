"""Tiles that end with the chain behind their products: which chains, with which results, and why others stay apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as f

import fusioncc
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.errors import EmissionError, FusionError, KernelBuildError, PlanError
from fusioncc.graph import aten
from fusioncc.passes import build_groups, end_groups, predicted
from fusioncc.passes.epilogue_form import RULES, Behind, unwritten_between
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import draft, rewrite
from fusioncc.plan import GroupPlan, Plan
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice
from fusioncc.schedule import Schedule
from fusioncc.seam import FusionWarning
from tests.passes.doors import DOORS, inputs_of
from tests.shown import shown

K, N, R, M = 64, 96, 4, 20
End = Callable[..., Any]


class Products(nn.Module):
    """Products of X ``[2, 10, K]``, which ``end`` turns into results; those below ``adapted`` have an adapter."""

    def __init__(self, end: End, widths: tuple[int, ...] = (N, N), adapted: int = 2, k: int = K, rank: int = R) -> None:
        super().__init__()
        self.end, self.adapted = end, adapted
        generator = torch.Generator("cpu").manual_seed(0)
        for at, n in enumerate(widths):
            for name, shape in (("w", (n, k)), ("a", (rank, k)), ("b", (n, rank))):
                value = torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device()) / 8
                self.register_parameter(f"{name}{at}", nn.Parameter(value))
        self.count = len(widths)

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        w, a, b = ([getattr(self, f"{name}{at}") for at in range(self.count)] for name in "wab")
        products = [f.linear(x, each) for each in w]
        for at in range(self.adapted):
            products[at] = products[at] + 2 * f.linear(f.linear(x, a[at]), b[at])
        return self.end(*products, *more)


def setting(**options: Any) -> Setting:
    chosen = {"epilogues": "always", "on_error": "raise", "rest": "eager", **options}
    return Setting(Options.of(**chosen), get_device("h200"), Accepted("runnable", ("interpreter",)))


def heads(product: torch.Tensor) -> torch.Tensor:
    """A product of three heads as ``[2, 3, 10, N / 3]``."""
    return product.view(2, 10, 3, N // 3).transpose(1, 2)


def like(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """What stands behind the products, what else it reads, how many products, and what becomes of it."""

    end: End
    more: tuple[torch.Tensor, ...] = ()
    widths: tuple[int, ...] = (N, N)
    ended: tuple[int, ...] = (2,)
    """Products of each epilogue."""
    kept: int = 0


ENDED = {
    "swiglu": Case(lambda p, q: f.silu(p) * q),
    "gelu of one": Case(lambda p: f.gelu(p), widths=(N,), ended=(1,)),
    "residual": Case(lambda p, r: r + p, (like(2, 10, N),), (N,), (1,)),
    "residual with gaps": Case(lambda p, r: (r[..., ::2] + p) * 2, (like(2, 10, 2 * N),), (N,), (1,)),
    "a column vector": Case(lambda p, q, s: (p * s).sigmoid() * q, (like(2, 10, 1),)),
    "a row vector": Case(lambda p, q, s: p * s + q, (like(N),)),
    "an expanded row": Case(lambda p, q, s: (p * s).relu() + q, (like(1, 1, N).expand(2, 10, N),), ended=()),
    "a scalar tensor": Case(lambda p, q, s: p * s + q, (torch.tensor(1.5),)),
    "a cast": Case(lambda p, q: (p * q).half()),
    "clamped to a byte": Case(lambda p: (p * 3).clamp(-8, 7).to(torch.int8), widths=(N,), ended=(1,)),
    "eight bits that are read too": Case(
        lambda p: ((q := (p * 3).to(torch.float8_e4m3fn)), q.float() * 2), widths=(N,), ended=(1,)
    ),
    "a comparison": Case(lambda p, q: torch.where(p > q, p, 0.5 * q)),
    "several results": Case(lambda p, q: ((s := p * q), (s + 1).relu())),
    "two ends of the same": Case(lambda p, q: (p * q, p + q), kept=2),
    "a product that is read too": Case(lambda p, q: (f.silu(p) * q, p.sum(0)), kept=1),
    "a view between": Case(lambda p, q: p.view(M, N).relu() * q.view(M, N)),
    "heads in front of rows": Case(lambda p, q, r: heads(p) * heads(r) + heads(q).relu(), (like(2, 10, N),)),
    "rows in another order": Case(lambda p, q: p.transpose(0, 1).relu() * q.transpose(0, 1)),
    "rows of a sequence": Case(lambda p, q, r: p * r + q, (like(10, N),)),
    "columns of a head": Case(lambda p, q, s: heads(p) * s + heads(q), (like(10, N // 3),)),
    "two ends": Case(lambda p, q: (p.relu() + 1, q.sigmoid() * 2), ended=(1, 1)),
    "an end for two of three": Case(lambda p, q, s: (f.silu(p) * s, q), widths=(N, 32, N)),
    "a sum in front of a norm": Case(lambda p, r: ((s := r + p), f.rms_norm(s, (N,))), (like(2, 10, N),), (N,), (1,)),
    "a sum in front of a norm whose scale is computed": Case(
        lambda p, r, g: ((s := r + p), f.rms_norm(s, (N,)) * (1 + g)), (like(2, 10, N), like(N)), (N,), (1,)
    ),
    "zeros like a product": Case(lambda p, q: torch.where(p > 0, p * q, torch.zeros_like(p))),
    "a sum whose square alone is reduced": Case(
        lambda p, r: ((s := r + p), s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6)),
        (like(2, 10, N),),
        (N,),
        (1,),
    ),
    "a product in front of a maximum": Case(lambda p, q: f.silu(p) * q / (p * q).amax(-1, keepdim=True)),
    "one row": Case(lambda p, q: f.silu(p) * q),
}


def ended(name: str, case: Case, kind: str, adapted: bool, form: str = "call") -> tuple[Plan, Any, Any]:
    """The plan, the results with kernels, and those without."""
    count = len(case.widths)
    model = Products(case.end, case.widths, count if adapted else 0)
    x = like(1, K) if name == "one row" else like(2, 10, K)
    module = DOORS["export"](model, (x, *case.more))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    rest = "eager" if form == "call" else "inductor"
    plan = rewrite(module.graph, setting(schedule=kind, on_error="fallback", rest=rest, chains="never"), form)
    module.graph.lint()
    module.recompile()
    assert Plan.from_json(plan.to_json()) == plan
    with mended(), interpreted_libdevice():
        return plan, module(*inputs), wanted


def close(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        loose = 1e-4 if one.dtype == torch.float32 else 1e-2 if one.dtype == torch.float16 else 0
        torch.testing.assert_close(one.float(), other.float(), rtol=loose, atol=loose)


def check(name: str, kind: str, adapted: bool, form: str = "call") -> None:
    case = ENDED[name]
    plan, got, wanted = ended(name, case, kind, adapted, form)
    close(got, wanted)
    (group,) = plan.groups
    assert (group.schedule.kind, group.insertion) == (kind, form)
    assert tuple(len(each.mains) for each in group.epilogues) == case.ended
    assert sum(len(each.kept) for each in group.epilogues) == case.kept
    if case.ended:
        assert group.after.kernels < group.before.kernels


@pytest.mark.parametrize("name", shown(ENDED, 2))
def test_results_are_equal(name: str) -> None:
    check(name, "inline", adapted=True)


@pytest.mark.parametrize("kind", shown(["split", "two_pool"], 2))
@pytest.mark.parametrize("name", shown(ENDED, 1))
def test_results_are_equal_with_downs_in_tiles_of_their_own(name: str, kind: str) -> None:
    check(name, kind, adapted=True)


@pytest.mark.parametrize("kind", shown(["concat", "horizontal"], 1))
@pytest.mark.parametrize("name", shown([name for name, case in ENDED.items() if len(case.widths) > 1], 1))
def test_results_are_equal_without_branches(name: str, kind: str) -> None:
    check(name, kind, adapted=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", shown(ENDED, 1))
def test_results_are_equal_as_functional_calls(name: str) -> None:
    check(name, "inline", adapted=True, form="visible")


COPIED: dict[str, End] = {
    "rows behind heads": lambda p: heads(p).reshape(M, N).relu(),
    "transposed heads": lambda p: heads(p).transpose(1, 3).reshape(2, 10, N).exp(),
    "transposed": lambda p: p.view(M, N).t().reshape(2, 10, N).relu(),
    "a view of a copy": lambda p: heads(p).reshape(M, N).view(2, 10, N).relu(),
}
"""What reads another order of the elements than the product has in memory: ``reshape`` copies them."""


@pytest.mark.parametrize("name", shown(COPIED, 2))
def test_a_product_is_not_read_through_a_copy(name: str) -> None:
    """Not decomposed, as a graph that torch.export made is given to the pass: ``reshape`` is one op."""
    model = Products(lambda p, q: (COPIED[name](p), q.relu())).requires_grad_(False)
    module = torch.export.export(model, (like(2, 10, K),)).graph_module
    assert any(node.target is aten.reshape.default for node in module.graph.nodes)
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(schedule="inline", chains="never"), "call")
    module.recompile()
    with mended(), interpreted_libdevice():
        close(module(*inputs), wanted)
    (group,) = plan.groups
    assert [each.mains for each in group.epilogues] == [group.mains[1:]]


class Later(nn.Module):
    """A chain that reads a product of the group and what is computed from the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.products = Products(lambda p, q: (p, q))
        self.w = nn.Parameter(torch.ones(N, N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p, q = self.products(x)
        return p.relu() * (q @ self.w)


def refused(model: nn.Module, *args: torch.Tensor, door: str = "export", **options: Any) -> tuple[GroupPlan, Any]:
    """The first group, which ends with nothing, and the rejections by rule."""
    module = DOORS[door](model, args)
    drafted = draft(module.graph, setting(on_error="fallback", chains="never", **options))
    assert drafted.plan.groups[0].epilogues == ()
    return drafted.plan.groups[0], {each.rule: each for each in drafted.plan.rejections}


class Saved(nn.Module):
    """A chain that reads the down product of rank 1, which the kernel of the group writes."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("w", (N, K)), ("v", (N, K)), ("a", (1, K)), ("b", (N, 1))):
            self.register_parameter(name, nn.Parameter(torch.ones(*shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = f.linear(x, self.a)
        return f.silu(f.linear(x, self.w) + 2 * f.linear(low, self.b)) * f.linear(x, self.v) * low


def long_sum(p: torch.Tensor, q: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """So many tensors that the sum is one chain and what follows another, which reads its result."""
    total = p
    for each in more:
        total = total + each
    return total.relu() * q


X = like(2, 10, K)
REFUSED: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], str]] = {
    "elementwise": (Products(lambda p, q: p.softmax(-1) * q), (X,), "no whole rows"),
    "read_once": (Products(lambda p, q: p * q * p.flatten(0, 1).view(2, 10, N)), (X,), "through two views"),
    "same_tiles": (Products(lambda p, q: (p + 1) * q, (N, 1), 1), (X,), "no tiles in common"),
    "rotated_heads": (
        Products(lambda p, q: torch.cat((-p[..., N // 2 :], p[..., : N // 2]), -1) * q),
        (X,),
        "heads have 96 columns",
    ),
    "storable": (Products(lambda p, q: (p * 2) > q), (X,), "no tile is stored as bool"),
    "in_rows": (Products(lambda p, q, s: p * s + q), (X, like(2, 1, N)), "no one stride"),
    "independent": (Later(), (X,), "is computed from one of them"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "args"),
    [(Saved(), (X,)), (Products(long_sum), (X, *(like(2, 10, N) for _ in range(17))))],
    ids=["a down product", "the result of another end"],
)
def test_no_kernel_reads_what_it_makes(model: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    module = DOORS["export"](model, args)
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(schedule="inline", on_error="raise", chains="never"), "call")
    module.recompile()
    with mended(), interpreted_libdevice():
        torch.testing.assert_close(module(*inputs), wanted, rtol=1e-4, atol=1e-4)
    assert "or with them" in next(each.reason for each in plan.rejections if each.rule == "independent")


@pytest.mark.exhaustive
def test_a_group_that_was_the_vendors_is_one_node_in_the_search_too() -> None:
    """Its sum is part of the group, not of the chain behind it."""
    with torch.device("meta"):
        model = Products(lambda p, q: f.silu(p) * q, (4096, 4096), 1, k=4096, rank=256).bfloat16()
        graph = DOORS["export"](model, (torch.empty(4096, 4096, dtype=torch.bfloat16),)).graph
    apart, ended = (
        draft(graph, setting(epilogues=each, chains="never")).plan.groups[0] for each in ("never", "always")
    )
    assert apart.schedule.kind == "library"
    assert [len(each.mains) for each in ended.epilogues] in ([], [2])
    assert all(not each.operands for each in ended.epilogues)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", REFUSED)
def test_what_stays_apart_and_why(rule: str) -> None:
    model, args, reason = REFUSED[rule]
    _, rejections = refused(model, *args)
    assert reason in rejections[rule].reason


def behind_of(model: nn.Module) -> Behind:
    """The chain behind the products of a model as its rules see it."""
    seen: list[Behind] = []

    def look(behind: Behind) -> None:
        seen.append(behind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_groups, "first_refusal", look)
        draft(DOORS["export"](model, (X,)).graph, setting())
    return seen[0]


def test_what_is_written_in_between_stays_in_order() -> None:
    behind = behind_of(ENDED_MODEL)
    assert unwritten_between(behind)
    refusal = unwritten_between(replace(behind, written_between=True))
    assert isinstance(refusal, Rejected) and "written in place" in refusal.reason


def test_every_rule_has_a_case() -> None:
    """``unwritten_between`` has a test of its own, ``several_rows`` among symbolic rows."""
    assert {rule.__name__ for rule in RULES} <= {*REFUSED, "several_rows", "unwritten_between"}


ENDED_MODEL = Products(lambda p, q: f.silu(p) * q)


def plan_for(**options: Any) -> Plan:
    module = DOORS["export"](ENDED_MODEL, (X,))
    return draft(module.graph, setting(**options)).plan


def test_a_kind_that_cannot_end_its_tiles_says_why() -> None:
    (group,) = plan_for().groups
    reasons = {each.kind: each.reason for each in group.candidates if not each.legal}
    for kind in ("streams", "merged"):
        assert "end with no epilogue" in reasons[kind]
    assert "launch of its own" in reasons["concat"]


def test_a_forced_kind_without_an_end_leaves_the_chain_apart() -> None:
    plan = plan_for(schedule="streams", rest="inductor")
    assert [(each.schedule.kind, each.epilogues) for each in plan.groups] == [("streams", ())]
    assert "stay the vendor's" in next(each.reason for each in plan.rejections if each.rule == "ends_tiles")


def test_nothing_ends_unless_asked_for_nor_where_eager_rounds() -> None:
    assert not plan_for(epilogues="never").groups[0].epilogues
    assert not plan_for(numerics="eager").groups[0].epilogues


def test_a_plan_is_applied_again_and_one_with_other_ends_is_refused() -> None:
    plan = plan_for()
    again = draft(DOORS["export"](ENDED_MODEL, (X,)).graph, replace(setting(epilogues="never"), given=plan)).plan
    assert again.groups[0].epilogues == plan.groups[0].epilogues
    assert again.groups[0].schedule == plan.groups[0].schedule
    other = DOORS["export"](Products(lambda p, q: f.relu(p) * q), (X,))
    with pytest.raises(PlanError, match="ends its tiles with ops that do not follow"):
        draft(other.graph, replace(setting(), given=plan))


@pytest.mark.exhaustive
@pytest.mark.parametrize("rest", shown(["eager", "inductor"], 1))
def test_a_plan_made_offline_keeps_its_ends_where_ops_are_not_taken_apart(rest: str) -> None:
    """Offline a SiLU is several ops, in a graph that is compiled for a CPU one."""
    plan = fusioncc.plan(ENDED_MODEL, (X,), rest=rest)
    (planned,) = plan.groups
    assert planned.epilogues
    run = fusioncc.optimize(ENDED_MODEL, plan=plan, rest=rest, on_error="raise")
    with torch.no_grad():
        torch.testing.assert_close(run(X), ENDED_MODEL(X), rtol=1e-4, atol=1e-4)
    (carried,) = fusioncc.plan_of(run)
    assert (carried.groups[0].schedule, carried.groups[0].group.signature()) == (
        planned.schedule,
        planned.group.signature(),
    )


@pytest.mark.exhaustive
def test_a_plan_whose_ends_are_not_there_loses_them_alone() -> None:
    plan = fusioncc.plan(ENDED_MODEL, (X,))
    other = Products(lambda p, q: f.gelu(p) * q)
    with torch.no_grad(), pytest.warns(FusionWarning, match="g0: the plan ends its tiles with ops .* stay apart"):
        run = fusioncc.optimize(other, plan=plan)
        torch.testing.assert_close(run(X), other(X), rtol=1e-4, atol=1e-4)
    (carried,) = fusioncc.plan_of(run)
    assert not carried.fallback and {each.rule for each in carried.rejections} == {"ends_tiles"}
    assert (carried.groups[0].schedule, carried.groups[0].epilogues) == (plan.groups[0].schedule, ())


@pytest.mark.exhaustive
def test_a_plan_that_ends_one_of_two_equal_products_is_applied() -> None:
    model = Products(lambda p, q: (p.relu() + 1, q.relu() + 1))
    graph = DOORS["export"](model, (X,)).graph
    plan = draft(graph, setting(schedule="inline")).plan
    for end in plan.groups[0].epilogues:
        one = replace(plan, groups=(replace(plan.groups[0], epilogues=(end,)),))
        (group,) = draft(graph, replace(setting(), given=one)).plan.groups
        assert [each.mains for each in group.epilogues] == [end.mains]
    library = replace(plan, groups=(replace(plan.groups[0], schedule=Schedule("library")),))
    with pytest.raises(PlanError, match="'library' has no tiles that end"):
        draft(graph, replace(setting(), given=library))
    forged = replace(plan.groups[0].epilogues[0], kept=(99,))
    wrong = replace(plan, groups=(replace(plan.groups[0], epilogues=(forged,)),))
    with pytest.raises(PlanError, match="do not follow"):
        draft(graph, replace(setting(), given=wrong))


class Wide(nn.Module):
    """A layer in bf16 with an adapter in fp32, as PEFT makes them."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, k).bfloat16() / 8)
        self.a, self.b = nn.Parameter(torch.randn(R, k) / 8), nn.Parameter(torch.randn(n, R) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (f.linear(x, self.w) + 2 * f.linear(f.linear(x.float(), self.a), self.b)).to(x.dtype)


class Adapted(nn.Module):
    """Gate and up, SiLU·mul, down, of which every layer has an adapter in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = Wide(K, N), Wide(K, N), Wide(N, K)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(f.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_cast_for_the_adapters_of_the_next_group_goes_with_it(door: str) -> None:
    """Nothing is left that reads SiLU·mul in fp32, so neither an end nor a chain writes it."""
    module = DOORS[door](Adapted().requires_grad_(False), (torch.randn(M, K).bfloat16(),))
    plan = draft(module.graph, setting()).plan
    (end,) = plan.groups[0].epilogues
    assert [end.chain.dtype_of(each.value) for each in end.chain.results] == ["bf16"]
    apart = draft(module.graph, setting(epilogues="never")).plan
    (chain,) = apart.chains
    assert [chain.dtype_of(each.value) for each in chain.results] == ["bf16"]


@pytest.mark.exhaustive
def test_where_less_is_saved_than_predictions_are_worth_both_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_for(epilogues="auto").groups[0].epilogues
    monkeypatch.setattr(predicted, "LEAST_GAIN", 10.0)
    plan = plan_for(epilogues="auto")
    assert not plan.groups[0].epilogues and not plan.rejections
    assert "ends with nothing: products and chain are predicted to take" in plan.groups[0].why


@pytest.mark.exhaustive
@pytest.mark.parametrize("rest", ["inductor", "eager"])
def test_a_cast_alone_is_inductor_s_where_it_runs_the_rest(rest: str) -> None:
    module = DOORS["export"](
        Products(lambda p, q: (p.unflatten(-1, (4, -1)).transpose(1, 2).half().cumsum(0), q)), (X,)
    )
    (group,) = draft(module.graph, setting(epilogues="auto", rest=rest)).plan.groups
    assert bool(group.epilogues) == (rest == "eager")


@pytest.mark.exhaustive
def test_what_inductor_may_lay_out_anew_is_read_apart() -> None:
    model = Products(lambda p, q, s: (p + s.cumsum(0)[..., ::2]).relu() * q)
    _, rejections = refused(model, X, like(2, 10, 2 * N), rest="inductor")
    assert "other strides" in rejections["laid_out"].reason


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_a_group_that_is_not_emitted_ends_with_nothing_and_its_plan_is_applied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        raise EmissionError("no form for a test")

    graph = DOORS["export"](ENDED_MODEL, (X,)).graph
    with monkeypatch.context() as patch:
        patch.setattr("fusioncc.passes.emit_groups.emit", failing)
        plan = draft(graph, setting(on_error="fallback")).plan
    (group,) = plan.groups
    assert (group.schedule.kind, group.epilogues, group.before) == ("library", (), group.after)
    assert len(plan.chains) == 1
    assert draft(graph, replace(setting(), given=plan)).plan.groups[0].schedule.kind == "library"


def test_what_does_not_build_with_an_end_is_planned_without(monkeypatch: pytest.MonkeyPatch) -> None:
    module = DOORS["export"](ENDED_MODEL, (X,))
    wanted = module(*inputs_of(module.graph))
    settle = build_groups._settle

    def failing(planned: GroupPlan, setting: Setting) -> Any:
        return KernelBuildError("it spills") if planned.epilogues else settle(planned, setting)

    monkeypatch.setattr(build_groups, "_settle", failing)
    with pytest.warns(FusionWarning, match="g0: .*it spills; its chain stays apart"):
        plan = rewrite(module.graph, setting(on_error="fallback", chains="always"), "call")
    (group,), (chain,) = plan.groups, plan.chains
    assert group.schedule.kind != "library" and not group.epilogues and chain.claimed
    assert [(each.rule, each.reason) for each in plan.rejections] == [("build", "it spills")]
    module.recompile()
    with mended(), interpreted_libdevice():
        close(module(*inputs_of(module.graph)), wanted)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_an_attempt_that_fails_costs_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(end_groups, "as_epilogue", failing)
    plan = plan_for(on_error="fallback")
    assert not plan.groups[0].epilogues and plan.groups[0].schedule.kind != "library"
    assert "a defect" in next(each.reason for each in plan.rejections if each.rule == "ends_tiles")
    with pytest.raises(FusionError, match="ending g0 failed"):
        plan_for()
