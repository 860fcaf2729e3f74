"""``fusioncc cache``: what it says, what it removes, and mistakes in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from fusioncc.autotune.layer_times import Layer
from fusioncc.cli import app
from fusioncc.tuning.database import Database, database
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.form import to_bytes
from fusioncc.tuning.key import Versions
from tests.tuning.entries import DEVICE, entry, key, schedule

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command with a cache folder of its own, in a folder that is empty."""
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *arguments: CliRunner().invoke(app, ["cache", *arguments])


@pytest.fixture
def kept(run: Run) -> Database:
    """The database of that folder, with an entry of today, an old one and a stale one."""
    filled, now = database(), datetime.now(UTC)
    group = Layer(256, (512, 512), 8).group(64, any_rows=True)
    stale = replace(key(card="stale"), versions=replace(Versions.now(), torch="2.0.0"))
    entries: tuple[Entry, ...] = (
        entry(date=now),
        entry(key=key(group, card=""), schedule=schedule("split", group=group), date=now - timedelta(days=40)),
        entry(key=stale, date=now),
    )
    assert [filled.store(each, DEVICE) for each in entries] == ["stored"] * 3
    return filled


def test_list_says_what_there_is(run: Run, kept: Database) -> None:
    (kept.folder.path / "zz\n.json").write_text("[")
    result = run("list")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    row = next(line for line in lines if key().digest()[:12] in line)
    assert all(
        word in row for word in ("64x256 bf16 → 512 r8", "NVIDIA H200", "inline", "10 ± 0.1", "16 ± 0.2", "quick")
    )
    assert sum("as now" in line for line in lines) == 2 and sum("others" in line for line in lines) == 1
    assert any("M~64x256 bf16 → 512+512 r8" in line and "split" in line and "h200" in line for line in lines)
    assert any(line.startswith("'zz\\n.json': is no entry") for line in lines)
    assert lines[-1] == f"3 tuned schedules in {kept.folder.path}, 1 damaged files."


def test_an_empty_cache(run: Run, tmp_path: Path) -> None:
    assert run("list").stdout == f"0 tuned schedules in {tmp_path / 'cache' / 'tuned'}, 0 damaged files.\n"
    assert run("prune", "--all").stdout == "0 files removed.\n"
    assert run("export", "all.json").stdout == "0 tuned schedules in all.json.\n"
    assert not (tmp_path / "cache").exists()


def test_show_prints_the_whole_entry(run: Run, kept: Database) -> None:
    digest = key().digest()
    shown = run("show", digest[:12])
    assert shown.exit_code == 0, shown.stderr
    assert msgspec.json.decode(shown.stdout, type=Entry) == kept.read(digest)
    assert run("show", digest).stdout == shown.stdout


@pytest.mark.parametrize(
    ("options", "left"),
    [((), 3), (("--older-than", "30"), 2), (("--stale",), 2), (("--stale", "--older-than", "0.5"), 1), (("--all",), 0)],
)
def test_prune(run: Run, kept: Database, options: tuple[str, ...], left: int) -> None:
    (kept.folder.path / ("0" * 64 + ".json")).write_text("[")
    result = run("prune", *options)
    assert (result.exit_code, result.stdout) == (0, f"{1 + 3 - left} files removed.\n"), result.stderr
    listing = kept.listed()
    assert (len(listing.entries), len(listing.refused)) == (left, 0)


def test_export_and_import(run: Run, kept: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("export", "all.json").stdout == "3 tuned schedules in all.json.\n"
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path / "other"))
    table = json.loads(Path("all.json").read_text())
    Path("bad.json").write_text(json.dumps({**table, "entries": [*table["entries"], 7, {"schema": "x"}]}))
    assert run("import", "all.json").stdout == "3 taken, 0 already there, 0 refused.\n"
    assert run("import", "bad.json").stdout == "0 taken, 0 already there, 5 refused (3 checksum, 1 form, 1 schema).\n"
    assert database().listed() == kept.listed()
    assert run("import", "all.json").stdout == "0 taken, 3 already there, 0 refused.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "0123456789ab"), "0 tuned schedules have a key that begins with 0123456789ab"),
        (("show", "../../etc/passwd"), "is not 4 to 64 hexadecimal digits"),
        (("show", "ab"), "is not 4 to 64 hexadecimal digits"),
        (("show",), "Missing argument"),
        (("prune", "--older-than", "soon"), "--older-than"),
        (("prune", "--older-than", "-1"), "is not a number of days"),
        (("prune", "--older-than", "nan"), "is not a number of days"),
        (("prune", "--older-than", "1e300"), "is not a number of days"),
        (("export", "."), "is not a file in a folder that is there"),
        (("export", "none/all.json"), "is not a file in a folder that is there"),
        (("import", "none.json"), "none.json: no such file"),
        (("import", "."), "no such file"),
        (("import", "empty.json"), "not a table of tuned schedules"),
        (("nonsense",), "No such command 'nonsense'"),
        (("list", "--nonsense"), "No such option"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    Path("empty.json").touch()
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("fusioncc: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("list",), ("show", "0000"), ("prune",), ("export", "x.json"), ("import", "all.json")]
)
def test_a_folder_of_others_is_one_line(run: Run, kept: Database, command: tuple[str, ...]) -> None:
    assert run("export", "all.json").exit_code == 0
    kept.folder.path.chmod(0o777)
    result = run(*command)
    assert result.exit_code == 2
    assert result.stderr == f"fusioncc: {kept.folder.path} may be written by others (mode 777)\n"


@pytest.mark.parametrize(
    "command", [("list",), ("show", "0000"), ("prune",), ("export", "x.json"), ("import", "all.json")]
)
@pytest.mark.parametrize("what", ["file", "link"])
def test_what_is_in_the_place_of_the_folder_is_named(
    run: Run, kept: Database, tmp_path: Path, what: str, command: tuple[str, ...]
) -> None:
    assert run("export", "all.json").exit_code == 0
    folder = kept.folder.path
    folder.rename(tmp_path / "elsewhere")
    if what == "file":
        folder.write_text("mine")
    else:
        folder.symlink_to(tmp_path / "elsewhere")
    result = run(*command)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == f"fusioncc: {folder} is no folder, but a file or a symbolic link\n"


def test_no_command_shows_the_help(run: Run) -> None:
    assert all(name in run().output for name in ("list", "show", "prune", "export", "import"))


def test_the_commands_load_no_torch(kept: Database, tmp_path: Path) -> None:
    """Also where the folder has to be found."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    unset = {name: value for name, value in os.environ.items() if name != "FUSIONCC_CACHE_DIR"}
    environment = {**unset, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    folder = tmp_path / "caches" / "fusioncc" / "tuned"
    folder.mkdir(parents=True)
    (folder / f"{key().digest()}.json").write_bytes(to_bytes(entry()))
    command = [sys.executable, "-m", "fusioncc", "cache", "list"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"1 tuned schedules in {folder}, 0 damaged files."
