"""The forms in which one product reaches the pass: ranks, views, batches, layouts, symbolic rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from fusioncc.passes.find_groups import Found
from tests.passes.doors import DOORS, found_in
from tests.passes.models import LORA, K, M, N, R, X, lora, shapes, t, through_all
from tests.shown import shown


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
    "padded throughout": (lambda s, x: padded(x, s.w) + padded(padded(x, s.a), s.b), (M, K)),
    "down product padded": (lambda s, x: x @ s.w + padded(x, s.a) @ s.b, (M, K)),
    "up product padded": (lambda s, x: x @ s.w + padded(x @ s.a, s.b), (M, K)),
}


def padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product as Inductor pads it, one by one, to a multiple of 8 rows."""
    return (functional.pad(x, (0, 0, 0, 8 - M % 8)) @ w)[:M]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", shown(SHAPED, 3))
def test_forms_of_one_product(name: str) -> None:
    function, shape = SHAPED[name]
    found = through_all(lora(function), t(*shape))
    rows = 1 if name == "vector" else M
    assert shapes(found) == [(role, rows, n, k) for role, _, n, k in LORA]
    assert found.rejections == ()


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_symbolic_rows_through_inductor() -> None:
    from torch._inductor import config

    seen: list[Found] = []
    with config.patch(post_grad_custom_pre_pass=_recorder(seen), force_disable_caches=True), torch.no_grad():
        torch._dynamo.reset()
        model = lora(lambda s, x: torch.addmm(x @ s.w, x @ s.a, s.b, alpha=0.5))  # products alone: no C++ to build
        compiled = torch.compile(model, dynamic=True)
        for rows in (M, 5):
            compiled(t(rows, K))
    (found,) = seen  # one graph for both sizes: looking at it has added no guard
    assert found.groups[0].m_symbol
    assert shapes(found) == LORA
    assert found.groups[0].branches[0].scale == 0.5


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


@pytest.mark.exhaustive
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
