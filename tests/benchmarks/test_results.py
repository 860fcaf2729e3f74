"""What the model says now of ``benchmarks/results/cost_model.json``, and how well it chooses among what was timed."""

import json
from pathlib import Path
from typing import Any

import pytest
from accuracy import summary
from chain_cases import BY_NAME
from cost_model import predicted
from layers import LAYERS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
RESULTS = FOLDER / "cost_model.json"
TIMED = ("lora_linear", "bundles", "gate_up", "llama_lora", "llama_lora_fp32")
CHAINS = FOLDER / "chains.json"


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """The accuracy of each part of the data, predicted anew."""
    body = json.loads(RESULTS.read_text())
    return {each["part"]: each for each in summary({"rows": [predicted(row) for row in body["rows"]]})}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["all", "Llama-3-8B, tuned on", "held out"])
def test_the_model_ranks_and_chooses_what_was_measured(found: dict[str, dict[str, Any]], part: str) -> None:
    accuracy = found[part]
    assert accuracy["correlation"] >= 0.85
    assert accuracy["regret"] <= 1.06 and accuracy["worst_regret"] <= 1.25
    assert accuracy["error"] <= 0.2


@pytest.mark.exhaustive
def test_every_group_was_measured(found: dict[str, dict[str, Any]]) -> None:
    assert found["all"]["groups"] == len(LAYERS) >= 60
    assert found["all"]["candidates"] >= 60 * len(LAYERS)


@pytest.mark.exhaustive
def test_the_kinds_that_are_chosen_are_predicted_well(found: dict[str, dict[str, Any]]) -> None:
    for kind in ("library", "concat", "split", "inline"):
        assert found[kind]["error"] <= 0.2 and found[kind]["regret"] <= 1.06


@pytest.mark.parametrize("name", TIMED)
def test_nothing_wrong_was_timed(name: str) -> None:
    no_column_is_far_from_eager(FOLDER / f"{name}.json")


@pytest.mark.skipif(not CHAINS.exists(), reason="not measured yet")
def test_no_chain_is_wrong_and_one_kernel_is_one() -> None:
    no_column_is_far_from_eager(CHAINS)
    body = json.loads(CHAINS.read_text())
    assert {row["case"] for row in body["rows"]} == set(BY_NAME)
    assert all(row["fusioncc_kernels"] == row.get("fusioncc_eager_kernels", 1) == 1 for row in body["rows"])
    assert (body["launches"]["plain"], body["launches"]["fused"]) == (18, 15)
    assert body["launches"]["fused_error"] <= 1.2 * body["launches"]["plain_error"]


def no_column_is_far_from_eager(path: Path) -> None:
    """No column of a row is further from the exact result than 1.2 times eager."""
    for row in json.loads(path.read_text())["rows"]:
        errors = {column: row[column] for column in row if column.endswith("_error") and column != "gemm_alone_error"}
        assert len(errors) >= 3 and max(errors.values()) <= 1.2 * row["eager_error"]
