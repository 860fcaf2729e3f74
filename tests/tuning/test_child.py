"""A child that cannot be started says so, whatever is missing for it."""

import errno
import tempfile
from typing import Any

import pytest

from fusioncc.errors import MeasuringError
from fusioncc.tuning.child import Child


def test_without_room_for_its_errors_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(MeasuringError, match=r"no process could be started: .*No space left") as caught:
        Child("json", answers=int, environment={})
    assert caught.value.kind == "crash"
