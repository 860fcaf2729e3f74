"""What the tests of the database share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nothing waits for the disk: no test cuts the power. Processes of their own do wait."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
