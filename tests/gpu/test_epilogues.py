"""Tiles that end with a chain, on a card: golden modules check themselves, and functions are held against fp64."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as f

import fusioncc
from tests.codegen.epilogue_cases import epilogues
from tests.codegen.norm_cases import norms

GOLDEN = Path(__file__).parents[1] / "codegen" / "golden"
K, R = 512, 16
Members = list[tuple[torch.Tensor, ...]]


@pytest.mark.parametrize("name", [*epilogues(), *norms()])
def test_golden_modules_check_themselves(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(GOLDEN / f"{name}.py"), run_name="__main__")
    assert f"{name}: right for M=" in capsys.readouterr().out


def drawn(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def product(x: torch.Tensor, w: torch.Tensor, *adapter: torch.Tensor) -> torch.Tensor:
    out = f.linear(x, w)
    return out + 2.0 * f.linear(f.linear(x, adapter[0]), adapter[1]) if adapter else out


ENDS: dict[str, tuple[int, Callable[..., Any]]] = {
    "swiglu": (2, lambda p, z: f.silu(p[0]) * p[1]),
    "gelu": (1, lambda p, z: f.gelu(p[0])),
    "residual": (1, lambda p, z: (z + p[0]) * 0.5),
    "residual_norm": (1, lambda p, z: ((s := z + p[0]), f.rms_norm(s, s.shape[-1:]))),
    "fp8": (2, lambda p, z: (f.silu(p[0]) * p[1] * 4).clamp(-448, 448).to(torch.float8_e4m3fn)),
    "int8": (2, lambda p, z: (f.silu(p[0]) * p[1] * 16).round().clamp(-128, 127).to(torch.int8)),
    "kept": (2, lambda p, z: (f.silu(p[0]) * p[1], p[0].sum(-1))),
}
"""How many products, and what becomes of them and of a tensor of their shape."""


ROTARY: dict[str, tuple[tuple[int, ...], int, int, int, int]] = {
    "prefill": ((8, 2, 2), 128, 1, 1000, 1),
    "sequences": ((8, 8, 8), 64, 4, 100, 1),
    "ragged": ((5, 1, 1), 64, 3, 50, 3),
    "decode": ((8, 2, 2), 128, 16, 1, 1),
    "one token": ((8, 2, 2), 128, 1, 1, 1),
}
"""Heads of q, k and v, columns of a head, sequences, rows of one, sequences of cos and sin."""


def embedded(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads ``[B, H, S, D]`` with their rotary embedding, as transformers write it."""
    half = q.shape[-1] // 2
    return q * cos[:, None] + torch.cat((-q[..., half:], q[..., :half]), -1) * sin[:, None]


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("rest", ["inductor", "eager"])
@pytest.mark.parametrize("rank", [R, 0])
@pytest.mark.parametrize("m", [1, 16, 100, 1000])
@pytest.mark.parametrize("name", ENDS)
def test_as_accurate_as_eager(name: str, m: int, rank: int, rest: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    count, end = ENDS[name]
    n = 1536
    members = [
        (drawn(n, K, scale=K**-0.5), *((drawn(rank, K, scale=K**-0.5), drawn(n, rank, scale=0.25)) if rank else ()))
        for _ in range(count)
    ]
    x, z = drawn(m, K), drawn(m, n)

    def model(x: torch.Tensor, z: torch.Tensor, members: Members) -> Any:
        return end([product(x, *each) for each in members], z)

    kinds = ["auto", *(("inline", "split", "two_pool") if rank else ("concat", "horizontal") if count > 1 else ())]
    exact = model(x.double(), z.double(), [tuple(t.double() for t in each) for each in members])
    plain = model(x, z, members)
    for kind in kinds:
        torch._dynamo.reset()
        options = {"epilogues": "always", "schedule": kind, "rest": rest, "on_error": "raise"}
        compiled = torch.compile(model, backend="fusioncc", dynamic=False, options=options)
        with torch.no_grad():
            got = compiled(x, z, members)
        every = [each if isinstance(each, tuple) else (each,) for each in (got, plain, exact)]
        for one, eager, true in zip(*every, strict=True):
            assert (one.dtype, one.shape) == (eager.dtype, eager.shape)
            assert error(one, true.double()) <= 1.1 * error(eager, true.double()) + 1e-6
        (plan,) = fusioncc.plan_of(compiled)
        for group in plan.groups if kind != "auto" else ():
            assert (group.schedule.kind, len(group.epilogues)) == (kind, 1)


@pytest.mark.parametrize("kind", ["inline", "split", "two_pool"])
def test_one_plan_serves_any_number_of_rows(kind: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    members = [(drawn(1536, K, scale=K**-0.5), drawn(R, K, scale=K**-0.5), drawn(1536, R, scale=0.25)) for _ in "pq"]

    def model(x: torch.Tensor, z: torch.Tensor, members: Members) -> Any:
        p, q = (product(x, *each) for each in members)
        return f.silu(p) * q + z

    options = {"epilogues": "always", "schedule": kind, "on_error": "raise"}
    compiled = torch.compile(model, backend="fusioncc", options=options)
    for m in (16, 2, 100, 1000):
        x, z = drawn(m, K), drawn(m, 1536)
        for each in (x, z):
            torch._dynamo.mark_dynamic(each, 0)
        exact = model(x.double(), z.double(), [tuple(t.double() for t in each) for each in members])
        assert error(compiled(x, z, members), exact) <= 1.1 * error(model(x, z, members), exact) + 1e-6
    (plan,) = fusioncc.plan_of(compiled)
    assert plan.groups[0].m_symbol and [len(each.mains) for each in plan.groups[0].epilogues] == [2]


def steps(value: torch.Tensor) -> list[int]:
    """Strides between elements: that of a dimension of one element is another in eager than in torch.compile."""
    return [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]


@pytest.mark.parametrize("rest", ["inductor", "eager"])
@pytest.mark.parametrize("rank", [R, 0])
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embeddings_are_as_accurate_as_eager(name: str, rank: int, rest: str) -> None:
    torch.manual_seed(0)
    heads, d, batch, length, own = ROTARY[name]
    members = [
        (drawn(n * d, K, scale=K**-0.5), *((drawn(rank, K, scale=K**-0.5), drawn(n * d, rank)) if rank else ()))
        for n in heads
    ]
    x, angles = drawn(batch, length, K), torch.randn(own, length, d, device="cuda")

    def model(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, members: Members) -> tuple[torch.Tensor, ...]:
        products = [product(x, *each) for each in members]
        q, k, v = (each.view(batch, length, -1, d).transpose(1, 2) for each in products)
        return embedded(q, cos, sin), embedded(k, cos, sin), v

    given = (x, angles.cos().bfloat16(), angles.sin().bfloat16())
    plain = model(*given, members)
    exact = model(*(each.double() for each in given), [tuple(t.double() for t in each) for each in members])
    for kind in ("auto", *(("inline", "split", "two_pool") if rank else ("concat", "horizontal"))):
        torch._dynamo.reset()
        options = {"epilogues": "always", "schedule": kind, "rest": rest, "on_error": "raise"}
        compiled = torch.compile(model, backend="fusioncc", dynamic=False, options=options)
        with torch.no_grad():
            got = compiled(*given, members)
        for one, eager, true in zip(got, plain, exact, strict=True):
            assert (one.dtype, one.shape, steps(one)) == (eager.dtype, eager.shape, steps(eager))
            assert error(one, true) <= 1.1 * error(eager, true) + 1e-6
        (plan,) = fusioncc.plan_of(compiled)
        for group in plan.groups if kind != "auto" else ():
            assert (group.schedule.kind, [each.head for each in group.epilogues]) == (kind, [d, d])
