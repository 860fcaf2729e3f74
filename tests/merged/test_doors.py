"""Merging through every door, and in plans and dumps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusioncc
from fusioncc import FusionPass, Options
from fusioncc.capture import capture
from fusioncc.dump import write
from fusioncc.errors import CaptureError, PlanError
from fusioncc.runtime.merged import MergedWeights
from fusioncc.schedule import Schedule
from tests.lora_models import close, kinds, rows
from tests.merged.models import BYTES, frozen, optimized
from tests.plans import INLINE


def test_the_pass_alone() -> None:
    model = frozen()
    module = capture(model, (rows(),))
    fusion = FusionPass(Options(schedule="merged", numerics="relaxed"), form="visible")
    fusion(module.graph)
    module.recompile()
    weights = [model.w.weight, model.w.bias, model.a.weight, model.b.weight]
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.merged.merged_bytes == BYTES
    model.a.weight.mul_(2.0)
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.plans[0].groups[0].insertion == "call"
    assert fusion.uuid() is None
    fusion.merged = MergedWeights()
    close(module(*weights, rows())[0], model(rows()))
    assert fusion.merged.merged_bytes == 0


def test_exported_programs_merge_too() -> None:
    model = frozen()
    program = torch.export.export(model, (rows(),))
    assert fusioncc.plan(program, schedule="merged", numerics="relaxed").groups[0].schedule.kind == "merged"
    run = optimized(program)
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"]]


def test_only_what_was_compiled_holds_merged_weights() -> None:
    with pytest.raises(CaptureError, match="a Lora that was not compiled here"):
        fusioncc.merged_of(frozen())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tier": "fp32"}, "merging is of the tier 'relaxed', not 'fp32'"),
        ({"schedule": Schedule("merged", INLINE.pools)}, "gives pools to 'merged', which has none"),
    ],
    ids=["tier", "pools"],
)
def test_an_edited_plan_is_refused(change: dict[str, Any], words: str) -> None:
    plan = fusioncc.plan(frozen(), (rows(),), schedule="merged", numerics="relaxed")
    edited = replace(plan, groups=(replace(plan.groups[0], **change),))
    with pytest.raises(PlanError, match=words):
        FusionPass(Options(numerics="relaxed", on_error="raise"), edited)(capture(frozen(), (rows(),)).graph)


def test_a_plan_says_what_is_held_is_read_back_and_applied(tmp_path: Path) -> None:
    model = frozen()
    plan = fusioncc.plan(model, (rows(),), schedule="merged", numerics="relaxed")
    (group,) = plan.groups
    assert (group.schedule.kind, group.tier, group.kernel) == ("merged", "relaxed", "")
    assert any(f"merged weights hold {BYTES} bytes" in note for note in plan.notes)
    assert group.after.peak_bytes >= BYTES and group.after.kernels == 1
    assert fusioncc.Plan.from_json(plan.to_json()) == plan
    run = fusioncc.optimize(model, plan=plan, numerics="relaxed", rest="eager", on_error="raise")
    close(run(rows()), model(rows()))
    assert kinds(run) == [["merged"]]
    assert FusionPass(plan=plan).uuid() is None
    strict = fusioncc.optimize(model, plan=plan, rest="eager", on_error="raise")
    with pytest.raises(Exception, match="rounding_tier: merging rounds") as caught:
        strict(rows())
    assert PlanError.__name__ in str(caught.value)


def test_a_dump_shows_the_product_and_merges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusioncc.api import dump_data

    monkeypatch.setattr("fusioncc.runtime.merged.merge", lambda *_: pytest.fail("a dump merged weights"))
    write(dump_data(frozen().to("meta"), (rows(),), schedule="merged", numerics="relaxed"), tmp_path)
    assert "torch.ops.fusioncc.merged" in (tmp_path / "after.txt").read_text()
    plan = fusioncc.Plan.from_json((tmp_path / "plan.json").read_bytes())
    assert plan.groups[0].schedule.kind == "merged"


def test_auto_never_merges_and_says_what_it_would_be_worth() -> None:
    plan = fusioncc.plan(frozen(), (rows(),), numerics="relaxed")
    (candidate,) = (each for each in plan.groups[0].candidates if each.kind == "merged")
    assert candidate.legal and candidate.predicted_us is not None
    assert plan.groups[0].schedule.kind != "merged" and not plan.notes
