"""What is not packed, and the refusal that says which weight is why: in the plan, or in the call that would pack it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import fusioncc
from fusioncc.seam import FusionWarning
from tests.lora_models import WIDTH, Lora, close, rows
from tests.packed.models import Attention, are_packed, optimized, weights

pytestmark = pytest.mark.exhaustive


class _Tied(Attention):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), super().forward(torch.tanh(x))


class _Int8(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Buffer(torch.randint(-128, 127, (WIDTH, WIDTH), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.linear(x, self.codes.to(x.dtype) * 0.01), self.k(x)


class _Transposed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, 32))

    def forward(self, x: torch.Tensor) -> Any:
        return self.q(x), x @ self.w


def _overlapping() -> Any:
    model = Attention()
    model.k.weight = nn.Parameter(model.q.weight.detach()[8:40])
    return model


PLANNED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "shared": (_Tied, "in_one_group", "is shared: 2 products read it"),
    "int8": (_Int8, "unquantised", "is quantised (int8)"),
    "layout": (_Transposed, "forced_schedule", "does not lie row by row as that of nn.Linear does"),
    "overlapping": (_overlapping, "unaliased", "is aliased"),
    "branch": (Lora, "forced_schedule", "one main product: there is nothing to pack its weight with"),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_refusal_of_the_plan_says_which(name: str, rest: str) -> None:
    build, rule, words = PLANNED[name]
    model = build()
    run = optimized(model, rest, on_error="fallback")
    close(run(rows()), model(rows()))
    (plan,) = fusioncc.plan_of(run)
    assert "packed" not in {group.schedule.kind for group in plan.groups}
    assert any(each.rule == rule and words in each.reason for each in plan.rejections)
    offline = fusioncc.plan(model, (rows(),), schedule="packed", pack_weights=True)
    assert any(each.rule == rule and words in each.reason for each in offline.rejections)
    assert fusioncc.packed_of(run).packed_bytes == 0


def _aliased(model: Attention) -> Any:
    return model.v.weight.detach()[:4]


def _part_of_a_larger_buffer(model: Attention) -> Any:
    model.k.weight = nn.Parameter(torch.randn(64, WIDTH)[:32])
    return None


def _shared_between_processes(model: Attention) -> Any:
    model.v.weight.share_memory_()
    return None


IN_CALLS: dict[str, tuple[Callable[[Attention], Any], str]] = {
    "aliased": (_aliased, r"one \[32, 64\] is aliased: another tensor lies in its memory"),
    "view": (_part_of_a_larger_buffer, r"one \[32, 64\] is a view of other memory"),
    "processes": (_shared_between_processes, "lies in memory that processes share"),
}


@pytest.mark.parametrize("name", IN_CALLS)
def test_what_only_a_call_can_see_is_refused_there_once(name: str, rest: str) -> None:
    prepare, words = IN_CALLS[name]
    model = Attention()
    held = prepare(model)
    places = [weight.data_ptr() for weight in weights(model)]
    run = optimized(model, rest)
    with pytest.warns(FusionWarning, match=words) as caught:
        for _ in range(3):
            close(run(rows()), model(rows()))
    assert len([each for each in caught if issubclass(each.category, FusionWarning)]) == 1
    assert len(fusioncc.packed_of(run).reasons) == 1 and fusioncc.packed_of(run).packed_bytes == 0
    assert places == [weight.data_ptr() for weight in weights(model)]
    del held


def test_an_alias_of_a_packed_weight_is_not_cut_off_by_packing_anew() -> None:
    model = Attention()
    run = optimized(model)
    run(rows())
    alias = model.q.weight.detach()
    model.v.weight = nn.Parameter(torch.randn(32, WIDTH))
    with pytest.warns(FusionWarning, match=r"one \[64, 64\] is aliased"):
        close(run(rows()), model(rows()))
    alias.zero_()
    close(run(rows()), model(rows()))
    assert not model.q.weight.any() and not are_packed(model)


def test_weights_made_in_inference_mode_are_left_where_they_are() -> None:
    with torch.inference_mode():
        model = Attention()
    run = optimized(model)
    with pytest.warns(FusionWarning, match="was made in inference mode"), torch.inference_mode():
        close(run(rows()), model(rows()))


def test_weights_of_a_dtensor_are_left_where_they_are(tmp_path: Any) -> None:
    """A graph holds the plain tensor inside a DTensor, which is no parameter."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        model = torch.distributed.tensor.distribute_module(Attention(), mesh)
        assert isinstance(model.q.weight, DTensor)
        run = optimized(model, on_error="fallback")
        x = torch.distributed.tensor.distribute_tensor(rows(), mesh)
        with pytest.warns(FusionWarning, match="is no plain Parameter, but of class Tensor"):
            got = run(x)
        close([each.to_local() for each in got], [each.to_local() for each in model(x)])
        assert fusioncc.packed_of(run).packed_bytes == 0
    finally:
        torch.distributed.destroy_process_group()


def test_graphs_that_want_a_weight_beside_different_ones_end_with_one_of_them() -> None:
    model = Attention()
    run = optimized(lambda x, three: model(x) if three else (model.q(x), model.k(x)))
    with pytest.warns(FusionWarning, match="in another graph"):
        for _ in range(10):
            close(run(rows(), True), model(rows()))
            close(run(rows(), False), (model.q(rows()), model.k(rows())))
    assert "they were packed 8 times" in fusioncc.packed_of(run).reasons[-1]


@pytest.mark.filterwarnings("ignore::fusioncc.seam.FusionWarning")
def test_what_is_left_of_a_buffer_that_others_moved_out_of_gets_memory_of_its_own() -> None:
    model = Attention()
    run = optimized(lambda x, three: model(x) if three else (model.q(x), model.k(x)))
    run(rows(), True)
    place = model.v.weight.data_ptr()
    run(rows(), False)
    assert model.q.weight.data_ptr() + model.q.weight.nbytes == model.k.weight.data_ptr()
    assert model.v.weight.data_ptr() != place
    assert fusioncc.packed_of(run).packed_bytes == model.q.weight.nbytes + model.k.weight.nbytes
