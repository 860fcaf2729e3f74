"""Equal groups are emitted once, and each keeps its own operands."""

from typing import Any

import pytest
import torch

from fusioncc.capture import capture
from fusioncc.codegen import emit
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.passes import emit_groups as emitting
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.pipeline import find
from fusioncc.plan import GroupPlan
from tests.passes.models import Model, t


def planned() -> tuple[GroupPlan, ...]:
    """Three groups of two products with a branch each; in the last of them both main products have one weight."""

    def function(s: Any, x: torch.Tensor) -> list[torch.Tensor]:
        outs = []
        for at, second in enumerate(("v0", "v1", "w2")):
            x = x.relu() + at
            outs += [x @ getattr(s, f"w{at}") + (x @ s.a) @ s.b, x @ getattr(s, second) + (x @ s.a) @ s.b]
        return outs

    weights = {name: t(64, 96) for name in ("w0", "w1", "w2", "v0", "v1")}
    graph = capture(Model(function, a=t(64, 4), b=t(4, 96), **weights), (t(6, 64),)).graph
    setting = Setting(Options(schedule="inline"), get_device("h200"), Accepted("runnable"))
    return plan_groups(find(graph, setting.options).groups, setting)[0]


def test_equal_groups_are_emitted_once_and_equal_what_each_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(emitting, "emit", lambda *args, **named: (calls.append(args), emit(*args, **named))[1])
    groups = planned()
    assert len({group.signature() for group in groups}) == 1
    emitted = emitting.emit_groups(groups, "raise")
    assert len(calls) == 2
    first, second, shared = emitted.groups
    assert first.kernel == second.kernel != shared.kernel
    for group in emitted.groups:
        assert emitted.modules[group.name] == emitting.module_of(group, trace=False)
    assert len(emitted.modules["g2"].operands) == len(emitted.modules["g0"].operands) - 1
