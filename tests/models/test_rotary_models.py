"""Real models whose q and k end with their rotary embedding: through both doors, and outputs against fp64."""

import pytest
import torch

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.chain import ROTATE_HALF
from fusioncc.plan import Plan
from tests.models.builders import Case, build, in_fp64, logits, rms, tokens

CASES = {
    "llama, split": (Case("rotary-llama", "llama", 8, (), schedule="split"), 1, 6),
    "llama, sequences": (Case("rotary-llama-4", "llama", 4, (), fp32_adapters=False, schedule="inline"), 3, 5),
    "llama, large heads": (Case("rotary-llama-64", "llama", 8, (), schedule="inline", head_dim=64), 2, 6),
    "qwen2, biases": (Case("rotary-qwen2", "qwen2", 8, (), schedule="inline"), 2, 6),
    "llama, one position": (Case("rotary-llama-1", "llama", 8, (), schedule="inline"), 4, 1),
}
MARGIN = 1.1
"""Largest RMS error over that of eager; what is rounded once less may be closer."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def turned(plan: Plan) -> list[tuple[str, int]]:
    """The products whose heads are rotated, by the last part of their module, with the size of a head."""
    ends = [(group, each) for group in plan.groups for each in group.epilogues]
    turning = [(group, each) for group, each in ends if any(op.target == ROTATE_HALF for op in each.chain.ops)]
    names = [(group.members[main].source, each.head) for group, each in turning for main in each.mains]
    return [(next(part for part in name.split(".") if part.endswith("_proj")), head) for name, head in names]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_q_and_k_end_with_their_embedding(name: str) -> None:
    case, batch, length = CASES[name]
    model, ids = build(case), tokens(batch, length)
    options = {"schedule": case.schedule, "epilogues": "always", "on_error": "raise"}
    offline = fusioncc.plan(model, (ids,), kwargs={"use_cache": False}, **options)
    compiled = torch.compile(model, backend=backend, options=options, fullgraph=True, dynamic=False)
    got = logits(compiled, ids)
    (at_run_time,) = fusioncc.plan_of(compiled)
    for plan in (offline, at_run_time):
        assert turned(plan) == [("q_proj", case.head_dim), ("k_proj", case.head_dim)]
        assert "rotate_half" in str(plan)
    exact = logits(in_fp64(model), ids)
    assert rms(got - exact) <= MARGIN * rms(logits(model, ids) - exact)
