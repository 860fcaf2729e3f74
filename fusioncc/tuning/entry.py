"""An entry: the schedule that was measured to be the best for a key, and what the measuring was worth."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fusioncc.schedule import Schedule
from fusioncc.tuning.efforts import as_wide
from fusioncc.tuning.key import Key


@dataclass(frozen=True)
class Measured:
    """A time and its spread, us."""

    us: float
    spread_us: float


@dataclass(frozen=True)
class Entry:
    """``schedule`` as it is enumerated, without the caps of ``streams``, which are set behind the choice. ``library``
    is what the vendor's kernels took in the same run, ``candidates`` how many schedules were measured; ``date`` has a
    time zone."""

    key: Key
    schedule: Schedule
    time: Measured
    library: Measured
    effort: Literal["quick", "full"]
    candidates: int
    date: datetime


def replaces(new: Entry, old: Entry) -> bool:
    """Whether a result takes the place of an older one for the same key.

    Less effort never replaces more. Of equal effort the new one has to be ahead. More effort replaces less unless the
    old one is ahead, so that the wider search is not made again. Ahead is whose time is the smaller part of its own
    ``library`` by more than both spreads: runs are compared by what they share, since clocks differ between them, and
    noise changes nothing.
    """
    if new.effort == old.effort:
        return _ahead(new, old)
    return as_wide(new.effort, old.effort) and not _ahead(old, new)


def _ahead(entry: Entry, other: Entry) -> bool:
    (part, spread), (others, others_spread) = _of_library(entry), _of_library(other)
    return part + spread + others_spread < others


def _of_library(entry: Entry) -> tuple[float, float]:
    """Its time as a part of the library's, with the spread of that."""
    part = entry.time.us / entry.library.us
    own, library = entry.time.spread_us / entry.time.us, entry.library.spread_us / entry.library.us
    return part, part * (own + library)
