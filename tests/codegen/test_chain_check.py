"""The self-check of an emitted chain runs and finds its kernel right, a wrong one wrong; on the CPU over a part."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusioncc
from fusioncc.codegen.chain import emit_chain
from fusioncc.runtime.interpreter import interpreted_libdevice, mended
from fusioncc.runtime.load import load
from tests.passes.chain_graphs import Function
from tests.shown import shown


def module_of(function: Callable[..., Any], *args: torch.Tensor) -> ModuleType:
    """The emitted module of the one chain of a function."""
    (chain,) = fusioncc.plan(Function(function), args).chains
    emitted = emit_chain(chain.chain, chain.tile, name=chain.kernel, tier=chain.tier, why=chain.why)
    return load(emitted.name, emitted.source)


def half(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


CHAINS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "silu_mul": (lambda g, u: F.silu(g) * u, (half(1024, 256), half(1024, 256))),
    "softmax": (lambda x, m: (x.float() * 0.25 + m).softmax(-1).bfloat16(), (half(512, 64), torch.empty(64))),
    "layer_norm": (lambda x, w: F.gelu(F.layer_norm(x, (96,)) * w), (half(512, 96), half(96))),
    "var_mean": (lambda x: torch.var_mean(x * 2, -1, keepdim=True), (torch.empty(512, 64),)),
    "integers": (lambda x: (x.int() ^ 3) / 2 + x, (torch.empty(512, 64),)),
    "to_half": (
        lambda i, x: (i.bfloat16() * 0.1).float() * x,
        (torch.empty(512, 64, dtype=torch.int32), half(512, 64)),
    ),
    "constant": (lambda x: torch.where(x > 0, x, torch.full((1024, 64), 0.1)) * x, (torch.empty(1024, 64),)),
    "larger_constant": (lambda x: torch.full((1024, 64), 0.1) * x + x, (torch.empty(64),)),
    "no_dimension": (lambda x, y: torch.relu(x * y) + 1, (torch.empty(()), torch.empty(()))),
    "eight_bits": (lambda x: (x * 0.1).to(torch.float8_e4m3fn), (half(512, 64),)),
}


@pytest.mark.parametrize("name", shown(CHAINS, 2))
def test_a_kernel_is_found_right(name: str) -> None:
    function, args = CHAINS[name]
    module = module_of(function, *args)
    with mended(), interpreted_libdevice():
        assert module.check(module.draw(0)) == ""
    assert torch.get_default_dtype() == torch.float32


def test_a_wrong_kernel_is_found_wrong() -> None:
    module = module_of(*[CHAINS["silu_mul"][0], *CHAINS["silu_mul"][1]])
    launch = module.launch
    module.launch = lambda *operands, empty: launch(operands[1], operands[0], empty=empty)
    try:
        with mended(), interpreted_libdevice():
            assert "RMS error" in module.check(module.draw(0))
    finally:
        module.launch = launch
