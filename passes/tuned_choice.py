"""The tuned choice: the schedule that was measured for a group, where the database has one for this card, or a table
that ships has."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from fusioncc.autotune.pick import pick
from fusioncc.group import Group
from fusioncc.packing import PACKED
from fusioncc.passes.cap_streams import Caps
from fusioncc.schedule import Candidate, Schedule
from fusioncc.tuning.candidates import measured_kinds
from fusioncc.tuning.database import database
from fusioncc.tuning.entry import Entry
from fusioncc.tuning.key import Key, key_of
from fusioncc.tuning.shipped import Served, shipped, ships

if TYPE_CHECKING:
    from fusioncc.passes.plan_groups import Setting

Entries = Mapping[str, Entry]
"""By digest of their keys."""


def key_for(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> Key | None:
    """The key of a group as it runs, where what is measured here may take the place of the model's choice; None where
    nothing may, or ``deterministic`` forbids it."""
    return None if setting.options.deterministic else _key(group, candidates, setting)


def tuned_choice(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> tuple[Schedule, str] | None:
    """The measured schedule of a group, as its kernels find it, and why it runs; None where none was measured, or what
    was is not legal here. What the user's database has goes before what ships, which is the same in every run and on
    every machine, so that ``deterministic`` allows it."""
    legal = {each.kind for each in candidates if each.legal}
    entry = _of_database(group, candidates, setting)
    if entry is not None and entry.schedule.kind in legal:
        return entry.schedule, why_measured(entry)
    served = _of_table(group, candidates, setting)
    if served is not None and served.schedule.kind in legal:
        return served.schedule, why_shipped(served.entry)
    return None


def _of_database(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> Entry | None:
    kept, given = database(), setting.measured
    if given is None or (not given and kept.is_empty()):
        return None
    key = key_for(group, candidates, setting)
    return None if key is None else given.get(key.digest()) or kept.find(key, setting.device)


def _of_table(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> Served | None:
    if setting.measured is None or not ships(setting.device.name):
        return None
    key = _key(group, candidates, setting)
    return None if key is None else shipped(key, setting.device)


def _key(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> Key | None:
    """The key of a group; None where nothing of it is emitted, or what runs is measured nowhere: the plan was given,
    the model's choice moves weights, or a side of ``streams`` is capped."""
    if setting.given is not None or Caps.asked(setting.options) != Caps():
        return None
    key = key_of(group, setting.options, setting.device, setting.card)
    kinds = _kinds(key)
    if not any(each.legal and each.kind in kinds for each in candidates):
        return None
    moves = setting.options.schedule == "auto" and pick(candidates, group).kind in PACKED
    return None if moves else key


@lru_cache(maxsize=1024)
def _kinds(key: Key) -> tuple[str, ...]:
    """The kinds that may be measured for a key: equal layers have one."""
    return measured_kinds(key)


def why_measured(entry: Entry) -> str:
    """An entry in words: its time beside the library's, and when that was."""
    date = f"on {entry.date:%Y-%m-%d}"
    if entry.schedule.kind == "library":
        return f"measured {entry.library.us:.1f} us, and nothing was faster, {date}"
    return f"measured {entry.time.us:.1f} us against {entry.library.us:.1f} us for library, {date}"


def why_shipped(entry: Entry) -> str:
    """An entry that ships in words: its times, for how many rows, and what it was measured with."""
    versions, rows = entry.key.versions, f"for {entry.key.group.m} rows"
    where = f"{rows} with torch {versions.torch}, triton {versions.triton}, shipped with fusioncc"
    if entry.schedule.kind == "library":
        return f"measured {entry.library.us:.1f} us, and nothing was faster, {where}"
    return f"measured {entry.time.us:.1f} us against {entry.library.us:.1f} us for library, {where}"
