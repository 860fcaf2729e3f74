"""The mark of the database under which a compiled graph lies in Inductor's caches.

The key of a compiled graph holds what the database said before it was compiled. Measuring for the graph itself changes
that, and so does measuring for any other, so that the key of a later process would be another one. A file beside the
caches says which mark that was, what was asked for the graph, and what the answers were when it was done: as long as
they are the same, the graph would be planned as it was, and is found under its old mark.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from torch import fx

from fusioncc.runtime.files import cache_folder, write_whole
from fusioncc.runtime.plan_cache import graph_digest
from fusioncc.tuning.database import Asked, Database


class Marked(msgspec.Struct, frozen=True):
    """A mark, the digests that were asked for (None: the database was empty), and the mark of what was answered."""

    mark: str
    asked: tuple[str, ...] | None
    answered: str


@dataclass(frozen=True)
class MarkCache:
    """The mark of one graph, in one file."""

    path: Path

    @classmethod
    def of(cls, gm: fx.GraphModule, inputs: Sequence[Any], settings: Iterable[Any]) -> "MarkCache":
        """The file of a graph, named as :func:`~fusioncc.runtime.plan_cache.graph_digest` does."""
        return cls(cache_folder() / "marks" / f"{graph_digest(gm, inputs, settings)}.json")

    def read(self, database: Database) -> str | None:
        """The mark, if the database would answer as it did; None where it would not, or nothing can be read."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=Marked)
        except (OSError, msgspec.DecodeError):
            return None
        return kept.mark if database.mark(kept.asked) == kept.answered else None

    def write(self, mark: str, asked: Asked, database: Database) -> None:
        """Keep the mark of a graph for which all of ``asked`` was asked. Where something is left to measure nothing is
        kept, so that a later process goes on; nor where the folder cannot be written."""
        unkeyed = asked.in_general and not asked.digests
        if asked.unmeasured or (unkeyed and not database.is_empty()):
            return
        digests = None if unkeyed else tuple(sorted(asked.digests))
        try:
            write_whole(self.path, msgspec.json.encode(Marked(mark, digests, database.mark(digests))).decode())
        except OSError:
            return
