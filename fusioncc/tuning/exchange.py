"""Entries of a whole database in one file: ``{"schema", "entries"}`` as JSON, each entry in its written form."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from fusioncc.errors import TuningError
from fusioncc.tuning.database import SUFFIX, Database
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.form import from_bytes, in_one_line, to_bytes

SCHEMA = "fusioncc.tuned-table/1"
MAX_TABLE_BYTES = 64 << 20


class Table(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    entries: tuple[msgspec.Raw, ...]


@dataclass(frozen=True)
class Taken:
    """How many entries of a table were taken, were already there, and were refused by which rule."""

    taken: int
    there: int
    refused: Mapping[str, int]


def exported(entries: Iterable[Entry]) -> bytes:
    """The table of some entries, one a line."""
    lines = ",\n".join(to_bytes(entry).decode() for entry in entries)
    return f'{{"schema": "{SCHEMA}", "entries": [\n{lines}\n]}}\n'.encode()


def imported(database: Database, data: bytes) -> Taken:
    """Write the entries of a table that are whole and sane into a database. What is there stays. Whether a schedule can
    be chosen for its group is asked when it is found: the table may be that of another card.

    Raises:
        OSError: the folder cannot be written.
        TuningError: no such table (``form``, ``schema``, ``size``), or the folder is not this user's own.
    """
    taken, there, refused = 0, 0, Counter[str]()
    for raw in entries_of(data):
        try:
            entry = from_bytes(bytes(raw))
        except TuningError as error:
            refused[error.rule] += 1
            continue
        with database.folder.locked():  # others may write between two entries
            if _is_there(database, entry):
                there += 1
            else:
                database.folder.write(entry.key.digest() + SUFFIX, to_bytes(entry))
                taken += 1
    return Taken(taken, there, dict(sorted(refused.items())))


def entries_of(data: bytes) -> tuple[msgspec.Raw, ...]:
    """The entries of a table, each still in its written form.

    Raises:
        TuningError: no such table (``form``, ``schema``, ``size``).
    """
    if len(data) > MAX_TABLE_BYTES:
        raise TuningError("size", f"a table has at most {MAX_TABLE_BYTES} bytes")
    try:
        table = msgspec.json.decode(data, type=Table)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TuningError("form", f"not a table of tuned schedules: {in_one_line(error)}") from error
    if table.schema != SCHEMA:
        raise TuningError("schema", f"the table has schema {table.schema[:40]!r}; this version reads {SCHEMA!r}")
    return table.entries


def _is_there(database: Database, entry: Entry) -> bool:
    """Whether the database has an entry for this key; one that is damaged counts for none."""
    try:
        database.read(entry.key.digest())
    except (FileNotFoundError, TuningError):
        return False
    return True
