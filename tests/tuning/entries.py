"""Entries of a small group for an H200, made without torch."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fusioncc.autotune.choose import best, ranked_pools
from fusioncc.autotune.layer_times import Layer
from fusioncc.config import Options
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key, key_of

DEVICE = get_device("h200")
GROUP = Layer(256, (512,), 8).group(64)
DATE = datetime(2026, 11, 30, 12, tzinfo=UTC)


def key(group: Group = GROUP, card: str = "NVIDIA H200", **options: Any) -> Key:
    return key_of(group, Options.of(options), DEVICE, card)


def schedule(kind: str = "inline", place: int = 0, group: Group = GROUP) -> Schedule:
    """The schedule of a kind whose first launch is the one at this place in its ranking."""
    found = best(group, DEVICE, kind)
    assert found is not None
    pools = [*found[0].by_launch()]
    pools[0] = ranked_pools(group, DEVICE, found[0])[0][place]
    return replace(found[0], pools=tuple(pool for each in pools for pool in each))


def entry(us: float = 10.0, **fields: Any) -> Entry:
    """An entry that is accepted, with some fields of its own."""
    made = Entry(key(), schedule(), Measured(us, 0.1), Measured(16.0, 0.2), "quick", 8, DATE)
    return replace(made, **fields)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the database has logged."""
    records = [record for record in caplog.records if record.name == "fusioncc.tuning"]
    assert all(record.levelno == logging.WARNING and "\n" not in record.getMessage() for record in records)
    return [record.getMessage() for record in records]
