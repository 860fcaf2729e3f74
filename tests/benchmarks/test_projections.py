"""The list of groups that the shipped table is measured for is that of real models, and its script goes on with it."""

import random
from pathlib import Path
from typing import Any

import pytest
import shipped
import torch
from peft import LoraConfig, get_peft_model
from projections import ADAPTERS, ENDED, MODELS, RANKS, Case, cases, group
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.decomposition import select_decomp_table
from transformers import LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model

from fusioncc.capture import capture
from fusioncc.codegen import emit
from fusioncc.codegen.reference import reference
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import keys_of
from fusioncc.pipeline import draft
from fusioncc.tuning.candidates import first_candidates, measured_kinds
from fusioncc.tuning.emitted import named
from fusioncc.tuning.place import BUCKETS, bucket_of, place_of
from tests.tuning.entries import DEVICE
from tests.tuning.fake_meter import Clock, FakeMeter

CARD = "NVIDIA H200"
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
HEADS = {"Llama-3-8B": (LlamaModel, LlamaConfig, 32, 8), "Qwen2.5-7B": (Qwen2Model, Qwen2Config, 28, 4)}


class Embedded(torch.nn.Module):
    """One layer of a model on the meta device, with adapters as PEFT makes them, behind its embedding."""

    def __init__(self, name: str, rank: int, adapters: str) -> None:
        super().__init__()
        model, config, heads, keys = HEADS[name]
        sizes = {"hidden_size": MODELS[name].hidden, "intermediate_size": MODELS[name].intermediate}
        with torch.device("meta"):
            base = model(
                config(
                    **sizes, num_hidden_layers=1, num_attention_heads=heads, num_key_value_heads=keys, vocab_size=64,
                    use_cache=False,
                )
            ).to(torch.bfloat16)  # fmt: skip
            self.inner = base.eval()
            if rank:
                lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=PROJECTIONS)
                self.inner = get_peft_model(base, lora).to(torch.bfloat16).eval()
        for each, parameter in self.named_parameters():
            if "lora_" in each and adapters == "fp32":
                parameter.data = parameter.data.float()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(inputs_embeds=x, use_cache=False).last_hidden_state


class Seen(RuntimeError):
    """The graph is there; nothing has to be compiled."""


def compiled(model: torch.nn.Module, x: torch.Tensor) -> fx.Graph:
    """The graph that torch.compile gives to Inductor, decomposed as there. On the CPU, whose attention stays one op as
    a card's does; no memory of it is touched."""
    seen: list[fx.Graph] = []

    def record(module: fx.GraphModule, _: Any) -> Any:
        seen.append(module.graph)
        raise Seen

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=record, inference_compiler=record, decompositions=select_decomp_table())
    with torch.no_grad(), pytest.raises(BackendCompilerFailed, match="Seen"):
        torch.compile(model.to_empty(device="cpu"), backend=backend, fullgraph=True, dynamic=False)(
            torch.empty_like(x, device="cpu")
        )
    (graph,) = seen
    return graph


DOORS = {"export": lambda model, x: capture(model, (x,)).graph, "compile": compiled}


def places_of_model(name: str, rank: int, adapters: str, batch: int, length: int, door: str) -> set[Any]:
    x = torch.empty(batch, length, MODELS[name].hidden, dtype=torch.bfloat16, device="meta")
    graph = DOORS[door](Embedded(name, rank, adapters), x)
    setting = Setting(Options(), get_device("h200"), Accepted("runnable", ("offline",)), card=CARD)
    groups = draft(graph, setting).plan.groups
    keys = keys_of(groups, setting)
    assert len(keys) == len(groups) == (4 if rank else 2)
    return {place_of(key) for key in keys}


def places_of_list(name: str, rank: int, adapters: str, rows: int) -> set[Any]:
    of = [each for each in cases() if (each.model, each.rank, each.m) == (name, rank, bucket_of(rows))]
    return {place_of(shipped.key(each, DEVICE, CARD)) for each in of if not rank or each.adapters == adapters}


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("name", "rank", "adapters", "batch", "length"),
    [
        ("Llama-3-8B", 16, "bf16", 1, 1),
        ("Llama-3-8B", 16, "bf16", 2, 700),
        ("Llama-3-8B", 16, "fp32", 16, 1),
        ("Llama-3-8B", 16, "fp32", 1, 100),
        ("Llama-3-8B", 0, "bf16", 16, 1),
        ("Qwen2.5-7B", 8, "bf16", 16, 1),
        ("Qwen2.5-7B", 64, "fp32", 1, 1),
        ("Qwen2.5-7B", 64, "fp32", 1, 300),
    ],
)
def test_the_list_has_the_groups_of_real_models(
    name: str, rank: int, adapters: str, batch: int, length: int, door: str
) -> None:
    found = places_of_model(name, rank, adapters, batch, length, door)
    assert found <= places_of_list(name, rank, adapters, batch * length)


@pytest.mark.exhaustive
def test_the_list_has_the_groups_of_a_model_that_decodes() -> None:
    found = places_of_model("Llama-3-8B", 16, "bf16", 16, 1, "compile")
    assert found <= places_of_list("Llama-3-8B", 16, "bf16", 16)
    assert not found & places_of_list("Qwen2.5-7B", 16, "bf16", 16)


def test_adapters_are_fp32_unless_peft_is_told_otherwise() -> None:
    """Which is why both are in the list."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=8
    )  # fmt: skip
    for casts, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        lora = LoraConfig(r=4, target_modules=PROJECTIONS)
        model = get_peft_model(LlamaModel(config).to(torch.bfloat16), lora, autocast_adapter_dtype=casts)
        assert {each.dtype for name, each in model.named_parameters() if "lora_" in name} == {dtype}


def test_each_case_has_a_place_of_its_own_and_comes_once() -> None:
    every = cases()
    some = random.Random(0).sample(every, 120)
    assert len({place_of(shipped.key(each, DEVICE, CARD)) for each in some}) == len(some)
    assert len(set(every)) == len(every)
    assert {each.m for each in every} == set(BUCKETS) and {each.rank for each in every} == set(RANKS)
    assert cases(("bf16",)) == [each for each in every if each.adapters == "bf16"], "which come first"
    assert all(each.rank == 16 and each.m <= 64 for each in every[:50])


@pytest.mark.parametrize("site", ENDED)
@pytest.mark.parametrize("adapters", ADAPTERS)
@pytest.mark.parametrize("ended", [False, True])
def test_each_has_schedules_and_a_module(site: str, adapters: str, ended: bool) -> None:
    key = shipped.key(Case("Qwen2.5-7B", site, 16, 16, adapters, ended), DEVICE, CARD)
    (schedule,) = first_candidates(key, DEVICE, 1, measured_kinds(key))
    assert "def launch" in emit(named(key.group), schedule, name="made", tier=key.tier, why="A test.").source
    assert "def eager" in reference(named(key.group), name="sums", tier="fp32").source


def some_cases() -> list[Case]:
    return [Case("Llama-3-8B", "o", m, 16, "bf16", False) for m in (1, 2, 4)]


def test_a_table_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h200.json"
    wanted = shipped.missing(some_cases(), shipped.read(path), DEVICE, CARD)
    assert [case.m for case, _ in wanted] == [1, 2, 4]
    meter = FakeMeter(Clock(), library=50.0)
    first = shipped.measure(wanted[:2], [], DEVICE, meter, path, 1e3)
    assert shipped.read(path) == first and [each.key for each in first] == [key for _, key in wanted[:2]]
    left = shipped.missing(some_cases(), shipped.read(path), DEVICE, CARD)
    assert left == wanted[2:]
    assert shipped.missing(some_cases(), first, DEVICE, "NVIDIA H100 80GB HBM3") != left
    whole = shipped.measure(left, first, DEVICE, meter, path, 1e3)
    assert whole[:2] == first and shipped.read(path) == whole and len(whole) == 3
    assert "Llama-3-8B o, M=4, r=16 bf16: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("compile_s", "seconds", "kept", "said"),
    [
        (2.0, 1e4, True, "split, "),
        (30.0, 1e4, True, "split, "),  # the second search ends
        (30.0, 40.0, False, ", cut short by the end of this run, "),
        (1e3, 1e4, False, "found nothing out: 1; the next run makes them again"),
    ],
)
def test_a_search_that_needs_more_time_has_it(
    compile_s: float,
    seconds: float,
    kept: bool,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And is not made again by the next run: only what was cut short by the end of one, or found nothing out."""
    monkeypatch.setattr("tests.tuning.fake_meter.COMPILE_S", compile_s)
    path, clock = tmp_path / "h200.json", Clock()
    wanted = shipped.missing(some_cases()[:1], [], DEVICE, CARD)
    entries = shipped.measure(wanted, [], DEVICE, FakeMeter(clock, library=50.0), path, seconds, clock)
    assert [each.candidates for each in entries] == [8] * kept and said in capsys.readouterr().out
    assert shipped.missing(some_cases()[:1], shipped.read(path), DEVICE, CARD) == ([] if kept else wanted)
    assert clock.now <= 1.1 * min(seconds, 60.0 + 120.0 + 240.0)


def test_no_search_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    wanted = shipped.missing(some_cases(), [], DEVICE, CARD)
    assert shipped.measure(wanted, [], DEVICE, FakeMeter(Clock()), path, 0.0) == [] and not path.exists()


def test_the_groups_are_whole() -> None:
    for case in random.Random(1).sample(cases(), 40):
        of = group(case)
        assert of.m == case.m and bool(of.epilogues) == case.ended and bool(of.branches) == bool(case.rank)
        assert all(each.chain.shape == (of.m, of.members[each.mains[0]].n) for each in of.epilogues)
