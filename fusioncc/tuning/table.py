"""A table of entries that ships, read as it is asked: of each entry only so much that it is found by the shapes of its
group, and the rest, with every check, when a group of these shapes comes."""

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fusioncc.errors import TuningError
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.exchange import MAX_TABLE_BYTES, entries_of
from fusioncc.tuning.form import decoded, from_bytes
from fusioncc.tuning.place import Place, bucket_of, place_of

Shapes = tuple[int, int, tuple[int, ...]]
"""Rows of the bucket, columns of X, columns of each member."""
log = logging.getLogger("fusioncc.tuning")


class _Lhs(msgspec.Struct):
    shape: tuple[int, int]


class _Member(msgspec.Struct):
    n: int


class _Group(msgspec.Struct):
    lhs: _Lhs
    members: tuple[_Member, ...]


class _Key(msgspec.Struct):
    group: _Group


class _Entry(msgspec.Struct):
    key: _Key


class _Written(msgspec.Struct):
    """What of an entry is read before it is asked for."""

    entry: _Entry


class Table:
    """The table for ``profile`` in the file at ``path``. Its entries are judged like those of the database when one of
    their shapes is asked for; of those that are refused the first ones are said in one line of the log."""

    def __init__(self, path: Path, profile: str) -> None:
        self.path, self.profile = path, profile
        self._unread: dict[Shapes, list[bytes]] = {}
        self._read: dict[Place, dict[str, Entry]] = {}
        self._said = False
        refused = Counter[str]()
        try:
            with path.open("rb") as opened:
                raws = entries_of(opened.read(MAX_TABLE_BYTES + 1))
        except (OSError, TuningError) as error:
            log.warning("%s is not used: %s", path, error)
            return
        for raw in map(bytes, raws):
            try:
                group = decoded(raw, _Written).entry.key.group
            except TuningError as error:
                refused[error.rule] += 1
                continue
            rows, columns = group.lhs.shape
            bucket = bucket_of(rows)
            if bucket is not None:
                shapes = bucket, columns, tuple(member.n for member in group.members)
                self._unread.setdefault(shapes, []).append(raw)
        self._say(refused)

    def __bool__(self) -> bool:
        """Whether it has any entry that could be found."""
        return bool(self._unread or self._read)

    def at(self, place: Place) -> Mapping[str, Entry]:
        """The entries for a place, by the name of their card."""
        group = place.group
        shapes = group.m, group.k, tuple(member.n for member in group.members)
        refused = Counter[str]()
        for raw in self._unread.get(shapes, ()):
            try:
                entry = from_bytes(raw)
            except TuningError as error:
                refused[error.rule] += 1
                continue
            if entry.key.card.profile == self.profile and (found := place_of(entry.key)) is not None:
                self._read.setdefault(found, {}).setdefault(entry.key.card.name, entry)
        self._unread.pop(shapes, None)  # behind the loop: another thread may ask meanwhile
        self._say(refused)
        return self._read.get(place, {})

    def _say(self, refused: Counter[str]) -> None:
        if refused and not self._said:
            self._said = True
            rules = ", ".join(f"{count} {rule}" for rule, count in sorted(refused.items()))
            log.warning("%s: some entries are not used (%s)", self.path, rules)
