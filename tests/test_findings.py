"""Cases that once gave a wrong number or a crash, each as small as it can be."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.errors import PlanError
from tests.lora_models import Lora, rows
from tests.shown import shown

SCHEDULES = shown(["inline", "split"], 1)


class Branch(nn.Module):
    """``x @ w + f(x @ a)`` with ``f`` given."""

    def __init__(self, join, rank: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.join = join
        self.w, self.bias = nn.Parameter(torch.ones(64, 64, dtype=dtype)), nn.Parameter(torch.ones(64, dtype=dtype))
        self.a = nn.Parameter(torch.full((64, rank), 0.5, dtype=dtype))
        self.b = nn.Parameter(torch.full((rank, 64), 0.5, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(self, x)


def results(module: nn.Module, *inputs: torch.Tensor, schedule: str = "inline"):
    torch._dynamo.reset()  # its limit on recompilations counts every Branch
    compiled = fusioncc.optimize(module, schedule=schedule)
    with torch.no_grad():
        return compiled(*inputs), module(*inputs), fusioncc.plan_of(compiled)


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_alpha_zero_keeps_the_bias() -> None:
    module = Branch(lambda m, x: x @ m.w + torch.addmm(m.bias, x @ m.a, m.b, alpha=0))
    fused, eager, _ = results(module, torch.ones(8, 64))
    torch.testing.assert_close(fused, eager)


def test_bias_of_linear_by_keyword() -> None:
    def join(m: Branch, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.linear(x, m.w, bias=m.bias) + (x @ m.a) @ m.b

    fused, eager, _ = results(Branch(join), torch.ones(8, 64))
    torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_branch_that_is_subtracted(schedule: str) -> None:
    module = Branch(lambda m, x: torch.sub(x @ m.w, (x @ m.a) @ m.b, alpha=3))
    fused, eager, plans = results(module, torch.randn(8, 64), schedule=schedule)
    assert plans[0].groups[0].schedule.kind == schedule
    torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_infinity_stays_one_with_a_padded_rank(schedule: str) -> None:
    x = torch.ones(8, 64)
    x[2, 3] = torch.inf
    fused, eager, plans = results(Branch(lambda m, x: x @ m.w + (x @ m.a) @ m.b), x, schedule=schedule)
    assert plans[0].groups[0].schedule.kind == schedule
    torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_large_scale_in_fp16_stays_finite(schedule: str) -> None:
    module = Branch(lambda m, x: x @ m.w + ((x @ m.a) @ m.b) * 64.0, dtype=torch.float16)
    module.b.data.mul_(1e-3)
    fused, eager, plans = results(module, torch.full((8, 64), 40.0, dtype=torch.float16), schedule=schedule)
    assert plans[0].groups[0].schedule.kind == schedule
    assert eager.isfinite().all()
    torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_branches_on_a_compensated_fp32_main(schedule: str) -> None:
    """The correction of the accumulator stands before the second join reads it."""
    module = Branch(lambda m, x: x @ m.w + (x @ m.a) @ m.b - (x @ (2.0 * m.a)) @ m.b)
    x = torch.randn(8, 64)
    fused, eager, plans = results(module, x, schedule=schedule)
    assert plans[0].groups[0].schedule.kind == schedule
    assert len(plans[0].groups[0].group.branches) == 2
    torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_fp32_product_beside_an_fp16_main_takes_short_k_steps(schedule: str) -> None:
    """Every part of a bundle has a say in its tiles: the fp32 main is compensated, the first one is not."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.router = nn.Parameter(torch.randn(64, 64).half()), nn.Parameter(torch.randn(64, 32))
            self.a, self.b = nn.Parameter(torch.randn(64, 4).half()), nn.Parameter(torch.randn(4, 64).half())

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x @ self.w + (x @ self.a) @ self.b, x.float() @ self.router

    compiled = fusioncc.optimize(module := Router(), schedule=schedule, on_error="raise")
    x = torch.randn(8, 64).half()
    with torch.no_grad():
        fused, eager = compiled(x), module(x)
    (plan,) = fusioncc.plan_of(compiled)
    assert plan.groups[0].schedule.kind == schedule
    assert len(plan.groups[0].schedule.pools[-1].members) == 2
    for one, other in zip(fused, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-2)


@pytest.mark.exhaustive
def test_groups_that_feed_each_other_are_not_both_fused() -> None:
    class Cycle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.ModuleList(nn.Linear(64, n, bias=False) for n in (64, 4, 64, 64, 4))
            self.q = nn.ModuleList(nn.Linear(64, n, bias=False) for n in (64, 4, 64, 64, 4))
            self.pb = nn.ModuleList(nn.Linear(4, 64, bias=False) for _ in range(2))
            self.qb = nn.ModuleList(nn.Linear(4, 64, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            p1 = self.p[0](x) + self.pb[0](self.p[1](x))
            q1 = self.q[0](z) + self.qb[0](self.q[1](z))
            p2 = self.p[2](x) + self.pb[1](self.p[4](x)) * q1.mean()
            q2 = self.q[2](z) + self.qb[1](self.q[4](z)) * p1.mean()
            return p1, p2, q1, q2

    compiled = fusioncc.optimize(Cycle(), schedule="inline", on_error="raise")
    x, z = torch.randn(8, 64), torch.randn(8, 64)
    with torch.no_grad():
        fused, eager = compiled(x, z), compiled._orig_mod(x, z)
    for one, other in zip(fused, eager, strict=True):
        torch.testing.assert_close(one, other)
    (plan,) = fusioncc.plan_of(compiled)
    assert len(plan.groups) == 1
    assert [rejection.rule for rejection in plan.rejections] == ["independent"]


CHANGES: tuple[dict[str, object], ...] = (
    {"group_m": 0},
    {"group_m": -3},
    {"members": (99,)},
    {"members": (1,)},
    {"k_split": 0},
    {"workers": 0},
    {"launch": 5},
)


@pytest.mark.parametrize("change", shown(CHANGES, 2))
def test_an_edited_plan_with_wrong_numbers_is_refused(change: dict[str, object]) -> None:
    model, x = Lora(), torch.randn(8, 64)
    plan = fusioncc.plan(model, (x,), schedule="inline")
    group = plan.groups[0]
    pool = replace(group.schedule.pools[0], **change)
    edited = replace(plan, groups=(replace(group, schedule=replace(group.schedule, pools=(pool,))),))
    with pytest.raises(Exception, match=r"PlanError|illegal here") as caught:
        fusioncc.optimize(model, (x,), plan=edited, on_error="raise")
    causes, error = [], caught.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__ or error.__context__
    assert PlanError in causes or "PlanError" in str(caught.value)


def test_what_was_never_compiled_has_no_plans() -> None:
    assert fusioncc.plan_of(None) == ()
    assert fusioncc.plan_of(nn.Linear(2, 2)) == ()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_largest_number_does_not_round_to_an_infinity_in_tf32(schedule: str) -> None:
    x = torch.zeros(8, 64)
    x[2, 3] = torch.finfo(torch.float32).max
    module = Branch(lambda m, x: x @ m.w + (x @ m.a) @ m.b)
    module.w.data.mul_(0.25)
    module.a.data.mul_(0.25)
    module.b.data.mul_(0.25)
    torch.set_float32_matmul_precision("high")
    try:
        fused, eager, plans = results(module, x, schedule=schedule)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert plans[0].groups[0].group.fp32_precision == "tf32"
    assert plans[0].groups[0].schedule.kind == schedule
    assert eager.isfinite().all()
    torch.testing.assert_close(fused, eager, rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_transposed_input_as_a_weight(schedule: str) -> None:
    """The kernel takes ``x`` and ``x.t()``: one storage, two shapes."""
    module = Branch(lambda m, x: (x @ m.w + (x @ m.a) @ m.b, x @ x.t()))
    fused, eager, plans = results(module, torch.randn(12, 64), schedule=schedule)
    assert len(plans[0].groups[0].schedule.pools[-1].members) == 2
    for one, other in zip(fused, eager, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("shape", "dynamic"),
    [
        ((32, 128), False),
        pytest.param((8, -1), False, marks=pytest.mark.exhaustive),
        pytest.param((-1,), False, marks=pytest.mark.exhaustive),
        pytest.param((-1, 32), False, marks=pytest.mark.exhaustive),
        ((-1, 32), True),
        pytest.param((-1, 8, 8), True, marks=pytest.mark.exhaustive),
    ],
)
def test_a_sum_in_another_matrix_shape(shape: tuple[int, ...], dynamic: bool) -> None:
    """Both addends are viewed alike before they are added; the kernel's matrix is viewed so after."""
    module = Branch(lambda m, x: (x @ m.w).view(shape) + ((x @ m.a) @ m.b).view(shape))
    torch._dynamo.reset()
    compiled, x = fusioncc.optimize(module, schedule="inline", on_error="raise"), torch.randn(64, 64)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        fused, eager = compiled(x), module(x)
    (plan,) = fusioncc.plan_of(compiled)
    assert [group.schedule.kind for group in plan.groups] == ["inline"]
    torch.testing.assert_close(fused, eager)


class Dequantised(nn.Module):
    """A base weight from int8, which the graph makes unless it was made before; bf16 adapters."""

    def __init__(self, *, made: bool) -> None:
        super().__init__()
        self.made = made
        self.w8 = nn.Parameter(torch.ones(1024, 1024, dtype=torch.int8), requires_grad=False)
        self.w = nn.Parameter(self.w8.to(torch.bfloat16))
        self.a = nn.Parameter(torch.ones(1024, 16, dtype=torch.bfloat16))
        self.b = nn.Parameter(torch.ones(16, 1024, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.w8.to(torch.bfloat16) * 0.1 if self.made else self.w) + (x @ self.a) @ self.b


@pytest.mark.parametrize("rows", shown([1, 16], 1))
@pytest.mark.parametrize("made", [True, False])
def test_a_weight_that_the_graph_makes_is_not_read_before_it_is_there(rows: int, made: bool) -> None:
    """Inductor may run the kernel that makes W between the two launches of ``split``: the second starts late then."""
    x = torch.ones(rows, 1024, dtype=torch.bfloat16)
    plan = fusioncc.plan(Dequantised(made=made), (x,), device="h200", schedule="split", on_error="raise")
    (group,) = plan.groups
    assert group.members[0].weight.made == made
    assert any(pool.dependent for pool in group.schedule.pools) != made


@pytest.mark.parametrize(
    ("path", "misspelt"),
    [(("groups", 0, "schedule", "pools", 0), "join_last"), (("groups", 0, "schedule", "pools", 0, "tile"), "blok_n")],
)
def test_a_field_that_a_plan_does_not_have_is_named(path: tuple[str | int, ...], misspelt: str) -> None:
    plan = fusioncc.plan(Lora(dtype=torch.bfloat16), (rows(16, dtype=torch.bfloat16),), device="h200")
    read = json.loads(plan.to_json())
    place = read
    for step in path:
        place = place[step]
    place[misspelt] = 1
    with pytest.raises(PlanError, match=rf"unknown field \$\.groups\[0\]\.schedule\.pools\[0\].*{misspelt}"):
        fusioncc.Plan.from_json(json.dumps(read))


@pytest.mark.parametrize("given", [3, b"{}", {"schema": 1}, [1]])
def test_what_is_no_plan_is_refused_by_its_type(given: object) -> None:
    with pytest.raises(PlanError, match=f"not {type(given).__name__}"):
        fusioncc.optimize(Lora(), plan=given)


def test_a_slice_of_a_parameter_is_not_computed() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1024, 3072, dtype=torch.bfloat16))
            self.a = nn.Parameter(torch.ones(1024, 16, dtype=torch.bfloat16))
            self.b = nn.Parameter(torch.ones(16, 1024, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w[:, 1024:2048] + (x @ self.a) @ self.b

    x = torch.ones(64, 1024, dtype=torch.bfloat16)
    (group,) = fusioncc.plan(Sliced(), (x,), device="h200", schedule="split", on_error="raise").groups
    assert not any(member.weight.made for member in group.members)
    assert any(pool.dependent for pool in group.schedule.pools)
