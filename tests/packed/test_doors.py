"""Packing through every door, in plans and dumps, and only when it was asked for."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fusioncc
from fusioncc import FusionPass, Options
from fusioncc.api import dump_data
from fusioncc.backend import fusioncc as backend
from fusioncc.capture import capture
from fusioncc.cli import app
from fusioncc.dump import write
from fusioncc.errors import CaptureError, OptionError, PlanError
from fusioncc.runtime.packed import PackedWeights
from tests.lora_models import close, kinds, rows
from tests.packed.models import BYTES, PACKED, Attention, are_packed, optimized, weights

TARGET = "tests/packed/test_doors.py:factory"


def factory() -> tuple[Attention, tuple[torch.Tensor]]:
    return Attention(), (rows(),)


def test_the_pass_alone(rest: str) -> None:
    model = Attention()
    module = capture(model, (rows(),))
    fusion = FusionPass(Options(schedule="packed", pack_weights=True), form="call" if rest == "eager" else "visible")
    fusion(module.graph)
    module.recompile()
    given = [model.q.weight, model.q.bias, model.k.weight, model.v.weight, model.v.bias]
    close(module(*given, rows()), model(rows()))
    assert are_packed(model) and fusion.packed.packed_bytes == BYTES
    assert fusion.plans[0].groups[0].insertion == "call" and fusion.uuid() is None
    fusion.packed.unpack()
    fusion.packed = PackedWeights()
    close(module(*given, rows()), model(rows()))
    assert not are_packed(model)


@pytest.mark.exhaustive
def test_torch_compile_and_exported_programs_pack_too() -> None:
    model = Attention()
    run = torch.compile(model, backend=backend, options={**PACKED, "rest": "eager"})
    close(run(rows()), model(rows()))
    assert are_packed(model) and fusioncc.packed_of(run).packed_bytes == BYTES
    program = torch.export.export(Attention(), (rows(),))
    assert fusioncc.plan(program, schedule="packed", pack_weights=True).groups[0].schedule.kind == "packed"
    served = optimized(program)
    close(served(rows()), model(rows()))
    assert fusioncc.packed_of(served).packed_bytes == BYTES


def test_nothing_is_packed_that_was_not_asked_for() -> None:
    model = Attention()
    plan = fusioncc.plan(model, (rows(),))
    assert "packed" not in {candidate.kind for candidate in plan.groups[0].candidates}
    run = fusioncc.optimize(model, schedule="packed", rest="eager")
    run(rows())
    assert not are_packed(model) and kinds(run) == [["library"]]
    assert "asked_for" in {each.rule for each in fusioncc.plan_of(run)[0].rejections}
    with pytest.raises(OptionError, match="pack_weights='yes' is not valid; valid values: True, False"):
        fusioncc.optimize(model, pack_weights="yes")
    with pytest.raises(CaptureError, match="a Attention that was not compiled here holds no packed weights"):
        fusioncc.packed_of(model)


def test_once_asked_for_it_is_chosen_where_it_is_predicted_to_win() -> None:
    model = Attention(dtype=torch.bfloat16)
    x = rows(16, dtype=torch.bfloat16)
    (group,) = fusioncc.plan(model, (x,), pack_weights=True, epilogues="never").groups
    (candidate,) = (each for each in group.candidates if each.kind == "packed")
    assert candidate.legal and candidate.predicted_us is not None
    assert group.schedule.kind == min((each.predicted_us, each.kind) for each in group.candidates if each.legal)[1]
    plan = fusioncc.plan(model, (x,), pack_weights=True, numerics="eager")  # of vendor GEMMs alone it is the fastest
    (group,) = plan.groups
    assert (group.schedule.kind, group.tier, group.kernel) == ("packed", "eager", "")
    assert group.after.kernels == 2 and group.before.kernels == 3
    moved = sum(weight.nbytes for weight in weights(model))
    assert any(f"3 parameters move into one buffer [128, 64], {moved} bytes" in note for note in plan.notes)


@pytest.mark.exhaustive
def test_a_plan_is_read_back_and_applied_where_packing_is_allowed() -> None:
    model = Attention()
    plan = fusioncc.plan(model, (rows(),), schedule="packed", pack_weights=True)
    assert fusioncc.Plan.from_json(plan.to_json()) == plan
    run = fusioncc.optimize(model, plan=plan, pack_weights=True, rest="eager", on_error="raise")
    close(run(rows()), model(rows()))
    assert are_packed(model) and kinds(run) == [["packed"]]
    with pytest.raises(PlanError, match="asked_for: packing moves weights into one buffer"):
        FusionPass(Options(on_error="raise"), plan)(capture(Attention(), (rows(),)).graph)


@pytest.mark.exhaustive
def test_a_dump_shows_the_product_and_packs_nothing(tmp_path: Path) -> None:
    model = Attention()
    write(dump_data(model, (rows(),), schedule="packed", pack_weights=True), tmp_path)
    assert "torch.ops.fusioncc.packed" in (tmp_path / "after.txt").read_text()
    assert fusioncc.Plan.from_json((tmp_path / "plan.json").read_bytes()).groups[0].schedule.kind == "packed"
    assert not are_packed(model)
    meta = fusioncc.plan(Attention().to("meta"), (rows(),), schedule="packed", pack_weights=True)
    assert meta.groups[0].schedule.kind == "packed"


@pytest.mark.exhaustive
def test_the_command_line_takes_the_option() -> None:
    asked = CliRunner().invoke(app, ["plan", TARGET, "--schedule", "packed", "--set", "pack_weights=true"])
    assert (asked.exit_code, "g0: packed, tier eager" in asked.output) == (0, True)
    wrong = CliRunner().invoke(app, ["plan", TARGET, "--set", "pack_weights=perhaps"])
    assert (wrong.exit_code, "pack_weights='perhaps' is not valid" in wrong.output) == (2, True)
