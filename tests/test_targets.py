"""What a TARGET may be, and what is said about one that cannot be used."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fusioncc.errors import TargetError, UntrustedArchiveError
from fusioncc.targets import load

FACTORY = """
import torch
def two(): return torch.nn.Linear(4, 3), (torch.ones(2, 4),)
def three(): return torch.nn.Linear(4, 3), [], {"input": torch.ones(2, 4)}
def fails(): raise RuntimeError("no weights here\\nsecond line")
def leaves(): return torch.nn.Linear(4, 3)
def four(): return 1, 2, 3, 4
def no_module(): return "model", ()
def no_args(): return torch.nn.Linear(4, 3), torch.ones(2, 4)
def no_kwargs(): return torch.nn.Linear(4, 3), (), []
value = 3
"""


@pytest.fixture(autouse=True)
def unchanged_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a target adds its folder to the search path, for this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_model.py"
    path.write_text(FACTORY)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.ones(2, 4),)), path)
    return path


def test_a_file_and_its_factory(file: Path) -> None:
    target = load(f"{file}:two")
    assert isinstance(target.model, nn.Linear)
    assert [tuple(arg.shape) for arg in target.args] == [(2, 4)]
    assert target.kwargs == {}


def test_keyword_arguments_and_a_list_of_args(file: Path) -> None:
    target = load(f"{file}:three")
    assert target.args == ()
    assert list(target.kwargs) == ["input"]


def test_a_module_in_the_current_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert isinstance(load("some_model:two").model, nn.Linear)


def test_a_file_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_target.py").write_text(FACTORY)
    (tmp_path / "uses.py").write_text("from neighbour_of_target import two as factory")
    assert isinstance(load(f"{tmp_path / 'uses.py'}:factory").model, nn.Linear)


def test_an_archive_needs_trust(archive: Path) -> None:
    with pytest.raises(UntrustedArchiveError, match="can run code from it; if you trust it, add --trust"):
        load(str(archive))


def test_a_trusted_archive_brings_its_inputs(archive: Path) -> None:
    target = load(str(archive), trust=True)
    assert isinstance(target.model, torch.export.ExportedProgram)
    assert [tuple(arg.shape) for arg in target.args] == [(2, 4)]


@pytest.mark.parametrize("keep", [0, 100, -1, -30, -1000])
def test_a_truncated_archive(archive: Path, keep: int) -> None:
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(TargetError, match=r"is not a torch.export archive, or a truncated one$"):
        load(str(archive), trust=True)


def test_a_damaged_archive(archive: Path) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content.replace(b"graph_module", b"graph_modulo"))
    with pytest.raises(TargetError, match=r"model.pt2 cannot be loaded: \w+") as caught:
        load(str(archive), trust=True)
    assert "\n" not in str(caught.value)


def test_a_zip_that_holds_no_program(tmp_path: Path) -> None:
    from zipfile import ZipFile

    with ZipFile(tmp_path / "x.pt2", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(TargetError, match=r"is not a torch.export archive"):
        load(str(tmp_path / "x.pt2"), trust=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "has no function 'missing'"),
        ("value", "has no function 'value'"),
        ("fails", "fails failed: RuntimeError: no weights here"),
        ("leaves", "returned Linear; expected (module, args) or (module, args, kwargs)"),
        ("four", "returned a tuple of 4; expected"),
        ("no_module", "returned str instead of a module"),
        ("no_args", "returned Tensor instead of a tuple of args"),
        ("no_kwargs", "returned list instead of a dict of kwargs"),
    ],
)
def test_a_factory_that_cannot_be_used(file: Path, name: str, message: str) -> None:
    with pytest.raises(TargetError, match=re.escape(message)) as caught:
        load(f"{file}:{name}")
    assert "\n" not in str(caught.value)


def test_a_factory_that_raises_keeps_its_cause(file: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load(f"{file}:fails")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.pt2", "missing.pt2: no such file"),
        ("missing.py:factory", "missing.py: no such file"),
        ("no_such_package_here:factory", "cannot be imported: ModuleNotFoundError"),
        ("model.py", "is not a target; give x.pt2, file.py:factory or package.module:factory"),
        (":factory", "is not a target"),
        ("", "is not a target"),
    ],
)
def test_nothing_is_there(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=re.escape(message)):
        load(target)


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def factory(:")
    with pytest.raises(TargetError, match="cannot be imported: SyntaxError"):
        load(f"{tmp_path / 'broken.py'}:factory")
