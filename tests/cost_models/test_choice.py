"""What the planner chose against every schedule forced by name, as ``benchmarks/results/lora_linear.json`` has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fusioncc.autotune import pick, rank
from fusioncc.codegen.emission import KINDS
from fusioncc.device import get_device
from tests.cost_models.groups import lora

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "lora_linear.json"
ROWS = json.loads(RESULTS.read_text())["rows"]
H200 = get_device("h200")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "x".join(map(str, row["shape"])))
def test_the_choice_is_nearly_the_fastest(row: dict[str, Any]) -> None:
    measured = {kind: row[kind] for kind in KINDS if kind in row}
    assert len(measured) == 7
    assert row["fusioncc"] <= 1.04 * min(measured.values())
    group = lora(*row["shape"])
    assert pick(rank(group, H200), group).kind == row["schedule"]
