"""Results that ship: a table for each card that was measured, ``fusioncc/tuned/PROFILE.json``, read where the user's
database has nothing.

An entry goes through the same checks as one of the database. It serves every group in its place
(:func:`~fusioncc.tuning.place.place_of`), under whatever versions are installed, as long as its schedule is one that is
enumerated for that group now.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from fusioncc.autotune.choose import Pools, rankings
from fusioncc.autotune.two_pool import undivided
from fusioncc.device import Device
from fusioncc.errors import TuningError
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.exchange import MAX_TABLE_BYTES, entries_of
from fusioncc.tuning.form import from_bytes
from fusioncc.tuning.key import Key
from fusioncc.tuning.place import Place, place_of
from fusioncc.tuning.space import is_selectable

FOLDER = Path(__file__).parents[1] / "tuned"
log = logging.getLogger("fusioncc.tuning")


@dataclass(frozen=True)
class Served:
    """An entry of a table, and its schedule as it is enumerated for the group that asked: with workers of its own."""

    entry: Entry
    schedule: Schedule


def shipped(key: Key, device: Device) -> Served | None:
    """What ships for the group of a key, which was made of ``device``: of the card that was measured, or of its profile
    where no card is meant. None: nothing does, or nothing that can be chosen here."""
    place = place_of(key)
    entries = table(FOLDER, key.card.profile).get(place, ()) if place is not None else ()
    entry = next((each for each in entries if key.card.name in ("", each.key.card.name)), None)
    if entry is None:
        return None
    schedule = enumerated(entry.schedule, key, device)
    return Served(entry, schedule) if schedule is not None else None


def ships(profile: str) -> bool:
    """Whether there is anything for this profile at all."""
    return bool(table(FOLDER, profile))


@lru_cache(maxsize=1024)
def enumerated(schedule: Schedule, key: Key, device: Device) -> Schedule | None:
    """The schedule, or that with the same tiles and slices of K which is enumerated for the group of the key; None:
    there is none."""
    if is_selectable(schedule, key, device):
        return schedule
    if schedule.kind == "library":
        return None
    for ranked in rankings(key.group, device, schedule.kind, key.tier):
        launched = schedule.by_launch()
        found = [_alike(pools, choices) for pools, choices in zip(launched, ranked, strict=False)]
        whole = Schedule(schedule.kind, tuple(pool for pools in found if pools is not None for pool in pools))
        if len(ranked) == len(launched) and None not in found and is_selectable(whole, key, device):
            return whole
    return None


def _alike(pools: Pools, choices: tuple[Pools, ...]) -> Pools | None:
    wanted = undivided(pools)
    return next((each for each in choices if undivided(each) == wanted), None)


@cache
def table(folder: Path, profile: str) -> Mapping[Place, tuple[Entry, ...]]:
    """The entries of the table for a profile, by place, one a card. What is wrong with it is said in one line of
    the log."""
    path = next((each for each in folder.glob("*.json") if each.stem == profile), None)
    if path is None:
        return {}
    found: dict[Place, dict[str, Entry]] = {}
    refused = Counter[str]()
    try:
        with path.open("rb") as opened:
            raws = entries_of(opened.read(MAX_TABLE_BYTES + 1))
    except (OSError, TuningError) as error:
        log.warning("%s is not used: %s", path, error)
        return {}
    for raw in raws:
        try:
            entry = from_bytes(bytes(raw))
        except TuningError as error:
            refused[error.rule] += 1
            continue
        if entry.key.card.profile == profile and (place := place_of(entry.key)) is not None:
            found.setdefault(place, {}).setdefault(entry.key.card.name, entry)
    if refused:
        rules = ", ".join(f"{count} {rule}" for rule, count in sorted(refused.items()))
        log.warning("%s: some entries are not used (%s)", path, rules)
    return {place: tuple(by_card.values()) for place, by_card in found.items()}
