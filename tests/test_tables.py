"""Tables in README and docs are what the result files say."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
assert _spec is not None and _spec.loader is not None
tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tables)

RESULT = {
    "card": "CARD",
    "driver": "1.2",
    "torch": "2.11",
    "triton": "3.6",
    "date": "2026-01-02",
    "command": "python benchmarks/llama_lora.py",
    "unit": "ms",
    "rows": [
        {
            "input": "64x1",
            "base_compile": 1.0,
            "base_compile_spread": 0.01,
            "lora_eager": 2.0,
            "lora_compile": 1.32,
            "lora_fusioncc": 1.03,
            "eager_error": 0.0123,
            "compile_error": 0.01,
            "fusioncc_error": 0.009,
        }
    ],
}


def test_every_text_agrees_with_the_results() -> None:
    for path in tables.TEXTS:
        text = path.read_text(encoding="utf-8")
        assert tables.filled(text, ROOT / "benchmarks" / "results") == text, f"run benchmarks/tables.py for {path.name}"


def test_a_marked_table_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "llama_lora.json").write_text(json.dumps(RESULT))
    text = "before\n<!-- table: llama_lora -->\nold\n<!-- end of table -->\nafter\n"
    made = tables.filled(text, tmp_path)
    assert made.startswith("before\n<!-- table: llama_lora -->\n| input | base, compiled |")
    assert "| 64x1 | 1 ± 0.01 | 2 | 1.32 | 1.03 | +32.0 % | +3.0 % | 1.2e-02 / 1.0e-02 / 9.0e-03 |\n" in made
    assert "In ms; CARD, driver 1.2, torch 2.11, triton 3.6, 2026-01-02: `python benchmarks/llama_lora.py`.\n" in made
    assert made.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in made
    assert tables.filled(made, tmp_path) == made


def test_a_table_without_a_result_says_so(tmp_path: Path) -> None:
    text = "<!-- table: llama_lora -->\n<!-- end of table -->\n"
    assert "Not measured yet." in tables.filled(text, tmp_path)
