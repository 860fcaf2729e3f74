"""The wheel holds every package, registers its entry points, and imports from the folder it is installed into."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, without network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, source / name)
    for name in ("fusioncc", "passes", "cost_models"):
        copytree(ROOT / name, source / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    return next(out.glob("*.whl"))


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--no-cache-dir", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def expected_files() -> set[str]:
    """Every Python file of the project's packages, and the data beside them, as the wheel should name it."""
    folders = {
        "fusioncc": ROOT / "fusioncc",
        "fusioncc/passes": ROOT / "passes",
        "fusioncc/cost_models": ROOT / "cost_models",
    }
    files = {"fusioncc/py.typed", *(f"fusioncc/tuned/{path.name}" for path in (ROOT / "fusioncc/tuned").iterdir())}
    for prefix, folder in folders.items():
        inner = (path.relative_to(folder) for path in folder.rglob("*.py"))
        files |= {f"{prefix}/{path.as_posix()}" for path in inner}
    return files


def test_every_folder_with_code_is_a_listed_package() -> None:
    folders = {Path(name).parent.as_posix().replace("/", ".") for name in expected_files() if name.endswith(".py")}
    assert folders == set(PROJECT["tool"]["setuptools"]["packages"])


def test_wheel_holds_every_file_once(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(expected_files())


def test_wheel_registers_the_backend_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    text = archive.read(name).decode()
    assert "[torch_dynamo_backends]\nfusioncc = fusioncc.backend:fusioncc" in text
    assert "[console_scripts]\nfusioncc = fusioncc.cli:main" in text


@pytest.mark.exhaustive
def test_installed_wheel_imports_from_a_fresh_folder(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel))
    files = sorted(name.removesuffix(".py") for name in expected_files() if name.endswith(".py"))
    modules = [name.removesuffix("/__init__").replace("/", ".") for name in files if name != "fusioncc/__main__"]
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        f"import importlib, fusioncc\n"
        f"for name in {modules!r}: print(importlib.import_module(name).__file__)\n"
        f"print(fusioncc.__version__)"
    )
    result = subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *files, version = result.stdout.split()
    assert all(Path(file).is_relative_to(tmp_path / "site") for file in files)
    assert version == PROJECT["project"]["version"]
