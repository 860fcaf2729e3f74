"""On a card: every claimed group of a PEFT Llama enters Inductor as a visible Triton kernel, and results are right."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import fusioncc
from fusioncc.codegen.emission import KINDS
from tests.lora_models import Lora, rows

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def llama(fp32_adapters: bool, layers: int = 2) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=512,
        use_cache=False,
    )
    base = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    lora = peft.LoraConfig(r=16, lora_alpha=24, target_modules=PROJECTIONS)
    model = peft.get_peft_model(base, lora, autocast_adapter_dtype=fp32_adapters).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def exact(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The model's logits in fp64; restores the dtypes behind."""
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    with torch.no_grad():
        result = model.double()(input_ids=ids, use_cache=False).logits
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(dtypes[name])
        for buffer in model.buffers():
            if buffer.dtype == torch.float64:
                buffer.data = buffer.data.float()
    return result


def rms(value: torch.Tensor, truth: torch.Tensor) -> float:
    return ((value.double() - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize("schedule", ["auto", "inline", "split"])
@pytest.mark.parametrize("fp32_adapters", [True, False])
@pytest.mark.parametrize("tokens", [(64, 1), (1, 300)])
def test_llama_groups_are_visible_and_right(schedule: str, fp32_adapters: bool, tokens: tuple[int, int]) -> None:
    model = llama(fp32_adapters)
    ids = torch.randint(0, 512, tokens, device="cuda")
    truth = exact(model, ids)
    compiled = torch.compile(
        model, backend="fusioncc", fullgraph=True, dynamic=False, options={"schedule": schedule, "on_error": "raise"}
    )
    with torch.no_grad():
        eager = model(input_ids=ids, use_cache=False).logits
        fused = compiled(input_ids=ids, use_cache=False).logits
        again = compiled(input_ids=ids, use_cache=False).logits
    (plan,) = fusioncc.plan_of(compiled)
    assert len(plan.groups) == 2 * 4
    claimed = [group for group in plan.groups if group.schedule.kind != "library"]
    assert all(group.insertion == "visible" for group in claimed)
    assert claimed
    if schedule != "auto":
        assert len(claimed) == len(plan.groups)
    assert rms(fused, truth) <= 1.1 * rms(eager, truth)
    assert torch.equal(fused, again)


def test_inductor_starts_dependent_launches_early() -> None:
    """The option is in Inductor's code, and in the kernel that it compiled."""
    from torch._inductor.utils import run_and_get_code

    model = Lora(dtype=torch.bfloat16).cuda()
    x = rows(48, dtype=torch.bfloat16).cuda()
    compiled = torch.compile(model, backend="fusioncc", options={"schedule": "split", "on_error": "raise"})
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        _, (code,) = run_and_get_code(compiled, x)
    (plan,) = fusioncc.plan_of(compiled)
    dependent = sum(pool.dependent for group in plan.groups for pool in group.schedule.pools)
    assert code.count("'launch_pdl': True") == dependent > 0


def test_an_x_that_inductor_computes_is_written_once() -> None:
    """And nothing runs between the launches that share it: no copy of what a kernel was taken to write."""
    from torch._inductor.utils import run_and_get_code

    layer = Lora(dtype=torch.bfloat16).cuda()
    gate, x = rows(300, dtype=torch.bfloat16).cuda(), rows(300, dtype=torch.bfloat16).cuda()
    compiled = torch.compile(
        lambda gate, x: layer((torch.nn.functional.silu(gate) * x)[None]),
        backend="fusioncc", options={"schedule": "split", "on_error": "raise"},
    )  # fmt: skip
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        _, (code,) = run_and_get_code(compiled, gate, x)
    pointwise = [text for text in code.split("async_compile.triton(")[1:] if "@triton_heuristics.pointwise" in text]
    assert len(pointwise) == 1 and pointwise[0].count("tl.store(") == 1
    launched = re.findall(r"^ +(\w+)\.run\(", code, flags=re.MULTILINE)
    assert [name.split("_")[0] for name in launched] == ["triton", "down", "main"]


@pytest.mark.parametrize("mode", ["reduce-overhead", None])
def test_modes_threads_and_graph_capture(mode: str | None) -> None:
    model = llama(False, layers=1)
    ids = torch.randint(0, 512, (4, 64), device="cuda")
    options = {"schedule": "split", "on_error": "raise"}
    if mode:
        options["inductor"] = torch._inductor.list_mode_options(mode)
    compiled = torch.compile(model, backend="fusioncc", dynamic=False, options=options)
    results = []

    def run() -> None:
        with torch.no_grad():
            results.append(compiled(input_ids=ids, use_cache=False).logits.clone())

    for _ in range(3):
        run()
    if mode is None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            captured = compiled(input_ids=ids, use_cache=False).logits
        graph.replay()
        results.append(captured)
    torch.cuda.synchronize()
    assert len(results) >= 3
    assert all(torch.equal(result, results[0]) for result in results)


class Layer(torch.nn.Module):
    def __init__(self, k: int, n: int, rank: int) -> None:
        super().__init__()
        self.base, self.a = torch.nn.Linear(k, n), torch.nn.Linear(k, rank, bias=False)
        self.b = torch.nn.Linear(rank, n, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 0.7 * self.b(self.a(x))


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.bfloat16, "highest"), (torch.float16, "highest"), (torch.float32, "high"), (torch.float32, "highest")],
    ids=["bf16", "fp16", "tf32", "ieee"],
)
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 64, 100, 256, 1000])
@pytest.mark.parametrize("rank", [1, 8, 48])
def test_layer_of_any_shape(dtype: torch.dtype, precision: str, rows: int, rank: int) -> None:
    torch.set_float32_matmul_precision(precision)
    layer = Layer(1000, 1496, rank).to("cuda", dtype)
    x = torch.randn(rows, 1000, device="cuda", dtype=dtype)
    truth = layer.double()(x.double())
    layer.to(dtype)
    with torch.no_grad():
        eager = rms(layer(x), truth)
        for schedule in ("inline", "split"):
            torch._dynamo.reset()
            compiled = torch.compile(
                layer, backend="fusioncc", dynamic=False, options={"schedule": schedule, "on_error": "raise"}
            )
            results = [compiled(x) for _ in range(3)]
            assert rms(results[0], truth) <= 1.1 * eager
            assert torch.equal(results[0], results[2])


def test_descriptors_enter_visibly_and_are_right() -> None:
    layer = Layer(4096, 4096, 16).to("cuda", torch.bfloat16)
    x = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(layer, backend="fusioncc", options={"on_error": "raise"})
    with torch.no_grad():
        fused, eager = compiled(x), layer(x)
    truth = layer.double()(x.double())
    (plan,) = fusioncc.plan_of(compiled)
    if torch.cuda.get_device_capability() >= (9, 0):
        assert any(pool.tile.tma for group in plan.groups for pool in group.schedule.pools)
    assert [group.insertion for group in plan.groups] == ["visible"]
    assert rms(fused, truth) <= 1.1 * rms(eager, truth)


class Bundle(torch.nn.Module):
    """Layers that share X, each with its adapter."""

    def __init__(self, k: int, *widths: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(k, n, 16) for n in widths)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


@pytest.mark.parametrize("widths", [(1024, 512, 512), (1536, 1536)])
@pytest.mark.parametrize("rows", [1, 64, 1000])
@pytest.mark.parametrize("schedule", [kind for kind in KINDS if kind != "k_concat"])
def test_bundles_through_inductor(schedule: str, rows: int, widths: tuple[int, ...]) -> None:
    model = Bundle(1024, *widths).to("cuda", torch.bfloat16)
    x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
    torch._dynamo.reset()
    options = {"schedule": schedule, "on_error": "raise"}
    compiled = torch.compile(model, backend="fusioncc", dynamic=False, options=options)
    with torch.no_grad():
        eager, fused, again = model(x), compiled(x), compiled(x)
        exact = model.double()(x.double())
    (plan,) = fusioncc.plan_of(compiled)
    assert [group.insertion for group in plan.groups] == ["opaque" if schedule == "streams" else "visible"]
    for one, other, repeated, truth in zip(eager, fused, again, exact, strict=True):
        assert rms(other, truth) <= 1.1 * rms(one, truth)
        assert torch.equal(other, repeated)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp32_adapters_keep_fp32_accuracy(dtype: torch.dtype) -> None:
    layer = Layer(1024, 2048, 16).to("cuda", dtype)
    layer.a, layer.b = layer.a.float(), layer.b.float()
    torch.nn.init.zeros_(layer.base.weight)
    torch.nn.init.zeros_(layer.base.bias)

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer.base(x).float() + 3.0 * layer.b(layer.a(x.float()))

    x = torch.randn(64, 1024, device="cuda", dtype=dtype)
    truth = 3.0 * (x.double() @ layer.a.weight.double().T) @ layer.b.weight.double().T
    for schedule in ("inline", "split"):
        torch._dynamo.reset()
        compiled = torch.compile(Wide(), backend="fusioncc", options={"schedule": schedule, "on_error": "raise"})
        with torch.no_grad():
            assert rms(compiled(x), truth) <= 3e-6


@pytest.mark.parametrize("schedule", ["split", "two_pool"])
def test_dynamic_rows(schedule: str) -> None:
    layer = Layer(1024, 2048, 16).to("cuda", torch.bfloat16)
    options = {"schedule": schedule, "on_error": "raise"}
    compiled = torch.compile(layer, backend="fusioncc", dynamic=True, options=options)
    with torch.no_grad():
        for rows in (64, 2, 700, 4097):
            x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
            truth = layer.double()(x.double())
            layer.to(torch.bfloat16)
            assert rms(compiled(x), truth) <= 1.1 * rms(layer(x), truth)
    assert len(fusioncc.plan_of(compiled)) == 1


def test_training_step_equals_eager() -> None:
    layer = Layer(1024, 2048, 16).to("cuda", torch.bfloat16)
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    layer(x).square().mean().backward()
    wanted = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    for schedule in ("inline", "split"):
        torch._dynamo.reset()
        layer.zero_grad()
        compiled = torch.compile(layer, backend="fusioncc", options={"schedule": schedule, "on_error": "raise"})
        compiled(x).square().mean().backward()
        assert any(group.schedule.kind == schedule for plan in fusioncc.plan_of(compiled) for group in plan.groups)
        for name, parameter in layer.named_parameters():
            assert rms(parameter.grad, wanted[name].double()) < 0.02


CACHED = """
import torch, fusioncc
torch.manual_seed(0)
def f(x, w, a, b):
    return torch.nn.functional.linear(x, w) + torch.nn.functional.linear(torch.nn.functional.linear(x, a), b) * 2.0
t = [torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((64, 1024), (2048, 1024), (16, 1024), (2048, 16))]
c = torch.compile(f, backend="fusioncc", dynamic=False, options={"schedule": "inline", "on_error": "raise"})
with torch.no_grad():
    print(c(*t).double().sum().item(), [g.insertion for p in fusioncc.plan_of(c) for g in p.groups])
from torch._dynamo.utils import counters
print("hits", counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_cache_across_processes(tmp_path: Path) -> None:
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "FUSIONCC_CACHE_DIR": str(tmp_path / "fusioncc")}
    environment = {**os.environ, **folders}
    runs = [
        subprocess.run(
            [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    first, second = (run.splitlines() for run in runs)
    assert first[0] == second[0]
    assert "visible" in second[0]
    assert first[1] == "hits 0"
    assert second[1] != "hits 0"
