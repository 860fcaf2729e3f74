"""Writing a plan and everything it stands on into a folder: graphs before and after, plan, decisions, kernels."""

import re
from pathlib import Path

from fusioncc.api import Planned
from fusioncc.errors import PlanError, TargetError
from fusioncc.plan import Plan
from fusioncc.plots import pictures
from fusioncc.report import decisions

PLAN = "plan.json"


def write(planned: Planned, folder: Path, *, plots: bool = False) -> list[Path]:
    """Write ``before.txt``, ``after.txt``, ``plan.json``, ``decisions.md``, ``kernels/*.py`` and, with ``plots``, a
    picture of each group, ``plots/*.svg``, into ``folder``.

    Equal input gives equal bytes. Kernels and pictures that an earlier dump left, as its ``plan.json`` lists them, are
    removed; no other file is touched. Returns the paths written, in order.

    Raises:
        MissingExtraError: ``plots`` is set, and matplotlib is not there.
        TargetError: ``folder`` is not a folder, or holds a ``plan.json`` that is not a plan.
        OSError: the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise TargetError(f"{folder} is not a folder")
    files = {Path("kernels") / f"{module.name}.py": module.source for module in planned.modules}
    files |= (
        {Path("plots") / f"{name}.svg": picture for name, picture in pictures(planned.plan).items()} if plots else {}
    )
    for stale in earlier_files(folder) - files.keys():
        (folder / stale).unlink(missing_ok=True)
    files |= {
        Path("before.txt"): without_folders(planned.before),
        Path("after.txt"): without_folders(planned.after),
        Path("decisions.md"): decisions(planned.plan),
        Path(PLAN): planned.plan.to_json(),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in files]


def earlier_files(folder: Path) -> set[Path]:
    """Kernels and pictures, relative to ``folder``, of the plan that an earlier dump wrote there."""
    path = folder / PLAN
    if not path.exists():
        return set()
    try:
        plan = Plan.from_json(path.read_bytes())
    except PlanError as error:
        raise TargetError(f"{path} was not written by this version of fusioncc; choose another folder") from error
    named = (*(group.kernel for group in plan.groups), *(chain.kernel for chain in plan.chains))
    kernels = {Path("kernels") / f"{kernel}.py" for kernel in named if re.fullmatch(r"\w+", kernel)}
    return kernels | {Path("plots") / f"{group.name}.svg" for group in plan.groups if re.fullmatch(r"\w+", group.name)}


def without_folders(graph: str) -> str:
    """A graph as readable code whose "File" comments name files without folders: the same bytes from any folder."""
    return re.sub(r"(?m)^(\s*# File: ).*[/\\]([^/\\:]+:\d+ in )", r"\1\2", graph)
