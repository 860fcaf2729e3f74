"""What a reader of a plan is told."""

from dataclasses import replace

from fusioncc.decision import Rejected
from fusioncc.plan import Memory, Plan
from fusioncc.report import DECISION_COLUMNS, decisions, render, table
from fusioncc.schedule import Candidate, Schedule
from tests.plans import lora_group, lora_plan, planned

MUTATED = Rejected("no_mutation", "mm_7", "mm_7 reads w, which copy_ writes between the products", "copy w first")


def cells(text: str, heading: str) -> list[list[str]]:
    """Rows of the first table under a heading, without its header."""
    lines = text.split(f"## {heading}\n", 1)[1].split("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def test_a_group_has_one_row_with_everything_that_was_decided() -> None:
    ((*found,),) = cells(decisions(lora_plan()), "Groups")
    row = dict(zip(DECISION_COLUMNS, found, strict=True))
    assert row["group"] == "g0"
    assert row["members"] == "`mm` (mlp.up_proj) + `mm_down`·`mm_up`"
    assert row["shapes"] == "X [64, 4096] bf16<br>W [4096, 28672] bf16 + r=8 bf16"
    assert row["schedule"].startswith("**inline**, tier fp32, kernel k0_inline, inserted as visible<br>main 64x128x64")
    assert row["why"] == "15.1 us less than library: one launch, X read once"
    assert row["estimate"].startswith("62.7 us, 240.0 MiB, 1 launch, bound by dram<br>dram ")
    assert row["before → after"] == "kernels 4 → 1, moved 245.0 MiB → 240.0 MiB, peak 240.0 MiB → 238.0 MiB"
    assert row["runners-up"] == "library 77.8 us (+24 %)"


def test_a_schedule_ruled_out_keeps_its_reason() -> None:
    assert cells(decisions(lora_plan()), "Schedules ruled out") == [
        ["g0", "split", "K=4096 cannot be cut into 7 slices"]
    ]


def test_every_rejection_is_listed_with_rule_node_reason_and_nearest_miss() -> None:
    plain = Rejected("same_lhs", "mm_9", "reads another tensor")
    rows = cells(decisions(lora_plan(rejections=(MUTATED, plain))), "Rejections")
    assert rows == [
        ["no_mutation", "`mm_7`", MUTATED.reason, "copy w first"],
        ["same_lhs", "`mm_9`", "reads another tensor", "none"],
    ]


def test_groups_and_rejections_that_differ_in_names_only_share_a_row() -> None:
    groups = [planned(lora_group(f"g{i}", f"mm_{i}")) for i in range(3)]
    other = planned(replace(lora_group("g3"), m_symbol="s0"))
    rejections = (MUTATED, replace(MUTATED, node="mm_8"))
    text = decisions(lora_plan(*groups, other, rejections=rejections))
    assert [row[0] for row in cells(text, "Groups")] == ["g0, g1, g2", "g3"]
    assert [row[1] for row in cells(text, "Rejections")] == ["`mm_7`, `mm_8`"]


def test_a_symbolic_row_count_is_named() -> None:
    text = decisions(lora_plan(planned(replace(lora_group(), m_symbol="s0*s1"))))
    assert "X [s0*s1 (planned for 64), 4096] bf16" in text


def test_runners_up_are_the_best_of_each_kind_and_unknown_ones_come_last() -> None:
    group = planned(lora_group())
    more = (Candidate("library", True, "", 70.0), Candidate("concat", True, "", None))
    text = decisions(lora_plan(replace(group, candidates=group.candidates + more)))
    assert cells(text, "Groups")[0][-1] == "library 70.0 us (+12 %), concat (no estimate)"


def test_nothing_found_and_nothing_rejected_is_said() -> None:
    text = decisions(Plan("fusioncc.plan/2", "h200", "", (), ()))
    assert "No group of GEMMs was found." in text
    assert "Nothing was rejected." in text


def test_a_fallback_says_why_the_graph_is_unchanged() -> None:
    plan = lora_plan(fallback="RuntimeError: no")
    assert "the original graph runs unchanged, because RuntimeError: no" in decisions(plan)
    assert "the original graph runs unchanged, because RuntimeError: no" in str(plan)


def test_text_of_a_plan_answers_what_why_and_why_not() -> None:
    text = str(lora_plan(rejections=(MUTATED,)))
    assert text == render(lora_plan(rejections=(MUTATED,)))
    assert text.startswith("Plan for h200: 1 group, 1 fused, 1 rejection; 4 kernels before, 1 after.\n")
    for part in (
        "g0: inline (main 64x128x64, 4 warps, 3 stages), tier fp32",
        "mm (mlp.up_proj) + mm_down·mm_up: W [4096, 28672] bf16 + r=8 bf16",
        "why         15.1 us less than library",
        "ruled out   split: K=4096 cannot be cut into 7 slices",
        f"[no_mutation] mm_7: {MUTATED.reason}; nearest miss: copy w first",
        "note: a note",
    ):
        assert part in text


def test_the_peak_of_the_graph_is_a_line_of_its_own() -> None:
    memory = Memory(72 << 20, 48 << 20)
    plan = replace(lora_plan(), before=memory, after=replace(memory, peak_bytes=60 << 20))
    line = "Peak live bytes of the graph 72.0 MiB → 60.0 MiB, beside 48.0 MiB of inputs and parameters."
    assert line in str(plan).splitlines()[:2] and line in decisions(plan).splitlines()
    more = replace(plan, after=replace(memory, held_bytes=50 << 20))
    assert "beside 48.0 MiB → 50.0 MiB of inputs" in str(more)
    assert "Peak live bytes of the graph" not in str(lora_plan()) + decisions(lora_plan())


def test_library_group_names_no_kernel() -> None:
    group = replace(planned(lora_group(), kernel=""), schedule=Schedule("library"), insertion="")
    assert "g0: library, tier fp32\n" in str(lora_plan(group))


def test_table_cells_cannot_break_the_table() -> None:
    assert table(("a", "b"), [("x | y", "two\nlines")]) == ["| a | b |", "| --- | --- |", "| x \\| y | two lines |"]
