"""The version of the emitter changes with everything that emission reads."""

import ast
import shutil
from pathlib import Path

import pytest

from fusioncc.codegen import version


def test_the_emitter_has_another_version_for_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(version.__file__).parents[1]
    shutil.copytree(package / "codegen", tmp_path / "codegen", ignore=shutil.ignore_patterns("__pycache__"))
    for name in version.VOCABULARY:
        shutil.copy(package / f"{name}.py", tmp_path / f"{name}.py")
    monkeypatch.setattr(version, "__file__", str(tmp_path / "codegen" / "version.py"))

    def now() -> str:
        return version.emitter_version.__wrapped__()

    seen = [version.emitter_version(), now()]
    assert seen[0] == seen[1]
    for file in ("codegen/split.py", "schedule.py"):
        with (tmp_path / file).open("a") as opened:
            opened.write("\n")
        seen.append(now())
    (tmp_path / "codegen" / "split.py").rename(tmp_path / "codegen" / "parted.py")
    seen.append(now())
    assert len(set(seen)) == 4


def test_the_emitter_s_version_covers_what_emission_imports() -> None:
    package = Path(version.__file__).parents[1]
    covered = {*version.VOCABULARY, "errors"}
    for path in [*(package / "codegen").glob("*.py"), *(package / f"{name}.py" for name in version.VOCABULARY)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fusioncc."):
                name = (node.module or "").split(".")[1]
                assert name in covered or name == "codegen", f"{path.name} imports {name}"
