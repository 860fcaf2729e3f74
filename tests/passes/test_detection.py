"""Groups that small modules yield through every door; what a group says is compared with what the graph computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fusioncc.passes.find_groups import Found
from fusioncc.pipeline import fingerprint
from tests.passes.doors import DOORS, aot, found_in

M, K, N, R = 6, 64, 96, 4
BF16 = torch.bfloat16


class Model(nn.Module):
    """A function of its parameters and inputs."""

    def __init__(self, function: Callable[..., Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def lora(function: Callable[..., Any], dtype: torch.dtype = torch.float32, adapter: Any = None, **more: Any) -> Model:
    """A model with w [K, N], a [K, R], b [R, N] and a second adapter a2, b2 of rank 8."""
    low = adapter or dtype
    weights = {"w": t(K, N, dtype=dtype), "a": t(K, R, dtype=low), "b": t(R, N, dtype=low)}
    return Model(function, **{**weights, "a2": t(K, 8, dtype=low), "b2": t(8, N, dtype=low), **more})


def through_all(model: nn.Module, *args: torch.Tensor) -> Found:
    """What detection finds, the same through every door; names as export gives them."""
    found = {name: found_in(door(model, args)) for name, door in DOORS.items()}
    assert len({fingerprint(each) for each in found.values()}) == 1
    assert len({tuple(sorted(r.rule for r in each.rejections)) for each in found.values()}) == 1
    return found["export"]


X = t(M, K)
LORA = [("main", M, N, K), ("down", M, R, K), ("up", M, N, R)]
SECOND = [("down", M, 8, K), ("up", M, N, 8)]


def shapes(found: Found, group: int = 0) -> list[tuple[str, int, int, int]]:
    return [(member.role, member.m, member.n, member.k) for member in found.groups[group].members]


# name: function, extra parameters, constant scale, number of tensor scales
SCALES: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor], float, int]] = {
    "none": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, {}, 1.0, 0),
    "on x": (lambda s, x: x @ s.w + ((x * 2) @ s.a) @ s.b, {}, 2.0, 0),
    "on a": (lambda s, x: x @ s.w + ((x @ s.a) * 3) @ s.b, {}, 3.0, 0),
    "on b": (lambda s, x: 0.5 * ((x @ s.a) @ s.b) + x @ s.w, {}, 0.5, 0),
    "everywhere": (lambda s, x: x @ s.w + 0.5 * (((x * 2) @ s.a) * 3) @ s.b, {}, 3.0, 0),
    "division": (lambda s, x: x @ s.w + ((x @ s.a) @ s.b) / 4, {}, 0.25, 0),
    "negated": (lambda s, x: x @ s.w + -((x @ s.a) @ s.b), {}, -1.0, 0),
    "alpha of add": (lambda s, x: torch.add(x @ s.w, (x @ s.a) @ s.b, alpha=3), {}, 3.0, 0),
    "alpha of addmm": (lambda s, x: torch.addmm(x @ s.w, x @ s.a, s.b, alpha=0.25), {}, 0.25, 0),
    "tensor, 0-dim": (lambda s, x: x @ s.w + 2 * ((x @ s.a) @ s.b) * s.s, {"s": torch.tensor(1.5)}, 2.0, 1),
    "tensor, [1]": (lambda s, x: x @ s.w + ((x @ s.a) * s.s) @ s.b, {"s": t(1)}, 1.0, 1),
    "tensor on x": (lambda s, x: x @ s.w + ((x * s.s) @ s.a) @ s.b, {"s": t(1)}, 1.0, 1),
    "main reads a scaled x too": (lambda s, x: (lambda h: h @ s.w + (h @ s.a) @ s.b)(x * 0.3), {}, 1.0, 0),
}


@pytest.mark.parametrize("name", SCALES)
def test_scale_wherever_it_stands(name: str) -> None:
    function, more, scale, tensors = SCALES[name]
    found = through_all(lora(function, **more), X)
    (group,) = found.groups
    (branch,) = group.branches
    assert (shapes(found), found.rejections) == (LORA, ())
    assert branch.scale == pytest.approx(scale)
    assert len(branch.scale_tensors) == tensors
    assert not branch.saved


def test_biases_of_every_product_and_what_multiplies_them() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        low = functional.linear(x * 2, s.a.T, s.c) * 3
        return functional.linear(x, s.w.T, s.d) + 0.5 * torch.addmm(s.e, low, s.b, alpha=4)

    found = through_all(lora(function, c=t(R), d=t(N), e=t(N)), X)
    main, down, up = found.groups[0].members
    assert all(member.bias is not None for member in (main, down, up))
    assert found.groups[0].branches[0].scale == pytest.approx(2 * 3 * 0.5 * 4)
    assert down.bias_scale == pytest.approx(3 * 0.5 * 4)
    assert up.bias_scale == pytest.approx(0.5)


def test_fp32_adapters_over_bf16() -> None:
    function = lambda s, x: x @ s.w + 2 * ((x.float() @ s.a) @ s.b).to(BF16)
    (group,) = through_all(lora(function, BF16, torch.float32), X.to(BF16)).groups
    assert group.lhs.dtype == "bf16"
    assert [member.dtype for member in group.members] == ["bf16", "fp32", "fp32"]
    assert group.outputs[0].dtype == "bf16"


def test_narrowing_cast_behind_the_sum_is_absorbed_and_widening_is_not() -> None:
    narrow = lora(lambda s, x: (x @ s.w + (x.float() @ s.a) @ s.b).to(BF16), BF16, torch.float32)
    wide = lora(lambda s, x: (x @ s.w + (x @ s.a) @ s.b).float(), BF16)
    quantised = lora(lambda s, x: (x @ s.w + (x @ s.a) @ s.b).to(torch.float8_e4m3fn).float(), BF16)
    for model in (narrow, wide, quantised):
        assert through_all(model, X.to(BF16)).groups[0].outputs[0].dtype == "bf16"


def test_main_and_down_read_one_rounded_value() -> None:
    found = through_all(lora(lambda s, x: (lambda h: h @ s.w + (h @ s.a) @ s.b)(x.to(BF16)), BF16), X)
    assert shapes(found) == LORA
    assert found.groups[0].lhs.dtype == "bf16"


SUMS: dict[str, Callable[..., Any]] = {
    "(m+b1)+b2": lambda s, x: (x @ s.w + (x @ s.a) @ s.b) + (x @ s.a2) @ s.b2,
    "m+(b1+b2)": lambda s, x: x @ s.w + ((x @ s.a) @ s.b + (x @ s.a2) @ s.b2),
    "b1+m+b2": lambda s, x: (x @ s.a) @ s.b + x @ s.w + (x @ s.a2) @ s.b2,
    "(b1+b2)+m": lambda s, x: ((x @ s.a) @ s.b + (x @ s.a2) @ s.b2) + x @ s.w,
    "addmm of addmm": lambda s, x: torch.addmm(torch.addmm(x @ s.w, x @ s.a, s.b), x @ s.a2, s.b2),
}


@pytest.mark.parametrize("name", SUMS)
def test_two_branches_in_every_order(name: str) -> None:
    found = through_all(lora(SUMS[name]), X)
    assert shapes(found) == [*LORA, *SECOND]
    assert [branch.main for branch in found.groups[0].branches] == [0, 0]


def test_three_branches_and_scale_of_a_sum_of_branches() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ s.w + 2 * ((x @ s.a) @ s.b + ((x @ s.a2) @ s.b2) * 3) + (x @ s.a3) @ s.b3

    (group,) = through_all(lora(function, a3=t(K, 2), b3=t(2, N)), X).groups
    assert [branch.scale for branch in group.branches] == pytest.approx([2.0, 6.0, 1.0])


def test_branch_added_twice_and_branches_of_one_down_product() -> None:
    twice = lora(lambda s, x: x @ s.w + (lambda u: u + u)((x @ s.a) @ s.b))
    assert shapes(through_all(twice, X)) == [*LORA, *LORA[1:]]
    shared = lora(lambda s, x: (lambda y: (x @ s.w + y @ s.b) + y @ s.b3)(x @ s.a), b3=t(R, N))
    found = through_all(shared, X)
    assert shapes(found) == [*LORA, *LORA[1:]]
    assert not any(branch.saved for branch in found.groups[0].branches)


def test_one_down_product_for_two_mains_stays_with_the_first() -> None:
    function = lambda s, x: (lambda y: (x @ s.w + y @ s.b, x @ s.w2 + y @ s.b3))(x @ s.a)
    found = through_all(lora(function, w2=t(K, N), b3=t(R, N)), X)
    assert [member.role for member in found.groups[0].members] == ["main", "down", "up", "main"]
    assert found.groups[0].branches[0].saved
    assert [rejection.rule for rejection in found.rejections] == ["joined_once"]


def test_grouped_query_attention_and_gate_up() -> None:
    class Projections(nn.Module):
        def __init__(self, *widths: int) -> None:
            super().__init__()
            self.mains = nn.ModuleList(nn.Linear(K, n) for n in widths)
            self.downs = nn.ModuleList(nn.Linear(K, R, bias=False) for _ in widths)
            self.ups = nn.ModuleList(nn.Linear(R, n, bias=False) for n in widths)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [m(x) + 2 * u(d(x)) for m, d, u in zip(self.mains, self.downs, self.ups, strict=True)]

    found = through_all(Projections(128, 32, 32), t(2, 3, K))
    assert [shape for shape in shapes(found) if shape[0] == "main"] == [("main", M, n, K) for n in (128, 32, 32)]
    assert [branch.main for branch in found.groups[0].branches] == [0, 3, 6]
    assert len(found.groups[0].outputs) == 3
    assert found.groups[0].members[0].weight.strides == (1, K)
    assert found.groups[0].members[0].source == "mains.0"
    assert len(through_all(Projections(160, 160), X).groups[0].branches) == 2


def test_rank_one_and_rank_limits() -> None:
    found = through_all(lora(lambda s, x: x @ s.w + 0.5 * ((x @ s.a) @ s.b), a=t(K, 1), b=t(1, N)), X)
    assert shapes(found) == [("main", M, N, K), ("down", M, 1, K), ("up", M, N, 1)]
    assert found.groups[0].branches[0].scale == 0.5
    wide = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b, a=t(K, 17), b=t(17, N))
    (rejection,) = through_all(wide, X).rejections
    assert rejection.rule == "low_rank"
    assert "rank 17 is more than 0.25 of K=64 or N=96" in rejection.reason
    assert found_in(DOORS["export"](wide, (X,)), max_rank_fraction=0.3).groups[0].branches
    small = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b)
    assert not found_in(DOORS["export"](small, (X,)), max_rank_fraction=R / K - 0.01).groups[0].branches


def test_conv1d() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(s.c, x.view(-1, K), s.w).view(2, 3, N)
        return flat + functional.linear(functional.linear(x, s.a.T), s.b.T)

    (group,) = through_all(lora(function, c=t(N)), t(2, 3, K)).groups
    assert group.members[0].weight.strides == (N, 1)
    assert group.members[0].bias is not None


SHAPED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "vector": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, (K,)),
    "3-d": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, (2, 3, K)),
    "4-d": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, (1, 2, 3, K)),
    "slice twice": (lambda s, x: x[:M] @ s.w + (x[:M] @ s.a) @ s.b, (8, K)),
    "einsum": (
        lambda s, x: (
            torch.einsum("bsk,kn->bsn", x, s.w) + torch.einsum("bsr,rn->bsn", torch.einsum("bsk,kr->bsr", x, s.a), s.b)
        ),
        (2, 3, K),
    ),
    "bmm, batch 1": (lambda s, x: torch.bmm(x, s.w[None]) + torch.bmm(torch.bmm(x, s.a[None]), s.b[None]), (1, M, K)),
    "bmm, expanded weight": (
        lambda s, x: (
            torch.bmm(x, s.w.expand(2, -1, -1)) + torch.bmm(torch.bmm(x, s.a.expand(2, -1, -1)), s.b.expand(2, -1, -1))
        ),
        (2, 3, K),
    ),
    "baddbmm": (lambda s, x: torch.baddbmm(torch.bmm(x, s.w[None]), torch.bmm(x, s.a[None]), s.b[None]), (1, M, K)),
    "padded": (
        lambda s, x: (functional.pad(x, (0, 2, 0, 2)) @ functional.pad(s.w, (0, 2, 0, 2)))[:-2, :-2] + (x @ s.a) @ s.b,
        (M, K),
    ),
}


@pytest.mark.parametrize("name", SHAPED)
def test_forms_of_one_product(name: str) -> None:
    function, shape = SHAPED[name]
    found = through_all(lora(function), t(*shape))
    rows = 1 if name == "vector" else M
    assert shapes(found) == [(role, rows, n, k) for role, _, n, k in LORA]
    assert found.rejections == ()


def test_real_batch_is_found_for_the_library_only() -> None:
    model = lora(lambda s, x: (torch.bmm(x, s.p), torch.bmm(x, s.q), x @ s.w), p=t(2, K, 32), q=t(2, K, N))
    (group,) = through_all(model, t(2, 3, K)).groups
    assert [(member.batch, member.m, member.n) for member in group.members] == [(2, 3, 32), (2, 3, N)]
    joined = lora(
        lambda s, x: torch.bmm(x, s.q) + torch.bmm(torch.bmm(x, s.p), s.o), p=t(2, K, R), q=t(2, K, N), o=t(2, R, N)
    )
    found = through_all(joined, t(2, 3, K))
    assert not found.groups[0].branches
    assert [rejection.rule for rejection in found.rejections] == ["same_shape"]


def test_residual_behind_the_sum_is_not_absorbed() -> None:
    found = through_all(lora(lambda s, x, y: (x @ s.w + (x @ s.a) @ s.b) + y), X, t(M, N))
    assert found.groups[0].outputs[0].node == "add"


def test_products_saved_for_a_backward_are_written_out() -> None:
    model = lora(lambda s, x: x @ s.w + 2 * ((x @ s.a) @ s.b)).requires_grad_(True)
    forward, backward = aot(model, (X,), train=True)
    (group,) = found_in(forward).groups
    assert group.branches[0].saved
    nothing = found_in(backward)
    assert nothing.groups == ()
    assert [rejection.rule for rejection in nothing.rejections] == ["forward_only"]


def test_symbolic_rows_through_inductor() -> None:
    from torch._inductor import config

    seen: list[Found] = []
    with config.patch(post_grad_custom_pre_pass=_recorder(seen), force_disable_caches=True), torch.no_grad():
        torch._dynamo.reset()
        compiled = torch.compile(lora(SCALES["alpha of addmm"][0]), dynamic=True)  # no C++ to build: products alone
        for rows in (M, 5):
            compiled(t(rows, K))
    (found,) = seen  # one graph for both sizes: looking at it has added no guard
    assert found.groups[0].m_symbol
    assert shapes(found) == LORA
    assert found.groups[0].branches[0].scale == 0.25


def _recorder(seen: list[Found]) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from fusioncc.config import Options
    from fusioncc.pipeline import find

    class Record(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.append(find(graph, Options()))

        def uuid(self) -> Any:
            return None

    return Record()


# name: function, input shape, dtype of the adapters, rule, words of the reason
NO_BRANCH: dict[str, tuple[Callable[..., Any], dict[str, Any], str, str]] = {
    "only the down product rounds x": (
        lambda s, x: x @ s.w + ((x.to(BF16) @ s.a) @ s.b).float(),
        {"adapter": BF16},
        "same_lhs",
        "not the same value",
    ),
    "two slices": (lambda s, x: x[:3] @ s.w + (x[3:] @ s.a) @ s.b, {}, "same_lhs", "the down product reads slice"),
    "unlike views permuted alike": (
        lambda s, x: (
            x.view(2, 3, K).permute(1, 0, 2).reshape(M, K) @ s.w
            + (x.view(3, 2, K).permute(1, 0, 2).reshape(M, K) @ s.a) @ s.b
        ),
        {},
        "same_lhs",
        "not the same value",
    ),
    "dropout": (
        lambda s, x: x @ s.w + (functional.dropout(x, 0.5, True) @ s.a) @ s.b,
        {},
        "same_lhs",
        "a random op",
    ),
    "sum that broadcasts": (
        lambda s, x: (x @ s.w).view(M, 1, N) + (x @ s.a) @ s.b,
        {},
        "same_shape",
        "the sum broadcasts to (6, 6, 96)",
    ),
    "second user of the up product": (
        lambda s, x: (lambda u: (x @ s.w + u, u.relu()))((x @ s.a) @ s.b),
        {},
        "single_user",
        "also read by relu",
    ),
    "operand computed from the down product": (
        lambda s, x: (lambda y: x @ s.w + y @ (s.b * y.sum()))(x @ s.a),
        {},
        "independent",
        "an operand of the fused kernel is computed from",
    ),
    "bias and tensor scale": (
        lambda s, x: x @ s.w + torch.addmm(s.c, x @ s.a, s.b) * s.s,
        {"c": t(N), "s": t(1)},
        "scale_order",
        "a bias and the tensor scale",
    ),
    "bias of rows": (lambda s, x: torch.addmm(s.c, x, s.w) + (x @ s.a) @ s.b, {"c": t(M, 1)}, "plain_main", "no bias"),
    "matrix as bias": (
        lambda s, x: torch.addmm(s.c, x, s.w) + (x @ s.a) @ s.b,
        {"c": t(M, N)},
        "plain_main",
        "no bias",
    ),
    "scaled main": (
        lambda s, x: torch.addmm(s.c, x, s.w, alpha=2) + (x @ s.a) @ s.b,
        {"c": t(N)},
        "plain_main",
        "alpha=2",
    ),
    "double": (
        lambda s, x: x.double() @ s.w.double() + (x.double() @ s.a.double()) @ s.b.double(),
        {},
        "dtypes",
        "fp64",
    ),
    "no rows": (lambda s, x: x[:0] @ s.w + (x[:0] @ s.a) @ s.b, {}, "sizes", "M is 0"),
    "rank 0": (lambda s, x: x @ s.w + (x @ s.a) @ s.b, {"a": t(K, 0), "b": t(0, N)}, "sizes", "rank is 0"),
}


@pytest.mark.parametrize("name", NO_BRANCH)
def test_what_only_looks_like_a_branch_is_refused_with_rule_and_reason(name: str) -> None:
    function, more, rule, words = NO_BRANCH[name]
    found = through_all(lora(function, **more), X)
    assert not any(group.branches for group in found.groups)
    (rejection,) = found.rejections
    assert rejection.rule == rule
    assert words in rejection.reason
    assert rejection.node


SILENT: dict[str, Callable[..., Any]] = {
    "integers between": lambda s, x: x @ s.w + (x @ s.a).to(torch.int32).float() @ s.b,
    "8 bits between": lambda s, x: x @ s.w + (x @ s.a).to(torch.float8_e4m3fn).float() @ s.b,
    "8 bits behind main": lambda s, x: (x @ s.w).to(torch.float8_e4m3fn).float() + (x @ s.a) @ s.b,
    "activation between": lambda s, x: x @ s.w + (x @ s.a).relu() @ s.b,
}


@pytest.mark.parametrize("name", SILENT)
def test_no_branch_where_something_else_is_computed(name: str) -> None:
    found = through_all(lora(SILENT[name]), X)
    assert shapes(found) == [("main", M, N, K), ("main", M, R, K)] or shapes(found) == [
        ("main", M, R, K),
        ("main", M, N, K),
    ]


def test_complex_and_integer_products_make_no_group() -> None:
    for dtype in (torch.complex64, torch.int64):
        model = lora(lambda s, x: x @ s.w + (x @ s.a) @ s.b, dtype)
        for module in (DOORS["export"](model, (X.to(dtype),)), DOORS["aot"](model, (X.to(dtype),))):
            found = found_in(module)
            assert found.groups == ()
            assert [rejection.rule for rejection in found.rejections] == ["dtypes"]


def test_expanded_and_strided_weights_keep_their_strides() -> None:
    model = lora(lambda s, x: x @ s.v.expand(K, N) + (x @ s.u[:, ::2]) @ s.b, v=t(K, 1), u=t(K, 2 * R))
    main, down, _ = through_all(model, X).groups[0].members
    assert main.weight.strides == (1, 0)
    assert down.weight.strides == (2 * R, 2)


def test_rows_that_depend_on_data() -> None:
    function = lambda s, x: (lambda h: h @ s.w + (h @ s.a) @ s.b)(x[x[:, 0].nonzero().squeeze(1)])
    found = found_in(DOORS["export"](lora(function), (X,)))
    assert found.groups == ()
    (rejection,) = found.rejections
    assert (rejection.rule, "depends on data" in rejection.reason) == ("sizes", True)


@pytest.mark.parametrize("flip", [False, True])
def test_a_member_computed_from_another_member_is_left_out(flip: bool) -> None:
    def function(s: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = x @ s.w if flip else None
        q = x @ s.w2
        main = x @ s.w if early is None else early
        return main + (x @ s.a) @ (s.b * q.sum()), q, x @ s.w3

    found = through_all(lora(function, w2=t(K, 32), w3=t(K, 16)), X)
    (rejection,) = found.rejections
    assert (rejection.rule, len(found.groups)) == ("independent", 1)
    assert "a product of the same input" in rejection.reason
