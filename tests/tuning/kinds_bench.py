"""A scripted bench that knows the kinds of schedules: ``split`` is the fastest that is right, others fail."""

from dataclasses import replace

from fusioncc.schedule import Schedule
from tests.tuning.scripted import ScriptedBench

BENCH = "tests.tuning.kinds_bench:KindsBench"
SCRIPT = {"split": "10.0", "inline": "hang", "concat": "12.0", "horizontal": "wrong", "two_pool": "9.0 then exit"}


class KindsBench(ScriptedBench):
    def attempt(self, place: int, schedule: Schedule | None) -> tuple[Schedule | None, float]:
        scripted = None if schedule is None else replace(schedule, kind=SCRIPT[schedule.kind])
        _, us = super().attempt(place, scripted)
        return schedule, us
