"""The verdict of a search: what is to be kept of all that was raced, and why."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fusioncc.device import Device
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Failed, Race, Timed
from fusioncc.tuning.outcome import Raced, counted_failures
from fusioncc.tuning.space import is_selectable


@dataclass(frozen=True)
class Findings:
    """``best`` are the fastest schedules and ``last`` their race, for which there may have been no time; ``whole``:
    every schedule that was to be measured first had time; ``effort`` is what was carried out."""

    raced: tuple[Raced, ...]
    best: tuple[Schedule, ...]
    last: Race | None
    whole: bool
    effort: Literal["quick", "full"]


def verdict(key: Key, device: Device, found: Findings, date: datetime) -> tuple[Entry | None, str]:
    """The entry for ``key``, and why it or none is kept. That nothing beat ``library`` is known only where something
    was measured beside it."""
    library = found.last.library if found.last else next((each.library for each in found.raced), None)
    if not isinstance(library, Measured):
        return None, "there was no time to measure anything"
    failed = {each.schedule for each in found.raced if isinstance(each.result, Failed)}
    measured = len({each.schedule for each in found.raced} - failed)
    if not measured:
        kinds = ", ".join(f"{count} {kind}" for kind, count in counted_failures(found.raced).items())
        return None, f"nothing could be measured: {kinds}"
    winner = _winner(key, device, found, library)
    if winner is not None:
        schedule, time = winner
        why = f"{time.us:.4g} us against {library.us:.4g} us for library"
        return Entry(key, schedule, time, library, found.effort, measured, date), why
    if key.wishes.schedule != "auto":
        return None, f"nothing of {key.wishes.schedule!r} could be confirmed"
    if not found.whole or (found.best and found.last is None):
        return None, "there was no time to measure every candidate, and nothing measured beat library"
    why = f"nothing beat library, {library.us:.4g} us"
    return Entry(key, Schedule("library"), library, library, found.effort, measured, date), why


def _winner(key: Key, device: Device, found: Findings, library: Measured) -> tuple[Schedule, Measured] | None:
    """Of those that were confirmed the fastest, with its time, where it beats ``library`` or has no need to."""
    if found.last is None:
        return None
    timed = [
        (result.time, result.schedule if is_selectable(result.schedule, key, device) else proposed)
        for proposed, result in zip(found.best, found.last.results, strict=True)
        if isinstance(result, Timed)
    ]
    if not timed:
        return None
    time, schedule = min(timed, key=lambda each: each[0].us)
    ahead = time.us + time.spread_us + library.spread_us < library.us
    return (schedule, time) if ahead or key.wishes.schedule != "auto" else None
