"""The database: what is kept comes back equal, and whatever is wrong with a file is a miss and one line."""

import errno
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fusioncc.errors import TuningError
from fusioncc.schedule import Schedule
from fusioncc.tuning.claims import CLAIM, claimed
from fusioncc.tuning.database import Database, database
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.exchange import exported, imported
from fusioncc.tuning.folder import Folder
from fusioncc.tuning.form import MAX_BYTES, SCHEMA, from_bytes, to_bytes
from fusioncc.tuning.key import Versions
from tests.tuning.entries import DATE, DEVICE, GROUP, entry, key, lines_of, schedule

NAME = key().digest() + ".json"


@pytest.fixture
def kept(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuned")


def filled(kept: Database) -> Path:
    """The file of the entry."""
    assert kept.store(entry(), DEVICE) == "stored"
    return kept.folder.path / NAME


@pytest.mark.parametrize("kind", ["inline", "split", "concat", "horizontal", "two_pool", "library"])
def test_what_is_stored_is_found_equal(kept: Database, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = Schedule("library") if kind == "library" else schedule(kind, 1)
    stored = entry(schedule=chosen, time=Measured(1 / 3, 0.0), effort="full")
    assert kept.find(key(), DEVICE) is None
    assert kept.store(stored, DEVICE) == "stored"
    assert kept.find(key(), DEVICE) == Database(kept.folder.path).find(key(), DEVICE) == stored
    assert [digest for digest, _ in kept.listed().entries] == [key().digest()]
    assert caplog.records == []


def test_the_folder_is_this_user_s_alone(kept: Database) -> None:
    file = filled(kept)
    modes = [path.stat().st_mode & 0o777 for path in (kept.folder.path, file, kept.folder.path / ".lock")]
    assert modes == [0o700, 0o600, 0o600]
    assert sorted(path.name for path in kept.folder.path.iterdir()) == [".lock", NAME]


def test_a_file_is_on_the_disk_before_it_has_its_name(kept: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name is, when a store returns."""
    done: list[str] = []
    replaced, named = os.replace, kept.folder.path / NAME

    def replace_file(*names: str, **folders: int) -> None:
        done.append("rename")
        replaced(*names, **folders)

    def sync(handle: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).suffix or 'folder'}")  # noqa: PTH115

    monkeypatch.setattr(os, "replace", replace_file)
    monkeypatch.setattr(os, "fsync", sync)
    assert kept.store(entry(), DEVICE) == "stored" and named.exists()
    assert done == ["sync .tmp", "rename", "sync folder"]


def test_a_worse_result_does_not_replace_a_better_one(kept: Database) -> None:
    outcomes = [kept.store(each, DEVICE) for each in (entry(), entry(12.0), entry(8.0), entry(7.0, effort="full"))]
    assert outcomes == ["stored", "not better", "stored", "stored"]
    assert kept.store(entry(2.0), DEVICE) == "not better"
    assert kept.find(key(), DEVICE) == entry(7.0, effort="full")


@pytest.mark.parametrize("writable", [True, False])
def test_a_wider_search_that_found_nothing_better_is_noted(
    kept: Database, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(kept)
    if not writable:
        monkeypatch.setattr(Folder, "write", broken)
    worse = entry(12.0, effort="full", candidates=40)
    assert kept.store(worse, DEVICE) == "not better"
    assert kept.find(key(), DEVICE) == entry(effort="full", candidates=40)
    assert Database(kept.folder.path).find(key(), DEVICE) == (kept.find(key(), DEVICE) if writable else entry())
    assert kept.store(worse, DEVICE) == "not better"


def broken(folder: Folder, name: str, data: bytes) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def foreign(file: Path) -> None:
    file.write_bytes(to_bytes(entry(key=key(card="another"))))


def linked(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


def in_a_linked_folder(file: Path) -> None:
    moved = file.parent.rename(file.parents[1] / "elsewhere")
    file.parent.symlink_to(moved)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (rewritten(lambda data: b""), "is no entry"),
    "truncated": (rewritten(lambda data: data[:-20]), "is no entry"),
    "half": (rewritten(lambda data: data[: len(data) // 2]), "is no entry"),
    "zeros": (rewritten(lambda data: bytes(len(data))), "is no entry"),
    "no JSON": (rewritten(lambda data: b"\xff\xfe{}"), "is no entry"),
    "deep": (rewritten(lambda data: b"[" * 500_000), "is no entry"),
    "deep entry": (rewritten(lambda data: data.split(b'"entry":')[0] + b'"entry":' + b"[" * 500_000), "is no entry"),
    "a list": (rewritten(lambda data: b"[]"), "is no entry"),
    "a changed byte": (rewritten(lambda data: data.replace(b'"us":10.0', b'"us":90.0')), "checksum"),
    "wrong checksum": (rewritten(lambda data: data.replace(b'"sha256":"', b'"sha256":"0')), "checksum"),
    "another schema": (rewritten(lambda data: data.replace(SCHEMA.encode(), b"fusioncc.tuned/0")), "has schema"),
    "a newline": (rewritten(lambda data: data + b"\n"), "never written"),
    "a field more": (rewritten(lambda data: data[:-1] + b',"x\\n":1}'), "unknown field"),
    "oversized": (rewritten(lambda data: data + b" " * MAX_BYTES), f"more than {MAX_BYTES} bytes"),
    "huge": (lambda file: os.truncate(file, 1 << 40), f"more than {MAX_BYTES} bytes"),
    "foreign": (foreign, "of another key"),
    "a link": (linked, "symbolic link"),
    "a linked folder": (in_a_linked_folder, "symbolic link"),
    "a pipe": (fifo, "no regular file"),
    "a folder": (folder, "no regular file"),
    "writable by others": (lambda file: file.chmod(0o602), "may be written by others (mode 602)"),
    "writable by the group": (lambda file: file.chmod(0o660), "may be written by others"),
    "a folder writable by others": (lambda file: file.parent.chmod(0o777), "may be written by others (mode 777)"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_a_miss_and_one_line(kept: Database, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = DAMAGED[damage]
    spoil(filled(kept))
    assert [kept.find(key(), DEVICE) for _ in range(3)] == [None] * 3
    (line,) = lines_of(caplog)
    named = kept.folder.path if "folder " in damage or damage == "a linked folder" else kept.folder.path / NAME
    assert str(named) in line and reason in line
    if named.name == NAME and damage != "a folder":
        assert kept.store(entry(), DEVICE) == "stored", "the next result takes its place"
        assert kept.find(key(), DEVICE) == entry()


@pytest.mark.parametrize("whose", ["file", "folder"])
def test_what_belongs_to_another_user_is_not_read(
    kept: Database, whose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a file of this user's in the folder of another nor the other way round."""
    filled(kept)
    us, calls = os.geteuid(), iter([1, 0] if whose == "folder" else [0, 1])
    monkeypatch.setattr(os, "geteuid", lambda: us + next(calls, 0))
    assert kept.find(key(), DEVICE) is None
    (line,) = lines_of(caplog)
    assert f"belongs to another user ({us})" in line


def test_a_folder_of_another_user_is_not_written(
    kept: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = filled(kept)
    before = file.stat()
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert [kept.store(entry(us), DEVICE) for us in (8.0, 6.0, 7.0)] == ["in memory", "in memory", "not better"]
    assert kept.find(key(), DEVICE) == entry(6.0)
    assert len(lines_of(caplog)) == 1 and file.stat() == before
    with pytest.raises(TuningError, match="belongs to another user"):
        kept.prune(DATE, everything=True)
    with pytest.raises(TuningError, match="belongs to another user"):
        kept.listed()


def test_a_folder_that_cannot_be_written_is_still_read(
    kept: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a read-only file system answers, also a superuser."""
    filled(kept)
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", read_only)
    assert kept.find(key(), DEVICE) == entry()
    assert kept.store(entry(12.0), DEVICE) == "not better"
    assert kept.store(entry(8.0), DEVICE) == "in memory"
    other = key(card="another")
    assert kept.store(entry(key=other), DEVICE) == "in memory"
    assert (kept.find(key(), DEVICE), kept.find(other, DEVICE)) == (entry(8.0), entry(key=other))
    (line,) = lines_of(caplog)
    assert f"{kept.folder.path} cannot be written: Read-only file system; results stay in memory" in line
    monkeypatch.undo()
    assert Database(kept.folder.path).find(key(), DEVICE) == entry()
    assert kept.store(entry(7.5), DEVICE) == "stored", "it can be written again"
    assert kept.find(key(), DEVICE) == Database(kept.folder.path).find(key(), DEVICE) == entry(7.5)


def test_a_folder_without_the_right_to_write(kept: Database, caplog: pytest.LogCaptureFixture) -> None:
    filled(kept).parent.chmod(0o500)
    if os.access(kept.folder.path, os.W_OK):
        pytest.skip("a superuser writes everywhere")
    (kept.folder.path / ".lock").chmod(0o400)
    assert kept.store(entry(8.0), DEVICE) == "in memory"
    assert Database(kept.folder.path).find(key(), DEVICE) == entry()
    assert len(lines_of(caplog)) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    kept = Database(tmp_path / "file" / "tuned")
    assert kept.find(key(), DEVICE) is None
    assert kept.store(entry(), DEVICE) == "in memory"
    assert kept.find(key(), DEVICE) == entry()
    assert len(lines_of(caplog)) == 1


def test_a_disk_that_is_full_leaves_what_was_there(
    kept: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kept)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert kept.store(entry(8.0), DEVICE) == "in memory"
    assert Database(kept.folder.path).find(key(), DEVICE) == entry()
    assert sorted(path.name for path in kept.folder.path.iterdir()) == [".lock", NAME]
    assert len(lines_of(caplog)) == 1


def test_others_that_hold_the_lock_for_too_long(
    kept: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fusioncc.tuning.folder.WAIT_S", 0.05)
    with Database(kept.folder.path).folder.locked():
        assert kept.store(entry(), DEVICE) == "in memory"
    (line,) = lines_of(caplog)
    assert "was locked for 0.05 s" in line


def test_a_better_claim_that_cannot_be_chosen_blocks_nothing(kept: Database) -> None:
    """An entry that no find takes may claim what it wants; the next honest one takes its place."""
    file = filled(kept)
    pool = replace(schedule().pools[0], group_m=9)
    file.write_bytes(to_bytes(entry(0.02, schedule=Schedule("inline", (pool,)), effort="full")))
    assert kept.store(entry(), DEVICE) == "stored"
    assert kept.find(key(), DEVICE) == entry()


def test_prune_takes_what_it_is_told(kept: Database) -> None:
    file = filled(kept)
    old = entry(key=key(card="old"), date=DATE - timedelta(days=40))
    stale = entry(key=replace(key(), versions=replace(Versions.now(), emitter="0" * 16)))
    for each in (old, stale):
        assert kept.store(each, DEVICE) == "stored"
    (file.parent / ("1" * 64 + ".json")).write_text("{")
    (file.parent / ("2" * 64 + ".json")).write_text('{"schema": "fusioncc.tuned/9"}')
    (file.parent / ("3" * 64 + ".json")).symlink_to(file)
    (file.parent / ("4" * 64 + ".json")).mkdir()
    (file.parent / ".5.tmp").write_text("half")
    later = DATE + timedelta(days=1)
    names = [each.key.digest() + ".json" for each in (old, stale)]
    assert kept.prune(later) == ("1" * 64 + ".json", "3" * 64 + ".json", ".5.tmp")
    assert kept.prune(later) == ()
    assert kept.prune(later, timedelta(days=30)) == (names[0],)
    assert set(kept.prune(later, stale=True)) == {names[1], "2" * 64 + ".json"}
    assert kept.prune(later, everything=True) == (NAME,)
    assert Database(file.parents[1] / "none").prune(later, everything=True) == ()


def test_a_table_goes_to_another_machine(kept: Database, tmp_path: Path) -> None:
    filled(kept)
    kept.store(entry(key=key(card="another")), DEVICE)
    table = exported(entry for _, entry in kept.listed().entries)
    there = Database(tmp_path / "there")
    assert imported(there, table).taken == 2
    assert there.listed() == kept.listed()
    again = imported(there, table)
    assert (again.taken, again.there, again.refused) == (0, 2, {})


def test_each_entry_of_a_table_is_judged(kept: Database) -> None:
    """What is there stays, even where the table claims to have a better one."""
    filled(kept)
    better, other = to_bytes(entry(1.0, effort="full")), to_bytes(entry(key=key(card="another")))
    spoiled = [other.replace(b"16.0", b"17.0"), other.replace(b"/1", b"/7"), b"{}", b'{"schema": 1}', b"7", b'"x"']
    table = {"schema": "fusioncc.tuned-table/1", "entries": [json.loads(each) for each in (better, other, *spoiled)]}
    done = imported(kept, json.dumps(table, separators=(",", ":")).encode())
    assert (done.taken, done.there, done.refused) == (1, 1, {"checksum": 1, "form": 4, "schema": 1})
    assert kept.find(key(), DEVICE) == entry()


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        (b"", "form"),
        (b"{", "form"),
        (b'{"schema": "fusioncc.tuned-table/2", "entries": []}', "schema"),
        (b'{"schema": "fusioncc.tuned-table/1", "entries": [], "more": 1}', "form"),
        (b'{"schema": "fusioncc.tuned-table/1", "entries": ' + b"[" * 100_000, "form"),
    ],
)
def test_what_is_no_table_is_refused(kept: Database, table: bytes, rule: str) -> None:
    with pytest.raises(TuningError) as caught:
        imported(kept, table)
    assert caught.value.rule == rule and "\n" not in str(caught.value)


def test_the_database_of_the_process_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONCC_CACHE_DIR", str(tmp_path))
    assert database() is database()
    assert database().folder.path == tmp_path / "tuned"


def test_a_file_is_one_line_and_read_back(kept: Database) -> None:
    data = filled(kept).read_bytes()
    assert data.count(b"\n") == 0 and len(data) < 8192 and from_bytes(data) == entry()
    assert GROUP.signature() == from_bytes(data).key.group
    assert logging.getLogger("fusioncc.tuning").level == logging.NOTSET


def test_the_mark_is_that_of_what_can_be_found(kept: Database, tmp_path: Path) -> None:
    """Equal contents have one, wherever they are; a damaged file is as good as none."""
    empty = kept.mark()
    assert kept.is_empty()
    file = filled(kept)
    one = kept.mark()
    assert not kept.is_empty() and kept.store(entry(key=key(card="other")), DEVICE) == "stored"
    two = kept.mark()
    elsewhere = Database(tmp_path / "elsewhere")
    assert elsewhere.store(entry(key=key(card="other")), DEVICE) == elsewhere.store(entry(), DEVICE) == "stored"
    assert elsewhere.mark() == two and len({empty, one, two}) == 3
    file.chmod(0o666)
    assert kept.mark() not in (empty, one, two)
    kept.folder.path.chmod(0o777)
    assert kept.mark() == empty


def test_what_is_kept_in_memory_is_part_of_the_mark(tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("in the way")
    kept = Database(tmp_path / "tuned")
    before = kept.mark()
    assert kept.store(entry(), DEVICE) == "in memory"
    assert kept.mark() != before


def test_claims_go_with_the_next_prune(kept: Database) -> None:
    filled(kept)
    with claimed(kept.folder, key().digest()) as own:
        assert own
    assert kept.folder.names(CLAIM) == (key().digest() + CLAIM,)
    assert kept.prune(DATE) == (key().digest() + CLAIM,) and kept.find(key(), DEVICE) == entry()


def test_a_folder_that_cannot_even_be_asked_for_is_as_good_as_none(tmp_path: Path) -> None:
    """The system refuses such a name; where a folder may not be entered, who is root would not be refused."""
    kept = Database(tmp_path / ("x" * 300) / "tuned")
    assert kept.is_empty() and kept.find(key(), DEVICE) is None
    assert kept.prune(DATE, everything=True) == () and kept.mark() == Database(tmp_path / "none").mark()
    assert kept.store(entry(), DEVICE) == "in memory"
    assert not kept.is_empty() and kept.find(key(), DEVICE) == entry()
