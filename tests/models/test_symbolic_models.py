"""A real model whose prompts have any number of sequences and of tokens: one plan, with what tiles end with."""

import pytest
import torch

import fusioncc
from fusioncc.backend import fusioncc as backend
from fusioncc.plan import Plan
from tests.models.builders import Case, build, in_fp64, logits, rms, tokens

PROMPTS = ((2, 6), (3, 17))
CASTS = ("to", "to_copy", "convert_element_type")
MARGIN = 1.1
"""Largest RMS error over that of eager; what is rounded once less may be closer."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def ends(plan: Plan) -> dict[str, list[str]]:
    """What the products of each module end with, by the last part of its name."""
    found = {}
    for group in plan.groups:
        for each in group.epilogues:
            source = group.members[each.mains[0]].source
            name = next(part for part in source.split(".") if part.endswith("_proj"))
            found[name] = [op.stem for op in each.chain.ops if op.stem not in CASTS]
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dynamic", "rest"), [(True, "eager"), (None, "inductor")], ids=["dynamic", "marked"])
def test_a_llama_with_adapters_serves_any_prompt(dynamic: bool | None, rest: str) -> None:
    """``dynamic=True`` makes a number of epsilon too, so that norms stay apart; marked prompts do not."""
    model = build(Case("symbolic-llama", "llama", 8, ()))
    exact, options = in_fp64(model), {"schedule": "inline", "rest": rest, "on_error": "raise"}
    options |= {"epilogues": "always", "norms": "always"}
    compiled = torch.compile(model, backend=backend, options=options, fullgraph=True, dynamic=dynamic)
    for prompt in PROMPTS:
        ids = tokens(*prompt)
        got, wanted, true = (logits(each, marked(ids, dynamic)) for each in (compiled, model, exact))
        assert rms(got - true) <= MARGIN * rms(wanted - true)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    (plan,) = fusioncc.plan_of(compiled)
    found = ends(plan)
    assert sorted(found) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj"]
    assert all("rotate_half" in found[name] for name in ("q_proj", "k_proj"))
    assert found["o_proj"] == found["down_proj"] == ["add"] and found["gate_proj"][-1] == "mul"
    normed = [len(group.mains) for group in plan.groups if group.norm is not None]
    assert normed == ([] if dynamic else [3, 2])


def marked(ids: torch.Tensor, dynamic: bool | None) -> torch.Tensor:
    """The prompt, whose sizes may be others where not all are."""
    for dim in () if dynamic else (0, 1):
        torch._dynamo.mark_dynamic(ids, dim)
    return ids
