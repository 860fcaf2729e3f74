"""Chains of elementwise ops that a model has, each as a function of tensors with its inputs: what chains.py times.

Given fp64, a function computes in fp64 throughout and rounds nothing, so that it is its own reference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]
Draw = Callable[..., torch.Tensor]
"""A random bf16 tensor of the sizes given."""
Size = tuple[int, int]
FP8_SCALE, INT8_SCALE = 32.0, 12.5
"""Static scales; a few results lie outside of what the narrow dtype holds."""
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


@dataclass(frozen=True)
class Case:
    """A function that is one chain. ``inputs`` draws what it reads at a size (rows, columns), ``tiny`` is a size for an
    interpreter. ``cached``: it is also timed with the inputs that the call before has left in the cache."""

    name: str
    label: str
    function: Callable[..., torch.Tensor | Tensors]
    inputs: Callable[[Draw, Size], Tensors]
    size: Size = (8192, 4096)
    tiny: Size = (12, 64)
    cached: bool = False

    def outputs(self, given: Tensors) -> Tensors:
        """What the function makes, as a tuple."""
        return as_tuple(self.function(*given))

    def exact(self, given: Tensors) -> Tensors:
        """The same in fp64."""
        return self.outputs(tuple(tensor.double() for tensor in given))


def as_tuple(outputs: torch.Tensor | Tensors) -> Tensors:
    """One output as a tuple of one."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _wide(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a model normalises ``x``."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _fp8(scaled: torch.Tensor) -> torch.Tensor:
    bounded = scaled.clamp(-FP8_MAX, FP8_MAX)  # torch's own cast makes NaN of what lies outside
    return bounded if scaled.dtype == torch.float64 else bounded.to(torch.float8_e4m3fn)


def _int8(scaled: torch.Tensor) -> torch.Tensor:
    if scaled.dtype == torch.float64:
        return scaled.clamp(-128, 127)
    return scaled.round().clamp(-128, 127).to(torch.int8)  # torch's own cast cuts towards zero and wraps


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def silu_mul_fp8(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _fp8(F.silu(gate) * up * FP8_SCALE)


def silu_mul_int8(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _int8(F.silu(gate) * up * INT8_SCALE)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As models of the Llama family write it."""
    wide = x.to(_wide(x))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Tensors:
    total = x + residual
    return rms_norm(total, weight), total


def layer_norm_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias))


def rowwise_fp8(x: torch.Tensor) -> Tensors:
    """Quantised with a scale for each row, and the scales."""
    wide = x.to(_wide(x))
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    return _fp8(wide / scale), scale


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores + mask, dim=-1, dtype=_wide(scores)).to(scores.dtype)


def twelve_ops(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Tensors:
    gate = torch.sigmoid(a)
    mixed = gate * b + (1.0 - gate) * torch.tanh(c)
    bounded = torch.add(mixed, d, alpha=0.5).clamp(-2.0, 2.0)
    return mixed, bounded, bounded * bounded * 0.5 + d.abs()


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.relu(x * scale + 1.0)


def _alike(count: int) -> Callable[[Draw, Size], Tensors]:
    """So many tensors of the whole size."""
    return lambda draw, size: tuple(draw(*size) for _ in range(count))


def _with_rows(wide: int, vectors: int) -> Callable[[Draw, Size], Tensors]:
    """Tensors of the whole size, then vectors along a row."""
    return lambda draw, size: (*(draw(*size) for _ in range(wide)), *(draw(size[1]) for _ in range(vectors)))


def _with_column(draw: Draw, size: Size) -> Tensors:
    return draw(*size), draw(size[0], 1)


def _with_scalar(draw: Draw, size: Size) -> Tensors:
    return draw(*size), draw()


def _scores(draw: Draw, size: Size) -> Tensors:
    """Scores of ``rows`` heads over so many keys as there are columns, and a causal mask that all share."""
    heads, length = size
    lowest = torch.finfo(torch.bfloat16).min
    return draw(heads, length, length), torch.full_like(draw(length, length), lowest).triu(1)


MLP = (1024, 12288)
CASES = (
    Case("silu_mul", "SiLU·mul", silu_mul, _alike(2), MLP, cached=True),
    Case("silu_mul_fp8", "SiLU·mul, to fp8", silu_mul_fp8, _alike(2), MLP, cached=True),
    Case("silu_mul_int8", "SiLU·mul, to int8", silu_mul_int8, _alike(2), MLP, cached=True),
    Case("rms_norm", "RMSNorm", rms_norm, _with_rows(1, 1)),
    Case("add_rms_norm", "residual add, RMSNorm, both kept", add_rms_norm, _with_rows(2, 1)),
    Case("layer_norm_gelu", "LayerNorm, GELU", layer_norm_gelu, _with_rows(1, 2)),
    Case("rowwise_fp8", "to fp8 by rows, with scales", rowwise_fp8, _alike(1)),
    Case("masked_softmax", "softmax with a mask", masked_softmax, _scores, (32, 1024), (2, 32)),
    Case("twelve_ops", "12 ops, 4 inputs, 3 outputs", twelve_ops, _alike(4)),
    Case("row_vector", "times a row vector, plus 1, ReLU", scaled, _with_rows(1, 1)),
    Case("column_vector", "times a column vector, plus 1, ReLU", scaled, _with_column),
    Case("scalar", "times a scalar tensor, plus 1, ReLU", scaled, _with_scalar),
)
BY_NAME = {case.name: case for case in CASES}


def ffn(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Six kernels in eager: gate, up, SiLU, mul, down, residual add."""
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def ffn_inputs(draw: Draw, rows: int, hidden: int, inner: int) -> Tensors:
    """X and the three weights of :func:`ffn`."""
    x, gate, up, down = draw(rows, hidden), draw(inner, hidden), draw(inner, hidden), draw(hidden, inner)
    return x, gate * hidden**-0.5, up * hidden**-0.5, down * inner**-0.5
