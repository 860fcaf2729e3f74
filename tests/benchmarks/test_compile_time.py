"""Compile times: which caches a column begins with, and a run on a CPU."""

import json
from pathlib import Path
from typing import Any

import compile_time
import pytest
from compile_time import CACHES, COLUMNS, measured


def test_each_column_begins_with_the_caches_that_it_says(tmp_path: Path) -> None:
    begins: dict[str, dict[str, list[str]]] = {}
    told: list[int] = []

    def run(name: str, caches: dict[str, str]) -> dict[str, Any]:
        begins[name] = {cache: sorted(path.name for path in Path(folder).iterdir()) for cache, folder in caches.items()}
        for folder in caches.values():
            (Path(folder) / name).write_text("left")
        return {"seconds": 1.0}

    found = measured(list(COLUMNS), tmp_path, run, lambda found: told.append(len(found)))
    assert list(found) == list(COLUMNS) and told == list(range(1, len(COLUMNS) + 1))
    empty: dict[str, list[str]] = {cache: [] for cache in CACHES}
    assert begins == {
        "compile": empty,
        "untuned": empty,
        "quick_cold": empty,
        "quick_warm": {**empty, "FUSIONCC_CACHE_DIR": ["quick_cold"]},
        "quick_kept": {cache: ["quick_cold"] for cache in CACHES},
        "compile_kept": {cache: ["compile"] for cache in CACHES},
        "max_autotune": empty,
    }


@pytest.mark.parametrize("cold", [{}, {"quick_cold": {"failed": "it took longer than 1 s"}}])
def test_what_has_no_caches_to_begin_with_is_not_timed(tmp_path: Path, cold: dict[str, Any]) -> None:
    found = measured([*cold, "quick_warm"], tmp_path, lambda name, caches: cold[name], lambda found: None)
    assert found["quick_warm"] == {"failed": "quick_cold was not measured before it"}


@pytest.mark.exhaustive
def test_a_column_that_fails_or_takes_too_long_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "column.py"
    monkeypatch.setattr(compile_time, "__file__", str(script))
    for source, said in (
        ("import sys; sys.exit(3)", {"failed": "its process ended with 3"}),
        ("import time; time.sleep(60)", {"failed": "it took longer than 2 s"}),
        ("import sys; print('noise'); print('{\"seconds\": 7, \"said\": \"' + sys.argv[-1] + '\"}')", None),
    ):
        script.write_text(source)
        row = compile_time.in_process("compile", {}, ["--layers", "1"], 2.0 if said else 60.0)
        assert row == (said or {"seconds": 7, "said": "compile"})


@pytest.mark.exhaustive
def test_a_dry_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dry.json"
    compile_time.main(["--dry", "--layers", "1", "--columns", "compile,quick_cold,quick_warm", "--out", str(out)])
    body = json.loads(out.read_text())
    assert body["dry"] and body["input"] == "64x1"
    rows = {row["column"]: row for row in body["rows"]}
    assert [*rows] == ["compile", "quick_cold", "quick_warm"] and all(row["seconds"] > 0 for row in rows.values())
    assert len(rows["quick_cold"]["kinds"]) == 4 and rows["quick_warm"]["measured"] == 0
    lines = [json.loads(line)["column"] for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert lines == ["compile", "quick_cold", "quick_warm"], "each is printed when it is done"
