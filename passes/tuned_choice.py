"""The tuned choice: the schedule that was measured for a group, where the database has one for this card."""

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

if TYPE_CHECKING:
    from fusioncc.passes.plan_groups import Setting

Entries = Mapping[str, Entry]
"""By digest of their keys."""


def key_for(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> Key | None:
    """The key of a group as it runs, where a measured schedule may take the place of the model's; None where nothing of
    it is emitted, or what runs is measured nowhere: the model's choice moves weights, or a side of ``streams`` is
    capped."""
    if setting.given is not None or setting.options.deterministic:
        return None
    if Caps.asked(setting.options) != Caps():
        return None
    key = key_of(group, setting.options, setting.device, setting.card)
    kinds = _kinds(key)
    if not any(each.legal and each.kind in kinds for each in candidates):
        return None
    moves = setting.options.schedule == "auto" and pick(candidates, group).kind in PACKED
    return None if moves else key


def tuned_choice(group: Group, candidates: tuple[Candidate, ...], setting: "Setting") -> tuple[Schedule, str] | None:
    """The measured schedule of a group, as its kernels find it, and why it runs; None where none was measured, or what
    was is not legal here."""
    kept, given = database(), setting.measured
    if given is None or (not given and kept.is_empty()):
        return None
    key = key_for(group, candidates, setting)
    if key is None:
        return None
    entry = given.get(key.digest()) or kept.find(key, setting.device)
    if entry is None or not any(each.kind == entry.schedule.kind and each.legal for each in candidates):
        return None
    return entry.schedule, why_measured(entry)


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
