"""Four layers of Llama-8B width with PEFT adapters on all seven projections: what adapters cost.

    python benchmarks/llama_lora.py --out benchmarks/results/llama_lora.json

The base model compiled, the LoRA model compiled, the LoRA model through fusioncc, in milliseconds of one forward
without gradients (CUDA-graph replay in turns, median); outputs compared with fp32 on the card.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from timing import Captured, captured, facts, interleaved_us
from transformers import LlamaConfig, LlamaModel

import fusioncc

INPUTS = [(64, 1), (1, 512), (1, 2048)]
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build(layers: int) -> torch.nn.Module:
    """The base model in bf16, random weights."""
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=1024, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaModel(config).to(torch.bfloat16).eval()


def small(layers: int) -> torch.nn.Module:
    """The same on a CPU, with few and narrow heads."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaModel(config).to(torch.bfloat16).eval()


def adapted(base: torch.nn.Module, rank: int, fp32: bool) -> torch.nn.Module:
    """PEFT adapters with B not zero, so that they count."""
    model = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=PROJECTIONS), autocast_adapter_dtype=fp32
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def forward(model: Any, embedded: torch.Tensor) -> Captured:
    """One forward as a graph."""
    return captured([lambda: model(inputs_embeds=embedded, use_cache=False)])


def output(model: Any, embedded: torch.Tensor) -> torch.Tensor:
    """Last hidden state of one forward."""
    with torch.no_grad():
        return model(inputs_embeds=embedded, use_cache=False).last_hidden_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--fp32-adapters", action="store_true")
    parser.add_argument("--inputs", default="64x1,1x512,1x2048")
    arguments = parser.parse_args()
    rows = []
    for batch, length in (tuple(map(int, text.split("x"))) for text in arguments.inputs.split(",")):
        torch.manual_seed(1)
        embedded = torch.randn(batch, length, 4096, device="cuda", dtype=torch.bfloat16)
        row: dict[str, Any] = {"input": f"{batch}x{length}"}
        torch._dynamo.reset()
        base = build(arguments.layers)
        compiled = torch.compile(base, dynamic=False)
        graphs = {"base_compile": forward(compiled, embedded)}
        model = adapted(base, arguments.rank, arguments.fp32_adapters)
        torch._dynamo.reset()
        graphs["lora_eager"] = forward(model, embedded)
        eager = output(model, embedded)
        torch._dynamo.reset()
        started = time.time()
        plain = torch.compile(model, dynamic=False)
        graphs["lora_compile"] = forward(plain, embedded)
        row["lora_compile_s"] = round(time.time() - started, 1)
        compiled_output = output(plain, embedded)
        torch._dynamo.reset()
        started = time.time()
        fused = torch.compile(model, backend="fusioncc", dynamic=False, options={"on_error": "raise"})
        graphs["lora_fusioncc"] = forward(fused, embedded)
        row["lora_fusioncc_s"] = round(time.time() - started, 1)
        fused_output = output(fused, embedded)
        plans = fusioncc.plan_of(fused)
        row["groups"] = {g.name: f"{g.schedule.kind} {g.insertion}" for plan in plans for g in plan.groups}
        for name, (us, spread) in zip(graphs, interleaved_us(list(graphs.values()), target_ms=300.0), strict=True):
            row[name], row[f"{name}_spread"] = round(us / 1000, 4), round(spread / 1000, 4)
        exact = output(model.float(), embedded.float()).double()
        for name, value in (("eager", eager), ("compile", compiled_output), ("fusioncc", fused_output)):
            row[f"{name}_error"] = float(f"{((value.double() - exact).norm() / exact.norm()).item():.3e}")
        rows.append(row)
        for name in ("compile", "fusioncc"):
            row[f"{name}_overhead_percent"] = round(100 * (row[f"lora_{name}"] / row["base_compile"] - 1), 1)
        print(json.dumps(row), flush=True)
        body = {
            **facts(),
            "unit": "ms",
            "layers": arguments.layers,
            "rank": arguments.rank,
        }
        body |= {"adapters": "fp32" if arguments.fp32_adapters else "bf16", "rows": rows}
        Path(arguments.out).write_text(json.dumps(body, indent=1) + "\n")
        del base, model, compiled, plain, fused, graphs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
