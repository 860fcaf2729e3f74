"""What a made-up result file says of the model: correlation, regret and error that are known by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import tables
from accuracy import by_group, mean_ranks, sample, spearman, summary

Row = dict[str, Any]
FACTS = {
    "card": "CARD",
    "driver": "1",
    "torch": "2",
    "triton": "3",
    "date": "2026-01-02",
    "command": "it",
    "unit": "us",
}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1.0),
        ([1, 2, 3, 4], [9, 7, 5, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1, 1, 2], [1, 2, 3], 3**0.5 / 2),  # ranks 1.5, 1.5, 3 and 1, 2, 3
        ([7, 7, 7], [1, 2, 3], 0.0),
        ([1, 2, 3], [7, 7, 7], 0.0),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], expected: float) -> None:
    assert spearman(one, other) == pytest.approx(expected)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert mean_ranks([30, 10, 20, 10, 10]) == [5, 2, 4, 2, 2]


def row(family: str, m: int, chosen: int, *timed: tuple[str, float | None, float | None]) -> Row:
    layer = {"family": family, "site": "q", "m": m, "k": 8, "widths": [8], "rank": 4, "bias": False}
    schedules = [
        {"schedule": {"kind": kind}, "predicted": predicted, **({"us": us} if us else {"error": "did not build"})}
        for kind, predicted, us in timed
    ]
    return {"layer": layer, "chosen": chosen, "schedules": schedules}


EIGHT = row(
    "Llama-3-8B", 1, 1,
    ("library", 12.0, 10.0), ("inline", 11.0, 11.0), ("inline", 26.0, 20.0), ("inline", 39.0, 30.0),
    ("split", 44.0, 40.0), ("split", 55.0, 50.0), ("split", 66.0, 60.0), ("k_concat", 4.0, 8.0),
    ("split", 1.0, None),
)  # fmt: skip
"""Errors 0.2, 0, 0.3, 0.3, 0.1, 0.1, 0.1, 0.5. The two best but k_concat have changed places: 1 - 6 * 2 / (8 * 63)."""
SEVEN = row("Qwen2.5-7B", 16, 0, ("inline", 12.0, 15.0), *[("split", 20.0 + at, 10.0 + at) for at in range(6)])
BODY = {**FACTS, "rows": [SEVEN, EIGHT]}


def test_one_group_by_hand() -> None:
    found = sample(EIGHT)
    assert found is not None and len(found.timed) == 8
    assert found.correlation == pytest.approx(1 - 12 / (8 * 63))
    assert found.regret == pytest.approx(1.1)  # k_concat moves weights: it is no rival
    assert sorted(found.errors) == pytest.approx([0, 0.1, 0.1, 0.1, 0.2, 0.3, 0.3, 0.5])


def test_parts_by_hand() -> None:
    parts = {each["part"]: each for each in summary(BODY)}
    assert list(parts) == [
        "all", "Llama-3-8B, tuned on", "held out", "Qwen2.5-7B", "library", "split", "inline", "k_concat",
    ]  # fmt: skip
    everything = parts["all"]
    assert (everything["groups"], everything["candidates"]) == (2, 15)
    assert everything["correlation"] == everything["worst_correlation"] == pytest.approx(1 - 12 / (8 * 63))
    assert everything["regret"] == pytest.approx((1.1 * 1.5) ** 0.5)
    assert (everything["worst_regret"], everything["worst_at"]) == (1.5, "Qwen2.5-7B q, M=16, r=4")
    assert parts["Llama-3-8B, tuned on"]["error"] == pytest.approx(0.15)
    assert parts["held out"]["correlation"] is None  # seven candidates
    assert parts["inline"]["regret"] == 1.0 and parts["inline"]["groups"] == 2
    assert parts["split"]["candidates"] == 9


def test_a_kind_is_judged_by_its_own_least_prediction() -> None:
    found = sample(row("Qwen2.5-7B", 1, 0, ("inline", 2.0, 5.0), ("split", 3.0, 6.0), ("split", 4.0, 3.0)), "split")
    assert found is not None and found.regret == 2.0


def test_median_and_worst_over_groups() -> None:
    up, down = [("split", 1.0 + at, 1.0 + at) for at in range(8)], [("split", 1.0 + at, 9.0 - at) for at in range(8)]
    swapped = [("split", float(at), us) for at, us in zip((2, 1, 3, 4, 5, 6, 7, 8), range(1, 9), strict=True)]
    rows = [row("Llama-3-8B", at, 0, *timed) for at, timed in enumerate((up, down, swapped), start=1)]
    everything = summary({"rows": rows})[0]
    assert everything["correlation"] == pytest.approx(1 - 12 / (8 * 63)) and everything["worst_correlation"] == -1.0


def test_groups_stand_family_by_family() -> None:
    first, second = by_group(BODY)
    assert (first["worst_at"], first["choice"], first["best"]) == ("Llama-3-8B q, M=1, r=4", "inline", "library")
    assert (second["choice_us"], second["best_us"], second["correlation"]) == (15.0, 10.0, None)


def test_the_tables(tmp_path: Path) -> None:
    (tmp_path / "cost_model.json").write_text(json.dumps(BODY))
    marked = (
        "<!-- table: cost_model -->\n<!-- end of table -->\n<!-- table: cost_model_groups -->\n<!-- end of table -->"
    )
    made = tables.filled(marked, tmp_path)
    assert "| all | 2 | 15 | 0.98 | 0.98 | 1.285x | 1.50x | Qwen2.5-7B q, M=16, r=4 |" in made
    assert "| held out | 1 | 7 | - | - | 1.500x |" in made
    assert "| Llama-3-8B q, M=1, r=4 | 8 | 0.98 | inline | 11 | library | 10 | 1.10x | 15% |\n| Qwen2.5-7B" in made
    assert made.count("Of times in us; CARD, driver 1") == 2
