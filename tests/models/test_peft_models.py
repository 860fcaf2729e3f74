"""Real models with PEFT adapters: the groups a person would mark, through both doors, and outputs against fp64."""

from operator import attrgetter

import pytest
import torch

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.plan import Plan
from tests.models.builders import ATTENTION, MLP, Case, build, in_fp64, logits, marked, rms, tokens
from tests.shown import shown

ALL_SEVEN = (
    {"q_proj": 1, "k_proj": 1, "v_proj": 1},
    {"o_proj": 1},
    {"gate_proj": 1, "up_proj": 1},
    {"down_proj": 1},
)
THREE = ({"q_proj": 1, "k_proj": 0, "v_proj": 1}, {"gate_proj": 0, "up_proj": 0}, {"down_proj": 1})
CONV1D = ({"c_attn": 1}, {"c_proj": 1}, {"c_fc": 1}, {"c_proj": 1})
UNUSUAL = ("q_proj", "v_proj", "down_proj")
CASES = (
    Case("llama-r8-fp32-inline", "llama", 8, ALL_SEVEN, schedule="inline"),
    Case("llama-r4-bf16-split", "llama", 4, ALL_SEVEN, fp32_adapters=False, schedule="split"),
    Case("llama-r64-fp32", "llama", 64, ALL_SEVEN, head_dim=64),
    Case("llama-r64-bf16-inline", "llama", 64, ALL_SEVEN, fp32_adapters=False, schedule="inline", head_dim=64),
    Case("llama-three-rslora", "llama", 8, THREE, targets=UNUSUAL, lora={"use_rslora": True}),
    Case("qwen2-r8-fp32-split", "qwen2", 8, ALL_SEVEN, schedule="split"),
    Case("qwen2-three-bias", "qwen2", 4, THREE, fp32_adapters=False, targets=UNUSUAL, lora={"bias": "lora_only"}),
    Case(
        "gpt2-r8-fp32",
        "gpt2",
        8,
        CONV1D,
        targets=("c_attn", "c_proj", "c_fc"),
        lora={"fan_in_fan_out": True, "lora_bias": True},
    ),
    Case(
        "gpt2-r4-bf16-inline",
        "gpt2",
        4,
        CONV1D,
        fp32_adapters=False,
        schedule="inline",
        layers=2,
        targets=("c_attn", "c_proj", "c_fc"),
        lora={"fan_in_fan_out": True},
    ),
)
MARGIN = 1.1
"""Largest RMS error over that of eager; another order of summation is allowed, a lost rounding is not."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    """Dynamo makes a number dynamic that it has seen with two values (a scaling): each model is to be the first one."""
    torch.compiler.reset()


@pytest.mark.parametrize("case", shown(CASES, 1, attrgetter("name")))
def test_groups_and_outputs(case: Case) -> None:
    model, ids = build(case), tokens()
    offline = fusioncc.plan(model, (ids,), kwargs={"use_cache": False}, schedule=case.schedule, on_error="raise")
    compiled = torch.compile(
        model, backend=backend, options={"schedule": case.schedule, "on_error": "raise"}, fullgraph=True
    )
    got = logits(compiled, ids)
    (at_run_time,) = fusioncc.plan_of(compiled)

    assert marked(offline) == list(case.layer) * case.layers
    assert marked(at_run_time) == list(case.layer) * case.layers
    assert offline.fingerprint == at_run_time.fingerprint
    assert not offline.rejections
    check_schedules(at_run_time, case)

    exact = logits(in_fp64(model), ids)
    eager = logits(model, ids)
    assert rms(exact - eager) > 0
    assert rms(got - exact) <= MARGIN * rms(eager - exact)


def check_schedules(plan: Plan, case: Case) -> None:
    """Every group with a branch runs an emitted kernel of the schedule asked for, with the adapters' rank and dtype;
    one without may share a launch where the planner is free to choose."""
    for group in plan.groups:
        if not group.branches:
            assert group.schedule.kind in (
                ("library", "concat", "horizontal") if case.schedule == "auto" else ("library",)
            )
            continue
        assert group.insertion == "call"
        assert group.schedule.kind == case.schedule or (case.schedule == "auto" and group.schedule.kind != "library")
        downs = [group.members[branch.down] for branch in group.branches]
        assert {down.n for down in downs} == {case.rank}
        assert {down.weight.dtype for down in downs} == {"fp32" if case.fp32_adapters else "bf16"}


def test_every_target_of_llama_is_covered() -> None:
    assert {name for group in ALL_SEVEN for name in group} == set(ATTENTION + MLP)
