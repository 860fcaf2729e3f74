"""Tiny transformers models with PEFT adapters, random and seeded, and what is said about their plans."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from fusioncc.plan import Plan

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
VOCABULARY = 128


@dataclass(frozen=True)
class Case:
    """One model: architecture, adapters, how it is compiled, and the groups that a person would mark.

    ``layer`` lists the groups of one layer; a group maps each product of the shared input to its number of branches.
    """

    name: str
    architecture: str
    rank: int
    layer: tuple[dict[str, int], ...]
    fp32_adapters: bool = True
    targets: tuple[str, ...] = ATTENTION + MLP
    schedule: str = "auto"
    layers: int = 1
    head_dim: int = 32
    lora: dict[str, Any] = field(default_factory=dict)


def build(case: Case) -> torch.nn.Module:
    """A bf16 model in eval mode with adapters that are no longer zero, a scaling that is not 1 and biases that are
    not 0."""
    torch.manual_seed(sum(map(ord, case.name)))
    base = ARCHITECTURES[case.architecture](case).to(torch.bfloat16)
    config = LoraConfig(r=case.rank, lora_alpha=1.5 * case.rank, target_modules=list(case.targets), **case.lora)
    model = get_peft_model(base, config, autocast_adapter_dtype=case.fp32_adapters)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or name.endswith(".bias"):
                parameter.normal_(std=0.05)
            elif name.endswith(".weight") and parameter.dim() == 2 and "lora" not in name:
                parameter.mul_(3)
    return model.eval()


def _llama(case: Case) -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**_sizes(case)))


def _qwen2(case: Case) -> torch.nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**_sizes(case)))


def _gpt2(case: Case) -> torch.nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 4 * case.head_dim, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(n_layer=case.layers, **sizes))


def _sizes(case: Case) -> dict[str, int]:
    """Grouped-query attention: half as many heads for keys and values, so the three products differ in N."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 4 * case.head_dim,
        "head_dim": case.head_dim,
        "intermediate_size": 8 * case.head_dim,
        "num_hidden_layers": case.layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32,
    }


ARCHITECTURES = {"llama": _llama, "qwen2": _qwen2, "gpt2": _gpt2}


def tokens(batch: int = 1, length: int = 6) -> torch.Tensor:
    """Token ids ``[batch, length]``."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(7))


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """``[batch, length, vocabulary]`` in fp64, without gradients."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.double()


def in_fp64(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with every parameter in fp64."""
    return copy.deepcopy(model).double()


def rms(values: torch.Tensor) -> float:
    """Root mean square."""
    return float(values.double().square().mean().sqrt())


def marked(plan: Plan) -> list[dict[str, int]]:
    """The groups of a plan as ``Case.layer`` writes them."""
    return [
        {_product(group.members[main].source): len(group.branches_of(main)) for main in group.mains}
        for group in plan.groups
    ]


def _product(source: str) -> str:
    return [part for part in source.split(".") if part != "base_layer"][-1]
