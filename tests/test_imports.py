"""Imports flow down only: every module has a layer, and imports nothing above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the top. A name covers the modules below it unless a longer name is listed.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "fusioncc",
        "__main__",
        "cli",
        "dump",
        "plots",
        "targets",
        "api",
        "backend",
        "fusion_pass",
        "records",
        "mark_cache",
        "shapes_command",
        "devices_command",
        "cache_command",
        "tune_command",
        "tune_others",
        "settings",
        "histogram",
    ),
    ("pipeline", "report", "traffic_report", "capture"),
    ("chain_report",),
    ("passes",),
    ("tuning",),
    ("autotune",),
    ("codegen", "runtime", "cost_models"),
    ("plan", "in_words", "schedule", "config", "calibration", "codegen.launch", "descriptors", "packing", "vendor"),
    ("group", "device"),
    ("chain",),
    ("operand",),
    ("profile_file",),
    ("datasheets",),
    ("figures",),
    ("sizes",),
    ("graph",),
    ("decision", "errors", "seam"),
)
BLIND = ("codegen", "runtime", "cost_models")
"""Of one layer, and not to import each other."""
UPWARD = {("plan", "report")}
"""Allowed upward, inside a function only: a plan prints itself."""
TORCH_FREE = (
    "autotune",
    "calibration",
    "chain",
    "chain_report",
    "codegen",
    "cost_models",
    "config",
    "datasheets",
    "decision",
    "descriptors",
    "device",
    "errors",
    "figures",
    "group",
    "in_words",
    "operand",
    "packing",
    "plan",
    "profile_file",
    "report",
    "schedule",
    "traffic_report",
    "tuning",
    "vendor",
)


def level_of(module: str) -> tuple[int, str]:
    """Layer number (0 is the top) and layer name of a module such as ``codegen.launch``; KeyError when it has none."""
    levels = {name: level for level, names in enumerate(LAYERS) for name in names}
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in levels:
            return levels[name], name
    raise KeyError(f"{module} has no layer: add it to LAYERS")


def sources() -> dict[str, Path]:
    """Every module of the package, by its name without the leading ``fusioncc.``."""
    folders = {"": ROOT / "fusioncc", "passes.": ROOT / "passes", "cost_models.": ROOT / "cost_models"}
    found = {}
    for prefix, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder)
            if inner.parts[0] in ("passes", "cost_models"):  # the links; some Pythons follow them
                continue
            parts = [*prefix.rstrip(".").split("."), *inner.with_suffix("").parts]
            name = ".".join(part for part in parts if part and part != "__init__")
            found[name or "fusioncc"] = path
    return found


def imports(tree: ast.Module) -> list[tuple[str, bool]]:
    """Absolute names of everything imported, and whether inside a function; type-checking blocks count like others."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names += [(f"{node.module}.{alias.name}", id(node) in inside) for alias in node.names]
    return names


def violations(module: str, tree: ast.Module) -> list[str]:
    """What is wrong with the imports of one module, in words."""
    level, layer = level_of(module)
    wrong = []
    for name, lazy in imports(tree):
        top, _, rest = name.partition(".")
        if top in ("torch", "triton") and layer.split(".")[0] in TORCH_FREE:
            wrong.append(f"{module} imports {name}")
        if top in ("passes", "cost_models"):
            wrong.append(f"{module} imports {name} under its bare name")
        if top != "fusioncc" or not rest:
            continue
        other_level, other = level_of(rest)
        upward = other_level < level and not (lazy and (layer, other) in UPWARD)
        sideways = other != layer and layer in BLIND and other in BLIND
        if upward or sideways:
            wrong.append(f"{module} imports {name}, which is {'above' if upward else 'beside'} it")
    return wrong


@pytest.mark.parametrize("module", sources())
def test_module_imports_only_what_is_below(module: str) -> None:
    assert violations(module, ast.parse(sources()[module].read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("module", "line", "reason"),
    [
        ("group", "from fusioncc.plan import Plan", "above"),
        ("codegen.inline", "from fusioncc.cost_models import rank", "beside"),
        ("plan", "from fusioncc.report import render", "above"),
        ("cost_models.tiles", "import torch", "imports torch"),
        ("cost_models.tiles", "def f():\n    from triton import jit", "imports triton"),
        ("api", "import passes", "bare name"),
    ],
)
def test_a_wrong_import_is_found(module: str, line: str, reason: str) -> None:
    (found,) = violations(module, ast.parse(line))
    assert reason in found


def test_a_module_without_a_layer_is_an_error() -> None:
    with pytest.raises(KeyError, match="add it to LAYERS"):
        violations("helpers", ast.parse(""))


def test_planning_vocabulary_loads_neither_torch_nor_triton() -> None:
    names = [f"fusioncc.{name}" for name in sources() if level_of(name)[1].split(".")[0] in TORCH_FREE]
    script = f"import sys\nimport {', '.join(names)}\nprint(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["passes", "cost_models"])
def test_a_bare_import_names_the_right_one(package: str) -> None:
    result = subprocess.run([sys.executable, "-c", f"import {package}"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"fusioncc.{package}" in result.stderr.splitlines()[-1]
