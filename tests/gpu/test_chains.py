"""Chains on a card: named ones and random ones, through eager and through Inductor, against fp64 and eager."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, seed, settings

import fusioncc
from fusioncc.codegen.chain import emit_chain
from fusioncc.plan import ChainPlan
from fusioncc.runtime.load import load
from tests.passes.doors import DOORS
from tests.passes.every_gate import SiluMul, check_silu_mul, every_gate
from tests.passes.random_chains import Program, programs
from tests.passes.reference import check_accuracy, exact_results, luck

RESTS = {"eager": "call", "inductor": "visible"}
"""What runs the rest, and the form in which a chain then enters the graph."""


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def full(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in 8 bits, each with a scale."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) * (1 / 448)
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def twelve(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Twelve ops, four inputs, three outputs."""
    first = torch.tanh(x * w + b)
    second = torch.sigmoid(y - first) * y
    third = torch.where(second > 0, second.abs() + 1, first.exp()) * 0.5
    return first, second, third - x


Case = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]
NAMED: dict[str, Case] = {
    "silu_mul": (lambda g, u: F.silu(g) * u, lambda: (half(1024, 12288), half(1024, 12288))),
    "silu_mul_quantise": (
        lambda g, u: (F.silu(g) * u).to(torch.float8_e4m3fn),
        lambda: (half(1024, 12288), half(1024, 12288)),
    ),
    "rms_norm": (rms_norm, lambda: (half(1000, 4096), half(4096))),
    "layer_norm_gelu": (
        lambda x, w, b: F.gelu(F.layer_norm(x, x.shape[-1:], w, b)),
        lambda: (half(333, 1000), half(1000), half(1000)),
    ),
    "softmax_mask": (
        lambda x, mask: torch.where(mask, x.float() * 0.125, -1e9).softmax(-1).to(x.dtype),
        lambda: (half(4, 8, 100, 300), full(100, 300) > -1),
    ),
    "quantise_rows": (quantise, lambda: (half(512, 4096),)),
    "twelve_ops": (twelve, lambda: (half(700, 1100), half(700, 1100), half(1100), half(700, 1))),
    "along_rows": (lambda x, y: (x + y).relu() * x, lambda: (full(50, 60, 70), full(70))),
    "along_middle": (lambda x, y: (x + y).relu() * x, lambda: (full(50, 60, 70), full(60, 1))),
    "along_first": (lambda x, y: (x + y).relu() * x, lambda: (full(50, 60, 70), full(50, 1, 1))),
    "no_dimension": (lambda x, y: (x + y).relu() * x, lambda: (full(50, 60, 70), full())),
    "all_without": (lambda x, y: (x + y).relu() * x, lambda: (full(), full())),
    "transposed": (lambda x, y: (x + y).relu() * x, lambda: (full(500, 300), full(300, 500).t())),
    "channels_last": (
        lambda x, y: (x * y).tanh() + x,
        lambda: (full(2, 30, 40, 50).contiguous(memory_format=torch.channels_last), full(30, 1, 1)),
    ),
    "expanded": (lambda x, y: (x + y).relu() * x, lambda: (full(500, 300), full(1, 300).expand(500, 300))),
    "integers": (
        lambda i, x: (i // 3 + 1) * x + (i > 2),
        lambda: (torch.randint(-9, 9, (40, 50), device="cuda"), full(50)),
    ),
    "fp16": (lambda x: F.gelu(x * 2, approximate="tanh") / 3, lambda: (half(1000, 999, dtype=torch.float16),)),
}


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.function(*tensors)
        return result if isinstance(result, tuple) else (result,)


def chains_of(compiled: Any, rest: str, tier: str) -> list[ChainPlan]:
    """The chains of every plan, all of which ran as they should."""
    chains = [chain for plan in fusioncc.plan_of(compiled) for chain in plan.chains]
    for chain in chains:
        if chain.claimed:
            assert chain.insertion == RESTS[rest]
        else:  # Inductor may store what it computes with other strides than the kernel reads
            assert rest == "inductor"
            assert "with other strides" in chain.why
        assert chain.tier == tier
    return chains


def bits(value: torch.Tensor) -> torch.Tensor:
    """Something that is equal where two results are: also of 8 bits, of which NaN is a number too."""
    return value.contiguous().view(torch.uint8) if value.dim() else value.reshape(1).view(torch.uint8)


def check(model: torch.nn.Module, arguments: list[torch.Tensor], rest: str, numerics: str = "fp32") -> list[ChainPlan]:
    """Run a model with kernels and without, twice; the chains of its plans."""
    module = DOORS["aot"](model, tuple(arguments))
    exact, chance = exact_results(module, arguments), luck(module)
    with torch.no_grad():
        plain = model(*arguments)
        options = {"chains": "always", "numerics": numerics, "on_error": "raise", "rest": rest}
        compiled = fusioncc.optimize(model, **options)
        fused, again = compiled(*arguments), compiled(*arguments)
    for at, (one, other, repeated, truth) in enumerate(zip(fused, plain, again, exact, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(bits(one), bits(repeated))
        check_accuracy(f"result {at}", one, other, truth, chance)
    return chains_of(compiled, rest, numerics)


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("name", NAMED)
def test_named_chains(name: str, rest: str) -> None:
    function, make = NAMED[name]
    chains = check(Function(function), list(make()), rest)
    assert any(chain.claimed for chain in chains)


@pytest.mark.parametrize("name", ["silu_mul", "twelve_ops", "along_rows", "all_without", "integers", "fp16"])
def test_named_chains_in_the_eager_tier(name: str) -> None:
    """In the tier eager the results are those of eager, but for functions that libdevice and ATen have differently."""
    function, make = NAMED[name]
    assert check(Function(function), list(make()), "eager", "eager")


def test_silu_of_every_gate_in_the_eager_tier() -> None:
    gate, up = every_gate(128, "cuda")
    compiled = fusioncc.optimize(SiluMul(), chains="always", numerics="eager", on_error="raise", rest="eager")
    fused = compiled(gate, up)
    assert [chain.claimed for chain in chains_of(compiled, "eager", "eager")] == [True]
    check_silu_mul(fused, SiluMul()(gate, up))


@pytest.mark.parametrize("name", NAMED)
def test_emitted_modules_pass_their_own_check(name: str) -> None:
    function, make = NAMED[name]
    for planned in fusioncc.plan(Function(function), make()).chains:
        emitted = emit_chain(planned.chain, planned.tile, name=planned.kernel, tier=planned.tier, why=planned.why)
        module = load(emitted.name, emitted.source)
        assert module.check(module.draw(0)) == ""


def drawn(count: int, exact: bool, number: int) -> list[Program]:
    """Random programs, the same for the same number."""
    found: list[Program] = []

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(exact))
    def draw(program: Program) -> None:
        found.append(program)

    draw()
    return found


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("number", range(4))
def test_random_chains(number: int, rest: str) -> None:
    ran = 0
    for program in drawn(10, False, number):
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(program)  # shown where it fails
            ran += bool(check(program.model(), program.arguments("cuda"), rest))
    assert ran


@pytest.mark.parametrize("number", range(3))
def test_random_chains_have_the_bits_of_eager(number: int) -> None:
    """Zeros of either sign are equal, and NaN is."""
    for program in drawn(10, True, number):
        torch._dynamo.reset()
        arguments = program.arguments("cuda")
        model = program.model()
        options = {"chains": "always", "numerics": "eager", "on_error": "raise", "rest": "eager"}
        with torch.no_grad():
            compiled = fusioncc.optimize(model, **options)
            for name, one, other in zip(program.returned, compiled(*arguments), model(*arguments), strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype), repr(program)
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=f"{name} of\n{program!r}")
        chains_of(compiled, "eager", "eager")
