"""Tiles that norm their X, on a card: held against fp64, and the same bits each time."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as f

import fusioncc
from tests.gpu.test_epilogues import K, Members, R, drawn, error, product

NORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "llama": lambda x, g: g * (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype),
    "rms_norm": lambda x, g: f.rms_norm(x, x.shape[-1:], g),
    "no weight": lambda x, g: f.rms_norm(x, x.shape[-1:]),
}
TURNS = 50
"""Calls with one result: what a loop overwrites while an MMA reads it varies from run to run."""


@pytest.mark.parametrize("rest", ["inductor", "eager"])
@pytest.mark.parametrize("rank", [R, 0])
@pytest.mark.parametrize("m", [1, 16, 64, 100, 1000])
@pytest.mark.parametrize("name", NORMS)
def test_as_accurate_as_eager(name: str, m: int, rank: int, rest: str) -> None:
    torch.manual_seed(0)
    members = [
        (drawn(n, K, scale=K**-0.5), *((drawn(rank, K, scale=K**-0.5), drawn(n, rank, scale=0.25)) if rank else ()))
        for n in (1536, 512, 512)
    ]
    x, g = drawn(m, K, scale=30.0), drawn(K) * 0.2 + 1
    norm = NORMS[name]

    def model(x: torch.Tensor, g: torch.Tensor, members: Members) -> list[torch.Tensor]:
        normed = norm(x, g)
        return [product(normed, *each) for each in members]

    wide = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    scaled = wide if name == "no weight" else wide * g.double()
    exact = [product(scaled, *(each.double() for each in member)) for member in members]
    plain = model(x, g, members)
    for kind in ("inline",) if rank else ("concat", "horizontal"):
        torch._dynamo.reset()
        options = {"norms": "always", "schedule": kind, "rest": rest, "on_error": "raise"}
        compiled = torch.compile(model, backend="fusioncc", dynamic=False, options=options)
        with torch.no_grad():
            got = compiled(x, g, members)
            again = [compiled(x, g, members) for _ in range(TURNS)]
        for one, eager, true in zip(got, plain, exact, strict=True):
            assert error(one, true) <= 1.1 * error(eager, true) + 1e-6
        assert all(torch.equal(one, other) for each in again for one, other in zip(got, each, strict=True))
        (plan,) = fusioncc.plan_of(compiled)
        (group,) = plan.groups
        assert group.schedule.kind == kind and group.norm is not None and group.after.kernels == 1
