"""The database of tuned schedules: a file for each key, in ``tuned`` of the cache folder.

Whatever is wrong with a file makes a miss and one line of the log, never an error. What cannot be written is kept in
memory for this process.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Literal

from fusioncc.device import Device
from fusioncc.errors import TuningError
from fusioncc.runtime.files import kept_folder
from fusioncc.tuning.claims import CLAIM
from fusioncc.tuning.entry import Entry, settled
from fusioncc.tuning.folder import TEMPORARY, Folder
from fusioncc.tuning.form import MAX_BYTES, from_bytes, to_bytes
from fusioncc.tuning.key import Key, Versions
from fusioncc.tuning.space import require_selectable

SUFFIX = ".json"
Stored = Literal["stored", "in memory", "not better", "refused"]
log = logging.getLogger("fusioncc.tuning")


@dataclass(frozen=True)
class Listing:
    """Every entry with its digest, and every file that holds none with what is wrong with it, in order of names."""

    entries: tuple[tuple[str, Entry], ...]
    refused: tuple[tuple[str, TuningError], ...]


@dataclass(eq=False)
class Asked:
    """What was asked of a database: by digest, or in general, as long as it is empty; and whether anything that was to
    be measured was not."""

    digests: set[str] = field(default_factory=set)
    in_general: bool = False
    unmeasured: bool = False


class Database:
    """The entries in a folder, and those that this process could not write there."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self._kept: dict[str, Entry] = {}
        self._said: set[str] = set()
        self._watching: list[Asked] = []

    @contextmanager
    def watched(self, asked: Asked) -> Iterator[None]:
        """Note in ``asked`` what is asked inside."""
        self._watching.append(asked)
        try:
            yield
        finally:
            self._watching.remove(asked)

    def leave_unmeasured(self) -> None:
        """Something was to be measured and was not: who comes again may have the time."""
        for asked in self._watching:
            asked.unmeasured = True

    def find(self, key: Key, device: Device) -> Entry | None:
        """The entry for a key, whose schedule can be chosen on ``device``, of which the key was made; None: a miss."""
        digest = key.digest()
        for asked in self._watching:
            asked.digests.add(digest)
        kept = self._kept.get(digest)
        try:
            found = self._found(key, digest, device)
        except TuningError as error:
            self._say(digest + SUFFIX, error)
            found = None
        return settled(kept, found) if kept is not None and found is not None else kept or found

    def is_empty(self) -> bool:
        """Whether nothing was ever kept that could be found: then no key has to be made."""
        if self._kept or self.folder.is_there():
            return False
        for asked in self._watching:
            asked.in_general = True
        return True

    def store(self, entry: Entry, device: Device) -> Stored:
        """Keep an entry whose key was made of ``device``, unless what is kept for the key is better, which then has the
        effort of the wider search (:func:`~fusioncc.tuning.entry.settled`). ``stored``: it is on the disk;
        ``refused``: it would not be found."""
        digest = entry.key.digest()
        try:
            _require_same_key(from_bytes(to_bytes(entry)), entry.key)
            require_selectable(entry.schedule, entry.key, device)
        except TuningError as error:
            self._say(digest + SUFFIX, error)
            return "refused"
        where: Stored = "stored"
        try:
            with self.folder.locked():
                chosen = self._chosen(entry, device)
                if chosen is not None:
                    self.folder.write(digest + SUFFIX, to_bytes(chosen))
                    self._kept.pop(digest, None)
        except (OSError, TuningError) as error:
            why = f"{self.folder.path} cannot be written: {error.strerror}" if isinstance(error, OSError) else error
            self._say("", TuningError("folder", f"{why}; results stay in memory"))
            where, chosen = "in memory", self._chosen(entry, device)
            if chosen is not None:
                self._kept[digest] = chosen
        return where if chosen == entry else "not better"

    def read(self, digest: str) -> Entry:
        """The entry of a file, whole and sane.

        Raises:
            FileNotFoundError: there is none.
            TuningError: it is no entry, or that of another key (``key``).
        """
        entry = from_bytes(self.folder.read(digest + SUFFIX, MAX_BYTES))
        if entry.key.digest() != digest:
            raise TuningError("key", "holds an entry of another key than its name says")
        return entry

    def listed(self) -> Listing:
        """What the folder holds, as far as can be told without the devices.

        Raises:
            TuningError: the folder is not this user's own, or cannot be read.
        """
        entries, refused = [], []
        for name in self.folder.names(SUFFIX):
            digest = name.removesuffix(SUFFIX)
            try:
                entries.append((digest, self.read(digest)))
            except TuningError as error:
                refused.append((name, error))
            except FileNotFoundError:  # pruned meanwhile
                continue
        return Listing(tuple(entries), tuple(refused))

    def mark(self, digests: Iterable[str] | None = None) -> str:
        """Says what every find may answer, or those for some digests: another one when anything of that is stored or
        removed, the same for equal contents."""
        found = hashlib.sha256()
        kept = self._kept.keys() if digests is None else self._kept.keys() & set(digests)
        for digest in sorted(kept):
            found.update(to_bytes(self._kept[digest]))
        with suppress(TuningError):  # what is not this user's own, no find takes
            names = self.folder.names(SUFFIX) if digests is None else [each + SUFFIX for each in sorted(digests)]
            for name in names:
                with suppress(FileNotFoundError, TuningError):
                    found.update(self.folder.read(name, MAX_BYTES))
        return found.hexdigest()

    def prune(
        self, now: datetime, older_than: timedelta | None = None, *, stale: bool = False, everything: bool = False
    ) -> tuple[str, ...]:
        """Remove files that hold no entry and what killed writers left; entries that were measured longer ago than
        ``older_than``; those that are ``stale``, of other versions of torch, triton or the emitter, or written in
        another schema; or ``everything``. The names of what is gone.

        Raises:
            OSError: the folder cannot be written.
            TuningError: the folder is not this user's own, or is locked.
        """
        if not self.folder.is_there():
            return ()
        with self.folder.locked():
            listing = self.listed()
            gone = [name for name, error in listing.refused if everything or stale or error.rule != "schema"]
            for digest, entry in listing.entries:
                old = older_than is not None and now - entry.date > older_than
                if everything or old or (stale and entry.key.versions != Versions.now()):
                    gone.append(digest + SUFFIX)
            gone += self.folder.names(TEMPORARY)  # nobody else writes: their writers are gone
            gone += self.folder.names(CLAIM)  # whoever holds one may at worst search what another does too
            return tuple(filter(self.folder.remove, gone))

    def _found(self, key: Key, digest: str, device: Device) -> Entry | None:
        try:
            entry = from_bytes(self.folder.read(digest + SUFFIX, MAX_BYTES))
        except FileNotFoundError:
            return None
        _require_same_key(entry, key)
        require_selectable(entry.schedule, entry.key, device)
        return entry

    def _chosen(self, entry: Entry, device: Device) -> Entry | None:
        """What is to be kept for the key of an entry from now on; None: what is kept."""
        old = self.find(entry.key, device)
        chosen = entry if old is None else settled(entry, old)
        return None if chosen == old else chosen

    def _say(self, name: str, error: TuningError) -> None:
        """One line, once for each file, and once for the folder, which names itself."""
        name = "" if error.rule == "folder" else name
        if name not in self._said:
            self._said.add(name)
            where = f"{self.folder.path / name} is not used" if name else "tuned schedules"
            log.warning("%s: %s", where, error)


def _require_same_key(entry: Entry, key: Key) -> None:
    if entry.key.canonical() != key.canonical():
        raise TuningError("key", "holds an entry of another key")


@cache
def _database(path: Path) -> Database:
    return Database(path)


def database() -> Database:
    """The database of the user's cache folder, one for the whole process."""
    return _database(kept_folder() / "tuned")
