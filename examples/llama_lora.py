"""A small Llama block in which every projection carries a LoRA adapter, in plain torch.

fusioncc dump examples/llama_lora.py:factory --out demo-out     # decisions and kernels for an H200, on any machine
python examples/llama_lora.py                                   # the three front doors, on this machine
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """Sizes of the block; heads share keys and values in groups (GQA)."""

    hidden: int = 512
    intermediate: int = 1536
    heads: int = 8
    kv_heads: int = 2
    rank: int = 8
    alpha: float = 16.0
    dtype: torch.dtype = torch.bfloat16
    adapter_dtype: torch.dtype = torch.bfloat16

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class LoRALinear(nn.Module):
    """``x @ W + scaling * (x @ A) @ B`` with a frozen ``W``; the adapter may be kept in another dtype than the base."""

    def __init__(self, in_features: int, out_features: int, config: Config) -> None:
        super().__init__()
        self.base = nn.Linear(in_features, out_features, bias=False, dtype=config.dtype).requires_grad_(False)
        self.lora_a = nn.Linear(in_features, config.rank, bias=False, dtype=config.adapter_dtype)
        self.lora_b = nn.Linear(config.rank, out_features, bias=False, dtype=config.adapter_dtype)
        self.scaling = config.alpha / config.rank

    def forward(self, x: Tensor) -> Tensor:
        base = self.base(x)
        low_rank = self.lora_b(self.lora_a(x.to(self.lora_a.weight.dtype)))
        return (base + low_rank * self.scaling).to(base.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden, dtype=config.dtype))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    """Causal attention with rotary positions: q, k and v read one input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.q_proj = LoRALinear(config.hidden, config.heads * config.head_dim, config)
        self.k_proj = LoRALinear(config.hidden, config.kv_heads * config.head_dim, config)
        self.v_proj = LoRALinear(config.hidden, config.kv_heads * config.head_dim, config)
        self.o_proj = LoRALinear(config.heads * config.head_dim, config.hidden, config)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.config.head_dim)
        q, k, v = (project(x).view(split).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``: gate and up read one input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = LoRALinear(config.hidden, config.intermediate, config)
        self.up_proj = LoRALinear(config.hidden, config.intermediate, config)
        self.down_proj = LoRALinear(config.intermediate, config.hidden, config)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class LlamaBlock(nn.Module):
    """One decoder layer, ``[batch, length, hidden]`` to the same."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.post_norm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


def rotate(x: Tensor) -> Tensor:
    """Rotary positions for ``[batch, heads, length, head_dim]``."""
    length, width = x.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width)
    angle = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * frequency
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def factory() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The block and one input of 4 sequences of 16 tokens."""
    torch.manual_seed(0)
    config = Config()
    return LlamaBlock(config).eval(), (torch.randn(4, 16, config.hidden, dtype=config.dtype),)


def main() -> None:
    """The three front doors, and how far each is from eager."""
    import fusioncc

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, (x,) = factory()
    model, x = model.to(device), x.to(device)
    with torch.no_grad():
        expected = model(x)
        by_name = torch.compile(model, backend="fusioncc")
        optimized = fusioncc.optimize(model, schedule="auto", numerics="fp32")
        for name, call in (("torch.compile", by_name), ("fusioncc.optimize", optimized)):
            difference = (call(x).float() - expected.float()).abs().max()
            print(f"{name}: largest difference to eager {difference:.4f}, largest value {expected.abs().max():.1f}")
    print(fusioncc.plan_of(by_name)[0])
    print(fusioncc.plan(model, (x,), device="h200"))


if __name__ == "__main__":
    main()
