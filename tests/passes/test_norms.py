"""Norms in front of groups that their tiles carry out: which, with which results, and why others stay apart."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as f

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted, Rejected
from fusioncc.device import get_device
from fusioncc.errors import EmissionError, FusionError, KernelBuildError, PlanError
from fusioncc.graph import aten
from fusioncc.passes import build_groups, norm_groups, predicted
from fusioncc.passes.find_norms import FoundNorm, find_norm
from fusioncc.passes.norm_rules import RULES, InFront, first_refusal, fp32_squares, rounding_tier
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import draft, rewrite
from fusioncc.plan import GroupPlan, Plan
from fusioncc.runtime.interpreter import mended
from fusioncc.runtime.numpy_libdevice import interpreted_libdevice
from fusioncc.schedule import Schedule
from fusioncc.seam import FusionWarning
from tests.passes.doors import DOORS, inputs_of
from tests.shown import shown

K, N, R = 64, 96, 4
FnNorm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def root(x: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def llama(x: torch.Tensor, g: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    wide = x.float()
    return g * (wide * root(wide, epsilon)).to(x.dtype)


class Normed(nn.Module):
    """Products of a normed X ``[2, 10, K]``, with adapters where it is ``adapted``; ``also`` is given what is on the
    way and returned beside them."""

    def __init__(self, norm: FnNorm, *, adapted: bool = True, also: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.norm, self.adapted, self.also = norm, adapted, also
        generator = torch.Generator("cpu").manual_seed(0)
        for at in range(2):
            for name, shape in (("w", (N, K)), ("a", (R, K)), ("b", (N, R))):
                value = torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device()) / 8
                self.register_parameter(f"{name}{at}", nn.Parameter(value))
        self.g = nn.Parameter(torch.linspace(0.5, 1.5, K))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        normed = self.norm(x, self.g, *more)
        products = []
        for at in range(2):
            product = f.linear(normed, getattr(self, f"w{at}"))
            if self.adapted:
                low = f.linear(normed, getattr(self, f"a{at}"))
                product = product + 2 * f.linear(low, getattr(self, f"b{at}"))
            products.append(product)
        return (*products, *([self.also(x, normed)] if self.also else []))


def setting(**options: Any) -> Setting:
    chosen = {"norms": "always", "epilogues": "never", "on_error": "raise", "rest": "eager", **options}
    return Setting(Options.of(**chosen), get_device("h200"), Accepted("runnable", ("interpreter",)))


def like(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


X = like(2, 10, K)
NORMS: dict[str, FnNorm] = {
    "llama": llama,
    "weight before the cast": lambda x, g: (x.float() * root(x.float()) * g.float()).to(x.dtype),
    "one op": lambda x, g: f.rms_norm(x, (K,), g, 1e-5),
    "no weight, no epsilon given": lambda x, g: f.rms_norm(x, (K,)),
    "one added to the weight": lambda x, g: ((wide := x.float()) * root(wide) * (1.0 + g.float())).to(x.dtype),
    "times itself": lambda x, g: g * (x * torch.rsqrt((x * x).mean((-1,), True) + 1e-6)),
    "to the power of minus a half": lambda x, g: g * (x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5)),
    "a matrix in front": lambda x, g: llama(x.view(20, K), g),
    "one weight for all columns": lambda x, g: x * root(x) * g[:1].expand(K),
    "a residual sum in front": lambda x, g: llama(x + x.flip(1), g),
}


def carried(name: str, door: str, form: str = "call", **options: Any) -> tuple[Plan, Any, Any]:
    """The plan, the results with kernels, and those in fp64."""
    adapted = options.get("schedule") == "inline"
    module = DOORS[door](Normed(NORMS[name], adapted=adapted), (X,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    rest = "eager" if form == "call" else "inductor"
    plan = rewrite(module.graph, setting(rest=rest, chains="never", **options), form)
    module.recompile()
    with mended(), interpreted_libdevice():
        return plan, module(*inputs), wanted


def close(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", shown(NORMS, 1))
@pytest.mark.parametrize(("door", "kind"), [("export", "inline"), ("aot", "concat"), ("inductor", "horizontal")])
def test_results_are_equal(name: str, door: str, kind: str) -> None:
    plan, got, wanted = carried(name, door, schedule=kind)
    close(got, wanted)
    (group,) = plan.groups
    assert group.schedule.kind == kind and group.norm is not None
    assert (group.before.kernels, group.after.kernels) == (1 + (8 if kind == "inline" else 2), 1)


@pytest.mark.parametrize("scale", shown([1e3, 1e-3], 1))
def test_rows_of_any_size_are_as_exact(scale: float) -> None:
    """What a compensated sum has lost is scaled with it."""
    module = DOORS["export"](Normed(NORMS["times itself"]), (X,))
    inputs = [value * scale if value.shape == X.shape else value for value in inputs_of(module.graph)]
    exact = module(*(value.double() for value in inputs))
    plain = module(*inputs)
    rewrite(module.graph, setting(schedule="inline", chains="never"), "call")
    module.recompile()
    with mended(), interpreted_libdevice():
        got = module(*inputs)
    for one, eager, true in zip(got, plain, exact, strict=True):
        assert (one - true).square().mean() <= 4 * (eager - true).square().mean()


def test_results_are_equal_as_functional_calls() -> None:
    plan, got, wanted = carried("llama", "export", "visible", schedule="inline")
    close(got, wanted)
    assert plan.groups[0].insertion == "visible"


def test_nothing_of_the_norm_is_left() -> None:
    module = DOORS["export"](Normed(llama), (X,))
    plan = rewrite(module.graph, setting(schedule="inline", chains="always"), "call")
    assert not any(
        node.target in (aten.rsqrt.default, aten.mean.dim, aten.pow.Tensor_Scalar) for node in module.graph.nodes
    )
    assert not plan.chains and plan.after is not None and plan.before is not None
    assert plan.after.peak_bytes < plan.before.peak_bytes


@pytest.mark.parametrize("op", [aten.rms_norm.default, aten._fused_rms_norm.default])
def test_a_norm_that_is_one_op_is_found(op: Any) -> None:
    graph = fx.Graph()
    x, g = graph.placeholder("x"), graph.placeholder("g")
    x.meta["val"], g.meta["val"] = X, like(K)
    made = graph.call_function(op, (x, [K], g, 1e-5))
    made.meta["val"] = X
    last = made
    if op is aten._fused_rms_norm.default:
        made.meta["val"] = (X, like(2, 10, 1))
        last = graph.call_function(operator.getitem, (made, 0))
        last.meta["val"] = X
    view = graph.call_function(aten.view.default, (last, [20, K]))
    view.meta["val"] = X.view(20, K)
    found = find_norm(view)
    assert isinstance(found, FoundNorm)
    assert (found.node, found.x, found.weight, found.rounded) == (last, x, g, False)
    assert found.epsilon == torch.tensor(1e-5).item()  # as fp32 has it
    assert find_norm(x) is None


@pytest.mark.parametrize("door", DOORS)
def test_two_casts_of_one_tensor_are_one_value(door: str) -> None:
    """Which of them is scaled, squared or multiplied with the other, exact or not, and none of them is left."""

    def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return g * (x.float() * torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def halved(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        wide, again = x.bfloat16().float(), x.bfloat16().float()
        return g.bfloat16() * (wide * torch.rsqrt((again * again).mean(-1, keepdim=True) + 1e-6)).bfloat16()

    for model, x in ((Normed(norm).bfloat16(), X.bfloat16()), (Normed(halved).bfloat16(), X)):
        module = DOORS[door](model, (x,))
        plan = rewrite(module.graph, setting(schedule="inline", chains="never"), "call")
        assert plan.groups[0].norm is not None and plan.groups[0].lhs.dtype == "bf16"
        left = [node.target for node in module.graph.nodes if node.op == "call_function"]
        assert aten.rsqrt.default not in left and aten.mean.dim not in left


def test_what_is_rounded_before_the_weight_is_known() -> None:
    module = DOORS["export"](Normed(llama).bfloat16(), (X.bfloat16(),))
    (group,) = draft(module.graph, setting(schedule="inline")).plan.groups
    assert group.norm is not None and group.norm.rounded and group.lhs.dtype == "bf16"


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_an_end_and_a_norm_are_one_kernel(rest: str) -> None:
    class Gated(Normed):
        def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
            gate, up = super().forward(x)
            return (f.silu(gate) * up,)

    module = DOORS["export"](Gated(llama, adapted=False), (X,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    options = {"schedule": "concat", "epilogues": "always", "rest": rest}
    plan = rewrite(module.graph, setting(**options), "call")
    module.recompile()
    with mended(), interpreted_libdevice():
        close(module(*inputs), wanted)
    (group,) = plan.groups
    assert group.norm is not None and len(group.epilogues) == 1 and group.after.kernels == 1


def refused(model: nn.Module, *args: torch.Tensor, **options: Any) -> dict[str, Rejected]:
    """Why the group has no norm, by rule."""
    chosen = {"on_error": "fallback", "schedule": "inline", "chains": "never", **options}
    drafted = draft(DOORS["export"](model, args).graph, setting(**chosen))
    assert drafted.plan.groups[0].norm is None
    return {each.rule: each for each in drafted.plan.rejections}


def other_mean(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return g * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6))


REFUSED: dict[str, tuple[nn.Module, torch.Tensor, str]] = {
    "root_mean_square": (Normed(other_mean), like(2, 1, K), "another dimension than the last"),
    "in_range": (Normed(llama).half(), X.half(), "may pass the range of fp16"),
    "one_weight": (Normed(lambda x, g: x * root(x) * g.view(8, 8).t().reshape(1, K)), X, "no vector"),
    "same_rows": (Normed(lambda x, g: llama(x[..., :K], g)), like(2, 10, 2 * K), "nor contiguous"),
    "normed_alone": (Normed(llama, also=lambda x, normed: normed.sum(0)), X, "reads mul_1 too"),
    "fp32_squares": (Normed(lambda x, g: g * (x * root(x))).bfloat16(), X.bfloat16(), "averaged in bf16"),
    "rounding_tier": (Normed(llama), X, "eager rounds X before it"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", REFUSED)
def test_what_stays_apart_and_why(rule: str) -> None:
    model, x, reason = REFUSED[rule]
    options = {"numerics": "eager", "schedule": "auto"} if rule == "rounding_tier" else {}
    assert reason in refused(model, x, **options)[rule].reason


NOT_ONE_VALUE: dict[str, FnNorm] = {
    "of another dtype": lambda x, g: x * torch.rsqrt((x * x.bfloat16()).mean(-1, keepdim=True) + 1e-6),
    "of another tensor": lambda x, g: x * torch.rsqrt((x * (x + 1)).mean(-1, keepdim=True) + 1e-6),
    "of other elements": lambda x, g: x * torch.rsqrt((x * x.flip(0)).mean(-1, keepdim=True) + 1e-6),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NOT_ONE_VALUE)
def test_a_product_of_two_values_is_no_square(name: str) -> None:
    assert "is not of squares" in refused(Normed(NOT_ONE_VALUE[name]), X)["root_mean_square"].reason


@pytest.mark.parametrize("dynamic", [True, None])
def test_an_epsilon_that_is_an_input_is_refused_as_one(dynamic: bool | None) -> None:
    """``dynamic=True`` makes inputs of Python floats."""
    model = Normed(lambda x, g: llama(x, g, model.epsilon), adapted=False)
    model.epsilon = 1e-5
    options = {"schedule": "concat", "norms": "always", "chains": "never"}
    torch.compiler.reset()
    run = torch.compile(model, backend=backend, options=options, dynamic=dynamic)
    close(run(X), model(X))
    (plan,) = fusioncc.plan_of(run)
    refusals = [each for each in plan.rejections if each.rule == "root_mean_square"]
    assert (plan.groups[0].norm is None) == bool(refusals) == bool(dynamic)
    if dynamic:
        assert "is an input of the graph" in refusals[0].reason and "dynamic=True" in refusals[0].hint


def test_what_is_written_in_place_behind_the_norm_leaves_no_group() -> None:
    """So that norms need no rule for it: ``no_barrier`` refuses wherever it stands in front of the products."""
    graph = DOORS["export"](Normed(llama), (X,)).graph
    scaled = next(node for node in graph.nodes if node.target is aten.rsqrt.default)
    first = next(node for node in graph.nodes if node.target in (aten.mm.default, aten.addmm.default))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for place in (scaled, first):
        written = fx.Graph()
        values: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node is place:
                call = written.call_function(aten.mul_.Tensor, (values[inputs[0]], 2))
                call.meta["val"] = inputs[0].meta["val"]
            values[node] = written.node_copy(node, values.__getitem__)
        plan = draft(written, setting(on_error="fallback")).plan
        assert not plan.groups and {"no_barrier"} == {each.rule for each in plan.rejections}


NOT_NORMS: dict[str, tuple[FnNorm, str]] = {
    "no epsilon": (lambda x, g: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)), "no number from 0 on is added"),
    "a sum": (lambda x, g: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6), "is no mean, but"),
    "no squares": (lambda x, g: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6), "not of squares"),
    "three times the number": (
        lambda x, g: x * torch.rsqrt(aten.add.Scalar(x.pow(2).mean(-1, keepdim=True), 1.0, 3)),
        "no number from 0 on",
    ),
    "less than nothing": (
        lambda x, g: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) - 1e-6),
        "no number from 0 on",
    ),
    "of all": (lambda x, g: x * torch.rsqrt(torch.mean(x * x, None, True) + 1e-6), "another dimension"),
    "of something else": (lambda x, g: x * root(x + 1), "the squares are of"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NOT_NORMS)
def test_what_scales_rows_and_is_no_norm(name: str) -> None:
    norm, reason = NOT_NORMS[name]
    assert reason in refused(Normed(norm), X)["root_mean_square"].reason


@pytest.mark.exhaustive
@pytest.mark.parametrize("norm", [lambda x, g: x * g, lambda x, g: x * 2.0, lambda x, g: f.layer_norm(x, (K,), g)])
def test_where_there_is_no_norm_nothing_is_said(norm: FnNorm) -> None:
    assert not set(refused(Normed(norm), X)) & {rule.__name__ for rule in RULES}


def front_of(model: nn.Module) -> InFront:
    """A norm and its group as the rules see them."""
    seen: list[InFront] = []

    def look(front: InFront) -> None:
        seen.append(front)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norm_groups, "first_refusal", look)
        draft(DOORS["export"](model, (X,)).graph, setting())
    return seen[0]


def test_rules_accept_a_norm_and_each_refuses_what_it_is_there_for() -> None:
    front = front_of(Normed(llama))
    assert first_refusal(front) is None and all(rule(front) for rule in RULES)
    for rule, changed in (
        (rounding_tier, replace(front, tier="eager")),
        (fp32_squares, replace(front, found=replace(front.found, squares="bf16"))),
    ):
        refusal = rule(changed)
        assert isinstance(refusal, Rejected) and refusal.rule == rule.__name__


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} <= {*REFUSED}


ALSO: dict[str, tuple[Callable[..., Any], str]] = {
    "X": (lambda x, normed: normed.relu(), "relu reads mul_1 too"),
    "a view of X": (lambda x, normed: normed.view(20, K), "output reads mul_1 too"),
    "a part of X": (lambda x, normed: normed[..., :4], "reads mul_1 too"),
    "X as a weight": (lambda x, normed: normed.view(20, K) @ normed.view(20, K).t(), "as another operand too"),
}


@pytest.mark.parametrize("name", ALSO)
def test_what_others_read_too_has_a_kernel_of_its_own(name: str) -> None:
    also, reason = ALSO[name]
    assert reason in refused(Normed(llama, also=also), X)["normed_alone"].reason


def test_an_end_that_reads_x_too_leaves_the_norm_apart() -> None:
    class Gated(Normed):
        def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
            normed = self.norm(x, self.g)
            gate, up = f.linear(normed, self.w0[:K]), f.linear(normed, self.w1[:K])
            return (f.silu(gate) * up + normed,)

    refusals = refused(Gated(llama, adapted=False), X, schedule="concat", epilogues="always")
    assert "normed_alone" in refusals


def test_what_others_read_on_the_way_has_a_kernel_of_its_own() -> None:
    """A norm that is one node gives its root too, as training keeps it; what widens x is no part of the norm."""
    kept: list[torch.Tensor] = []

    def keeping(at: int) -> FnNorm:
        def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            scale = root(wide)
            kept[:] = [(wide, scale)[at]]
            return g * (wide * scale).to(x.dtype)

        return norm

    def model(at: int) -> nn.Module:
        return Normed(keeping(at), also=lambda x, normed: kept[0] + 1).bfloat16()

    x = X.bfloat16()
    assert "add_" in refused(model(1), x)["normed_alone"].reason
    module = DOORS["export"](model(0), (x,))
    inputs = inputs_of(module.graph)
    wanted = module(*inputs)
    plan = rewrite(module.graph, setting(schedule="inline", chains="never"), "call")
    assert plan.groups[0].norm is not None
    module.recompile()
    with mended(), interpreted_libdevice():
        assert torch.equal(module(*inputs)[-1], wanted[-1])


@pytest.mark.parametrize("rest", ["inductor", "eager"])
def test_what_inductor_may_lay_out_anew_is_read_apart(rest: str) -> None:
    """A matrix with gaps that the graph computes; without Inductor its strides stay."""

    def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return llama(x.cumsum(0).view(20, 2 * K)[:, ::2], g)

    options = {"schedule": "inline", "chains": "never", "rest": rest, "on_error": "fallback"}
    plan = draft(DOORS["export"](Normed(norm), (like(2, 10, 2 * K),)).graph, setting(**options)).plan
    assert (plan.groups[0].norm is None) == (rest == "inductor")
    assert ("other strides" in "".join(each.reason for each in plan.rejections)) == (rest == "inductor")


MODEL = Normed(llama)


def plan_for(model: nn.Module = MODEL, **options: Any) -> Plan:
    return draft(DOORS["export"](model, (X,)).graph, setting(**options)).plan


def test_kinds_that_have_no_whole_rows_say_so() -> None:
    (group,) = plan_for(schedule="auto").groups
    reasons = {each.kind: each.reason for each in group.candidates if not each.legal}
    for kind in ("split", "two_pool", "concat", "horizontal"):
        assert "needs whole rows" in reasons[kind]
    for kind in ("streams", "merged"):
        assert "has to write it" in reasons[kind]
    (plain,) = plan_for(Normed(llama, adapted=False)).groups
    assert {each.kind for each in plain.candidates if each.legal} == {"library", "concat", "horizontal"}


def test_a_forced_kind_without_whole_rows_leaves_the_norm_apart() -> None:
    plan = plan_for(schedule="split")
    assert [(each.schedule.kind, each.norm) for each in plan.groups] == [("split", None)]
    assert "stay the vendor's" in next(each.reason for each in plan.rejections if each.rule == "normed_tiles")


def test_nothing_is_normed_unless_asked_for() -> None:
    assert plan_for(norms="never").groups[0].norm is None


def test_where_less_is_saved_than_predictions_are_worth_both_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "LEAST_GAIN", 10.0)
    plan = plan_for(norms="auto")
    assert plan.groups[0].norm is None and not plan.rejections
    assert "its norm stays apart: products and norm are predicted to take" in plan.groups[0].why
    monkeypatch.setattr(predicted, "LEAST_GAIN", -10.0)
    assert plan_for(norms="auto").groups[0].norm is not None


def test_one_row_of_a_large_group_is_normed_by_its_tiles() -> None:
    """There the launch that is saved is a tenth of the time; many rows are normed once, by a kernel of its own."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(4096)
            self.q, self.k, self.v = (nn.Linear(4096, n, bias=False) for n in (4096, 1024, 1024))

        def forward(self, x: torch.Tensor) -> Any:
            normed = self.norm(x)
            return self.q(normed), self.k(normed), self.v(normed)

    with torch.device("meta"):
        model = Large().bfloat16().requires_grad_(False)
        graphs = [DOORS["export"](model, (torch.empty(m, 4096, dtype=torch.bfloat16),)).graph for m in (1, 2048)]
    one, many = (draft(graph, setting(norms="auto")).plan.groups[0] for graph in graphs)
    assert one.norm is not None and "norms its X" in one.why and one.after.kernels == 1
    assert many.norm is None and "its norm stays apart" in many.why


@pytest.mark.exhaustive
def test_a_plan_is_read_back_and_applied_again() -> None:
    plan = plan_for(schedule="inline")
    assert Plan.from_json(plan.to_json()) == plan
    graph = DOORS["export"](MODEL, (X,)).graph
    again = draft(graph, replace(setting(norms="never"), given=plan)).plan
    assert (again.groups[0].norm, again.groups[0].lhs) == (plan.groups[0].norm, plan.groups[0].lhs)
    assert again.groups[0].schedule == plan.groups[0].schedule
    apart = draft(graph, replace(setting(), given=plan_for(schedule="inline", norms="never"))).plan
    assert apart.groups[0].norm is None
    assert "normed by the tiles" in str(plan)


@pytest.mark.exhaustive
def test_a_plan_with_another_norm_is_refused() -> None:
    plan = plan_for(schedule="inline")
    other = DOORS["export"](Normed(lambda x, g: f.rms_norm(x, (K,), g, 0.5)), (X,)).graph
    with pytest.raises(PlanError, match="not in front of it"):
        draft(other, replace(setting(), given=plan))
    with pytest.warns(FusionWarning, match="the norm stays apart"):
        (group,) = draft(other, replace(setting(on_error="fallback"), given=plan)).plan.groups
    assert group.norm is None and group.schedule == plan.groups[0].schedule
    library = replace(plan, groups=(replace(plan.groups[0], schedule=Schedule("library")),))
    with pytest.raises(PlanError, match="has no tiles that norm X"):
        draft(DOORS["export"](MODEL, (X,)).graph, replace(setting(), given=library))


def test_what_does_not_build_with_a_norm_is_planned_without(monkeypatch: pytest.MonkeyPatch) -> None:
    module = DOORS["export"](MODEL, (X,))
    wanted = module(*inputs_of(module.graph))
    settle = build_groups._settle

    def failing(planned: GroupPlan, setting: Setting) -> Any:
        return KernelBuildError("it spills") if planned.norm else settle(planned, setting)

    monkeypatch.setattr(build_groups, "_settle", failing)
    with pytest.warns(FusionWarning, match="g0: .*it spills; its norm stays apart"):
        plan = rewrite(module.graph, setting(on_error="fallback", chains="never"), "call")
    assert plan.groups[0].schedule.kind != "library" and plan.groups[0].norm is None
    module.recompile()
    with mended(), interpreted_libdevice():
        close(module(*inputs_of(module.graph)), wanted)


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_a_group_that_is_not_emitted_reads_what_the_graph_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        raise EmissionError("no form for a test")

    monkeypatch.setattr("fusioncc.passes.emit_groups.emit", failing)
    (group,) = plan_for(on_error="fallback").groups
    assert (group.schedule.kind, group.norm, group.before) == ("library", None, group.after)
    assert group.lhs.node != "x"


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_an_attempt_that_fails_costs_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(norm_groups, "find_norm", failing)
    plan = plan_for(on_error="fallback")
    assert plan.groups[0].norm is None and plan.groups[0].schedule.kind != "library"
    assert "a defect" in next(each.reason for each in plan.rejections if each.rule == "normed_tiles")
    with pytest.raises(FusionError, match="norming g0 failed"):
        plan_for()


@pytest.mark.exhaustive
def test_the_number_of_rows_may_be_symbolic() -> None:
    rows, model = torch.export.Dim("rows", min=2, max=4096), Normed(llama, adapted=False)
    program = torch.export.export(model, (like(20, K),), dynamic_shapes=({0: rows},))
    module = capture(program)
    plan = rewrite(module.graph, setting(schedule="concat", chains="never"), "call")
    (group,) = plan.groups
    assert group.m_symbol and group.norm is not None
    module.recompile()
    held = [dict(model.named_parameters())[each] for each in program.graph_signature.parameters]
    for m in (3, 70):
        x = torch.randn(m, K, generator=torch.Generator().manual_seed(m))
        with mended(), interpreted_libdevice():
            close(module(*held, x), model(x))
