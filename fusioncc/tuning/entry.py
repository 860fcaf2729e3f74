"""An entry: the schedule that was measured to be the best for a key, and what the measuring was worth."""

from dataclasses import dataclass, replace
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
    is what the vendor's kernels took in the same run, ``candidates`` how many schedules were measured by the widest
    search; ``date``, which has a time zone, is that of the times."""

    key: Key
    schedule: Schedule
    time: Measured
    library: Measured
    effort: Literal["quick", "full"]
    candidates: int
    date: datetime


def settled(new: Entry, old: Entry) -> Entry:
    """What is kept of a result and an older one for the same key.

    Less effort never replaces more. Of equal effort the new one has to be ahead. More effort replaces less unless the
    old one is ahead: then that stays, with the wider effort, since the search was made and need not be made again.
    Ahead is whose time is the smaller part of its own ``library`` by more than both spreads: runs are compared by what
    they share, since clocks differ between them, and noise changes nothing.
    """
    if new.effort == old.effort:
        return new if _ahead(new, old) else old
    if not as_wide(new.effort, old.effort):
        return old
    return replace(old, effort=new.effort, candidates=new.candidates) if _ahead(old, new) else new


def _ahead(entry: Entry, other: Entry) -> bool:
    (part, spread), (others, others_spread) = _of_library(entry), _of_library(other)
    return part + spread + others_spread < others


def _of_library(entry: Entry) -> tuple[float, float]:
    """Its time as a part of the library's, with the spread of that."""
    part = entry.time.us / entry.library.us
    own, library = entry.time.spread_us / entry.time.us, entry.library.spread_us / entry.library.us
    return part, part * (own + library)
