"""A model of 70 billion parameters with PEFT adapters, planned without its weights: everything is on the meta device.

fusioncc plan examples/llama_70b_meta.py:factory --device h200      # needs transformers and peft, no GPU
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def factory(layers: int = 80) -> tuple[nn.Module, tuple[()], dict[str, Tensor | bool]]:
    """The model in the sizes of Llama 70B, adapters of rank 16 on all seven projections, 64 sequences of one token."""
    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        adapters = LoraConfig(r=16, lora_alpha=32, target_modules=PROJECTIONS)
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
        tokens = torch.zeros(64, 1, dtype=torch.int64)
    return model.eval(), (), {"input_ids": tokens, "use_cache": False}
