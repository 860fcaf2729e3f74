"""The meetings of ranks: each waits for as long as it was told, whatever the first one was told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.ranks import FIRST_S, LATE_S, SHORT_S

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_later_meeting_may_wait_for_longer_than_the_first_and_for_less(tmp_path: Path) -> None:
    """The group of the ranks has the time of the first meeting; the barrier in front of each has its own."""
    command = [sys.executable, "-m", "tests.runtime.ranks", str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        (said, took, why, waited), (theirs, _, _) = (json.loads(each.communicate(timeout=120)[0]) for each in ranks)
    finally:
        for each in ranks:
            each.kill()
    assert said == theirs == [[0, 1], [10, 11]]
    assert took > FIRST_S + 0.5 and LATE_S > FIRST_S, "it was waited for, for longer than the first meeting may take"
    assert why.startswith("a rank did not answer: ") and SHORT_S <= waited < SHORT_S + 5.0
