"""The written form of an entry: ``{"schema", "sha256", "entry"}`` as JSON, the checksum over the bytes of ``entry``.

There is one form of each entry, so a file that is not byte for byte what this version writes is not read: an unknown
field, a number in another spelling, a space.
"""

import hashlib
from typing import TypeVar

import msgspec

from fusioncc.errors import TuningError
from fusioncc.tuning.check import require_sane
from fusioncc.tuning.entry import Entry

T = TypeVar("T")
SCHEMA = "fusioncc.tuned/1"
MAX_BYTES = 1 << 20
"""Of one entry."""
MAX_MESSAGE = 200


class Head(msgspec.Struct):
    """What every schema has."""

    schema: str


class Written(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    sha256: str
    entry: msgspec.Raw


def to_bytes(entry: Entry) -> bytes:
    """The written form of an entry."""
    payload = msgspec.json.encode(entry, order="sorted")
    return msgspec.json.encode(Written(SCHEMA, hashlib.sha256(payload).hexdigest(), msgspec.Raw(payload)))


def from_bytes(data: bytes) -> Entry:
    """The entry in written form, whole, sane and equal to what was written; whether its schedule can be chosen for its
    group is asked of the device (:func:`~fusioncc.tuning.space.require_selectable`).

    Raises:
        TuningError: anything else; ``rule`` is ``size``, ``schema``, ``form``, ``checksum`` or ``bounds``.
    """
    if len(data) > MAX_BYTES:
        raise TuningError("size", f"has more than {MAX_BYTES} bytes")
    schema = decoded(data, Head).schema
    if schema != SCHEMA:
        raise TuningError("schema", f"has schema {schema[:40]!r}; this version reads {SCHEMA!r}")
    written = decoded(data, Written)
    if hashlib.sha256(bytes(written.entry)).hexdigest() != written.sha256:
        raise TuningError("checksum", "its checksum is that of other content")
    entry = decoded(bytes(written.entry), Entry)
    require_sane(entry)
    if to_bytes(entry) != data:
        raise TuningError("form", "has fields or spellings that are never written")
    return entry


def decoded(data: bytes, wanted: type[T]) -> T:
    """JSON as a value of this type.

    Raises:
        TuningError: it is none (``form``).
    """
    try:
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TuningError("form", f"is no entry: {in_one_line(error)}") from error


def in_one_line(error: Exception) -> str:
    """What an error says of JSON that may hold anything: short and printable."""
    text = str(error)[:MAX_MESSAGE]
    return text if text.isprintable() else ascii(text)
