"""Loading a command-line TARGET: a ``torch.export`` archive, ``file.py:factory`` or ``package.module:factory``."""

import importlib
import importlib.util
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fusioncc.errors import TargetError, UntrustedArchiveError
from fusioncc.seam import translated

FORMS = "x.pt2, file.py:factory or package.module:factory"
PROGRAM_MEMBERS = ("/archive_format", "serialized_exported_program.json")
"""One of these is in every archive: since torch 2.8, and before."""
RETURNS = "(module, args) or (module, args, kwargs)"


@dataclass(frozen=True)
class Target:
    """A model and the inputs to capture it with; the model may live on the meta device."""

    model: torch.nn.Module | torch.export.ExportedProgram
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def load(target: str, trust: bool = False) -> Target:
    """The model and inputs that ``target`` names.

    Loading an archive can run code that is stored in it, so it needs ``trust``; a factory is code by intention.

    Raises:
        TargetError: nothing usable is there; the message is one line.
        UntrustedArchiveError: an archive, and ``trust`` is not set.
    """
    if target.endswith(".pt2"):
        return load_archive(Path(target), trust)
    source, colon, attribute = target.rpartition(":")
    if not (colon and source and attribute):
        raise TargetError(f"{target!r} is not a target; give {FORMS}")
    module = load_file(Path(source)) if source.endswith(".py") else load_module(source)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise TargetError(f"{source} has no function {attribute!r}")
    return checked(translated(f"{target} failed", factory, TargetError), target)


def load_archive(path: Path, trust: bool) -> Target:
    """The program in a ``torch.export`` archive and the example inputs that were saved with it."""
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    if not is_archive(path):
        raise TargetError(f"{path} is not a torch.export archive, or a truncated one")
    if not trust:
        raise UntrustedArchiveError(f"{path}: loading an archive can run code from it; if you trust it, add --trust")
    program = translated(f"{path} cannot be loaded", lambda: torch.export.load(path), TargetError)
    args, kwargs = program.example_inputs or ((), {})
    return Target(program, tuple(args), dict(kwargs))


def is_archive(path: Path) -> bool:
    """Whether ``path`` lists the members of a program; an archive cut short may end in a smaller, inner zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(PROGRAM_MEMBERS) for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def load_file(path: Path) -> ModuleType:
    """The module in ``path``; its folder is searched for imports, as when the file is run."""
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"fusioncc_target_{path.stem}", path)
    if spec is None or (loader := spec.loader) is None:
        raise TargetError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[spec.name] = module
    translated(f"{path} cannot be imported", lambda: loader.exec_module(module), TargetError)
    return module


def load_module(name: str) -> ModuleType:
    """The module called ``name``; the current folder is searched first, as with ``python -m``."""
    sys.path.insert(0, str(Path.cwd()))
    return translated(f"{name} cannot be imported", lambda: importlib.import_module(name), TargetError)


def checked(returned: Any, target: str) -> Target:
    """What a factory returned, as a :class:`Target`, or a :class:`TargetError` that says what is wrong with it."""
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise TargetError(f"{target} returned {got}; expected {RETURNS}")
    model, args, kwargs = (*returned, {})[:3]
    for value, wanted, name in (
        (model, (torch.nn.Module, torch.export.ExportedProgram), "a module or an ExportedProgram"),
        (args, (tuple, list), "a tuple of args"),
        (kwargs, dict, "a dict of kwargs"),
    ):
        if not isinstance(value, wanted):
            raise TargetError(f"{target} returned {type(value).__name__} instead of {name}; expected {RETURNS}")
    return Target(model, tuple(args), kwargs)
