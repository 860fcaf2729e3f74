"""Real models whose tiles norm their X: through both doors, and outputs against fp64."""

import pytest
import torch

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.plan import Plan
from tests.models.builders import Case, build, in_fp64, logits, marked, rms, tokens

CASES = {
    "llama": (Case("norm-llama", "llama", 8, (), schedule="inline"), 1, 6),
    "llama, 16-bit adapters": (Case("norm-llama-16", "llama", 4, (), fp32_adapters=False, schedule="inline"), 3, 5),
    "qwen2, biases": (Case("norm-qwen2", "qwen2", 8, (), schedule="inline"), 2, 6),
}
MARGIN = 1.1
"""Largest RMS error over that of eager; what is rounded once less may be closer."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def normed(plan: Plan) -> list[set[str]]:
    """The products of each group behind a norm, by the last part of their module."""
    return [{*each} for each, group in zip(marked(plan), plan.groups, strict=True) if group.norm is not None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ends", ["always", "never"])
@pytest.mark.parametrize("name", CASES)
def test_attention_and_mlp_norm_what_they_read(name: str, ends: str) -> None:
    case, batch, length = CASES[name]
    model, ids = build(case), tokens(batch, length)
    options = {"schedule": case.schedule, "norms": "always", "epilogues": ends, "on_error": "raise"}
    offline = fusioncc.plan(model, (ids,), kwargs={"use_cache": False}, **options)
    compiled = torch.compile(model, backend=backend, options=options, fullgraph=True, dynamic=False)
    got = logits(compiled, ids)
    (at_run_time,) = fusioncc.plan_of(compiled)
    for plan in (offline, at_run_time):
        assert normed(plan) == [{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}]
        assert all(group.norm.rounded for group in plan.groups if group.norm is not None)
        assert "normed by the tiles" in str(plan)
    exact = logits(in_fp64(model), ids)
    assert rms(got - exact) <= MARGIN * rms(logits(model, ids) - exact)
