"""The chains that benchmarks/chains.py times: one kernel each, with the bytes that are known by hand; and its table."""

import json
from pathlib import Path
from typing import Any

import chains
import pytest
import tables
import torch
from chain_cases import CASES, Case, Tensors

import fusioncc

MIB = 1 << 20
WIDE = 64 * MIB
"""[8192, 4096] in bf16."""
ROW, ROWS = 4096 * 2, 8192 * 2
"""A vector along a row, and one along a column."""
BYTES = {
    "silu_mul": (120 * MIB, 72 * MIB),
    "silu_mul_fp8": ((48 + 72 + 48 + 48 + 36) * MIB, 60 * MIB),
    "silu_mul_int8": ((48 + 72 + 48 + 48 + 48 + 36) * MIB, 60 * MIB),
    # to fp32; square; mean; plus; rsqrt; times; to bf16; times
    "rms_norm": ((3 + 4 + 2 + 4 + 3 + 2) * WIDE + (1 + 2 + 2 + 1) * 8192 * 4 + ROW, 2 * WIDE + ROW),
    "layer_norm_gelu": (4 * WIDE + 2 * ROW, 2 * WIDE + 2 * ROW),
    "masked_softmax": ((64 + 2 + 64 + 64 + 128 + 128 + 64) * MIB, (64 + 2 + 64) * MIB),
    # sigmoid; times; from 1; tanh; times; plus; plus; clamp; times; times; abs; plus
    "twelve_ops": ((2 + 3 + 2 + 2 + 3 + 3 + 3 + 2 + 2 + 2 + 2 + 3) * WIDE, 7 * WIDE),
    "row_vector": (6 * WIDE + ROW, 2 * WIDE + ROW),
    "column_vector": (6 * WIDE + ROWS, 2 * WIDE + ROWS),
    "scalar": (6 * WIDE + 2, 2 * WIDE + 2),
}
SHOWN = ("silu_mul_fp8", "masked_softmax")
"""Cases in the suite; the others are among the exhaustive tests."""
SUMS = ("rms_norm", "add_rms_norm", "layer_norm_gelu", "masked_softmax")


class Model(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, *given: torch.Tensor) -> Tensors:
        return self.case.outputs(given)


def drawn(case: Case, device: str) -> Tensors:
    return case.inputs(lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device=device), case.size)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in SHOWN else pytest.mark.exhaustive) for case in CASES],
)
def test_a_case_is_one_chain_of_known_bytes(case: Case) -> None:
    given = drawn(case, "meta")
    exported = torch.export.export(Model(case), given, strict=False)
    (chain,) = fusioncc.plan(exported, given, chains="always").chains
    assert chain.claimed and chain.after.kernels == 1
    assert chain.after.bytes == sum(tensor.nbytes for tensor in (*given, *case.outputs(given)))
    if case.name in BYTES:
        assert (chain.before.bytes, chain.after.bytes) == BYTES[case.name]
    rounding = fusioncc.plan(exported, given, chains="always", numerics="eager", rest="eager")
    whole = [each for each in rounding.chains if each.after.bytes == chain.after.bytes]
    assert bool(whole) == (case.name not in SUMS)
    assert any("no sum along rows" in each.reason for each in rounding.rejections) == (case.name in SUMS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_rounds_nothing(case: Case) -> None:
    given = chains.drawn(case, "cpu")
    exact = case.exact(given)
    assert all(tensor.dtype == torch.float64 for tensor in exact)
    assert 0 < chains.farthest(case.outputs(given), exact) < 0.04


def test_the_size_of_the_issue() -> None:
    assert [tuple(tensor.shape) for tensor in drawn(CASES[0], "meta")] == [(1024, 12288)] * 2
    assert [case.name for case in CASES if case.cached] == ["silu_mul", "silu_mul_fp8", "silu_mul_int8"]


@pytest.mark.exhaustive
def test_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "settings", lambda: None)
    out = tmp_path / "dry.json"
    columns = "eager,fusioncc,fusioncc_eager"
    chains.main(["--dry", "--only", "silu_mul_fp8,rms_norm", "--columns", columns, "--out", str(out)])
    body = json.loads(out.read_text())
    quantised, normalised = body["rows"]
    assert quantised["fusioncc_eager_error"] == quantised["eager_error"] >= quantised["fusioncc_error"]
    assert "no sum along rows" in normalised["fusioncc_eager_refused"] and "fusioncc_eager_error" not in normalised
    assert body["launches"]["executions"] == 3 and len(body["launches"]["chains"]) == 1
    assert body["launches"]["fused_error"] <= 1.2 * body["launches"]["plain_error"]


def test_the_table(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "label": "SiLU·mul", "inputs": "memory", "before_mib": 120.0, "after_mib": 72.0, "copied_bytes": 72 * MIB,
        "eager": 40.0, "eager_spread": 0.5, "compile": 22.0, "fusioncc": 20.0, "fusioncc_eager_refused": "sums",
        "copy": 19.0, "copy_gbs": 3974, "eager_kernels": 2, "compile_kernels": 1, "fusioncc_kernels": 1,
        "eager_error": 2e-3, "compile_error": 1e-3, "fusioncc_error": 1e-3,
        "eager_of_copy_percent": 47.5, "compile_of_copy_percent": 86.4, "fusioncc_of_copy_percent": 95.0,
    }  # fmt: skip
    counted = {"executions": 3, "plain": 18, "fused": 15}
    facts = {"card": "CARD", "driver": "1", "torch": "2", "triton": "3", "date": "2026-01-02", "command": "it"}
    body = {**facts, "unit": "us", "rows": [row], "note": chains.note(counted)}
    (tmp_path / "chains.json").write_text(json.dumps(body))
    made = tables.filled("<!-- table: chains -->\n<!-- end of table -->\n", tmp_path)
    assert "| SiLU·mul | memory | 120 | 72 | 2 / 1 / 1 | 19 | 3974 | 40 ± 0.5 | 22 | 20 | refused |" in made
    assert "| 48 / 86 / 95 / - | 0.50x | 0.91x | 2.0e-03 / 1.0e-03 / 1.0e-03 / - |" in made
    assert "In us; CARD, driver 1, torch 2, triton 3, 2026-01-02: `it`.\n3 executions of an FFN" in made
    assert "launch 18 kernels plain and 15 through fusioncc." in made
