"""The results of a graph in fp64, and how far from them a kernel may be: about as far as eager."""

from typing import Any

import torch
from torch import fx

from fusioncc.graph import CASTS

HALVES = (torch.bfloat16, torch.float16)
FLOOR = 2e-6
"""An error relative to the RMS of the result that fp32 may always have."""
FEW = 512
"""Elements, below which the RMS of two roundings of equal quality may differ by more than a tenth."""


def widened(value: Any) -> Any:
    """A floating tensor or dtype as fp64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


class Exact(fx.Interpreter):
    """Runs a graph in fp64: casts between floats change nothing, constants are as their dtype has them."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in CASTS:
            dtype = kwargs.get("dtype") or (args[1] if len(args) > 1 else args[0].dtype)
            return args[0].to(widened(dtype))
        return fx.node.map_aggregate(super().call_function(target, *self._wide(target, args, kwargs)), widened)

    def _wide(self, target: Any, args: Any, kwargs: Any) -> Any:
        made = any(isinstance(each, torch.Tensor) for each in args)
        return (fx.node.map_aggregate(args, widened), fx.node.map_aggregate(kwargs, widened) if made else kwargs)


def exact_results(module: fx.GraphModule, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a graph gives in fp64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return list(Exact(module).run(*map(widened, arguments)))
    finally:
        torch.set_default_dtype(default)


def errors(value: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """RMS and maximum of the error relative to the RMS of the exact result, or to 1 where that is smaller: what cancels
    leaves the noise of what went in. Infinite where only one is a number."""
    value, exact = value.double().flatten(), exact.double().flatten()
    same = (value == exact) | (value.isnan() & exact.isnan())
    error = torch.where(same, 0.0, value - exact).nan_to_num(torch.inf, torch.inf, torch.inf)
    size = exact[exact.isfinite()].square().mean().sqrt().nan_to_num(1.0).clamp(min=1.0)
    return (error.square().mean().sqrt() / size).item(), (error.abs().max() / size).item()


def luck(module: fx.GraphModule) -> float:
    """The last bit of the narrowest float in a graph, by which eager may be right in a few elements by chance."""
    values = (node.meta.get("val") for node in module.graph.nodes)
    dtypes = {each.dtype for each in values if isinstance(each, torch.Tensor) and each.is_floating_point()}
    return max((torch.finfo(each).eps for each in dtypes), default=0.0)


def check_accuracy(name: str, fused: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, chance: float) -> None:
    """Whole numbers are equal to the exact ones, floats as near them as eager's, with some slack; ``chance`` is what a
    few elements may be off."""
    if not exact.numel():
        return
    if not exact.is_floating_point():
        assert torch.equal(fused, exact), f"{name}: {fused} is not {exact}"
        return
    (rms, worst), (plain_rms, plain_worst) = errors(fused, exact), errors(plain, exact)
    message = f"{name}: error {rms:.2e}, at most {worst:.2e}; eager has {plain_rms:.2e}, {plain_worst:.2e}"
    floor = FLOOR if exact.numel() >= FEW else FLOOR + chance
    assert rms <= 1.1 * plain_rms + floor, message
    assert worst <= 3.0 * plain_worst + 4 * floor, message
