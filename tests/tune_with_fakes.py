"""``python -m tests.tune_with_fakes tune ...``: the command with a meter that has no card, for a process of its own.

``FAKE_FAILS`` names the card whose process has none.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusioncc import tune_command
from fusioncc.cli import app
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import Device, get_device
from fusioncc.errors import TargetError
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import Tuning
from fusioncc.schedule import Schedule
from fusioncc.tuning.measuring import Job, Race
from tests.tuning.fake_meter import Clock, FakeMeter

CARD = os.environ.get("CUDA_VISIBLE_DEVICES", "")


class Noting(FakeMeter):
    """Notes in the working folder which groups are measured on which card."""

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        with Path("measured.txt").open("a") as notes:
            notes.write(f"{CARD} {job.group.k}\n")
        return super().race(job, schedules, seconds)


def meter(device: Device) -> FakeMeter:
    return Noting(Clock(), library=10.0)


def here(options: dict[str, Any], device: str | None) -> Setting:
    if CARD and os.environ.get("FAKE_FAILS") == CARD:
        raise TargetError("no card is seen")
    card = get_device(device or "h200")
    runs = Accepted("runnable", ("cuda",))
    return Setting(Options.of(options, device=card), card, runs, card="NVIDIA H200", tuning=Tuning(meter))


def main(arguments: Sequence[str] | None = None) -> None:
    tune_command.setting_here = here
    app(arguments)


if __name__ == "__main__":
    main()
