"""Results that ship: a table for each card that was measured, ``fusioncc/tuned/PROFILE.json``, read where the user's
database has nothing.

An entry goes through the same checks as one of the database. It serves every group in its place
(:func:`~fusioncc.tuning.place.place_of`), under whatever versions are installed, as long as its schedule is one that is
enumerated for that group now.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from fusioncc.autotune.choose import Pools, rankings
from fusioncc.autotune.two_pool import undivided
from fusioncc.device import Device
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.key import Key
from fusioncc.tuning.place import place_of
from fusioncc.tuning.space import is_selectable
from fusioncc.tuning.table import Table

FOLDER = Path(__file__).parents[1] / "tuned"


@dataclass(frozen=True)
class Served:
    """An entry of a table, and its schedule as it is enumerated for the group that asked: with workers of its own."""

    entry: Entry
    schedule: Schedule


def shipped(key: Key, device: Device) -> Served | None:
    """What ships for the group of a key, which was made of ``device``: of the card that was measured, or of its profile
    where no card is meant. None: nothing does, or nothing that can be chosen here."""
    place, found = place_of(key), table(FOLDER, key.card.profile)
    by_card = found.at(place) if found is not None and place is not None else {}
    entry = next((each for name, each in by_card.items() if key.card.name in ("", name)), None)
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
def table(folder: Path, profile: str) -> Table | None:
    """The table for a profile, if there is one."""
    path = next((each for each in folder.glob("*.json") if each.stem == profile), None)
    return None if path is None else Table(path, profile)
