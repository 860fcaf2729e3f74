"""Tuned schedules that are kept: what was measured for a group, in files of the user's cache folder."""

from fusioncc.tuning.database import Database, database
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key, key_of

__all__ = ["Database", "Entry", "Key", "Measured", "database", "key_of"]
