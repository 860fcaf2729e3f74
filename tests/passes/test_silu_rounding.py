"""The tier ``eager`` for SiLU·mul in bf16, whose exponential is another than eager's: every gate, against eager."""

import pytest
import torch

import fusioncc
from tests.passes.every_gate import SiluMul, check_silu_mul, every_gate, units_apart

EAGER = {"chains": "always", "rest": "eager", "on_error": "raise"}


@pytest.mark.parametrize(("numerics", "near"), [("eager", True), ("fp32", False)])
def test_every_gate(numerics: str, near: bool) -> None:
    """The tier ``fp32``, which rounds once where eager rounds twice, is off far more often: the check has teeth."""
    gate, up = every_gate(16, "cpu")
    compiled = fusioncc.optimize(SiluMul(), numerics=numerics, **EAGER)
    fused = compiled(gate, up)
    (plan,) = fusioncc.plan_of(compiled)
    assert [chain.claimed for chain in plan.chains] == [True]
    if near:
        check_silu_mul(fused, SiluMul()(gate, up))
    else:
        with pytest.raises(AssertionError):
            check_silu_mul(fused, SiluMul()(gate, up))


def test_units() -> None:
    one = torch.tensor([0.0, 1.0, 1.0, -1.0, float("inf"), float("nan"), 1e-40]).bfloat16()
    other = torch.tensor([-0.0, 1.0078125, 0.99609375, -1.0078125, 3.3895e38, float("nan"), -1e-40]).bfloat16()
    assert units_apart(one, other).tolist() == [0, 1, 1, 1, 1, 0, 2]
