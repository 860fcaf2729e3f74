"""On a card: a model is tuned while it is compiled, and from then on every door finds what was measured."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import fusioncc
from fusioncc.tuning.database import database
from fusioncc.tuning.key import Versions


class Adapted(nn.Module):
    """``X @ W + 2 (X @ A) @ B``, bf16."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("w", (1024, 4096)), ("a", (1024, 16)), ("b", (16, 4096))):
            value = torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / shape[0] ** 0.5
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + 2.0 * ((x @ self.a) @ self.b)


@pytest.mark.timeout(600)
def test_what_is_measured_runs_and_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path))
    model, x = Adapted(), torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    tuned = fusioncc.optimize(model, (x,), autotune="quick", autotune_seconds=200.0, on_error="raise")
    (group,) = fusioncc.plan_of(tuned)[0].groups
    ((_, entry),) = database().listed().entries
    assert entry.candidates >= 4 and entry.key.versions == Versions.now()
    assert entry.key.card.name == torch.cuda.get_device_name()
    assert 1.0 < entry.time.us <= entry.library.us < 1000.0
    assert group.schedule == entry.schedule and group.why.startswith("measured")
    torch._dynamo.reset()
    again = fusioncc.optimize(model, (x,), on_error="raise")
    assert [each.schedule for each in fusioncc.plan_of(again)[0].groups] == [entry.schedule]
    torch._dynamo.reset()
    alone = fusioncc.optimize(model, (x,), deterministic=True, on_error="raise")
    assert "measured" not in fusioncc.plan_of(alone)[0].groups[0].why
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.double())
        for each in (tuned, again, alone):
            assert (each(x).double() - wanted).norm() < 0.01 * wanted.norm()
