"""Processes that tune the same groups through the tuner, with a meter that has no card, killed at random.

``python -m tests.tuning.tuning_processes FOLDER KILLS SEED`` loads no torch. It prints what was found out as JSON: how
many searches had been told of as done, those whose entries are lost, processes that read something damaged, damaged
files, how long the lock took when all were dead, claims that nobody can have any more, and how often a group was
searched again although its entry was there.
"""

import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fusioncc.schedule import Schedule
from fusioncc.tuning.claims import CLAIM, claimed
from fusioncc.tuning.database import SUFFIX, Database
from fusioncc.tuning.efforts import EFFORTS, as_wide
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Job, Race, Timed
from fusioncc.tuning.outcome import Observer, Outcome
from fusioncc.tuning.tune import Means, Tuner
from tests.tuning.entries import DEVICE, key
from tests.tuning.fake_meter import Clock, FakeMeter
from tests.tuning.processes import DAMAGED, PROCESSES, stop

KEYS, AT_ONCE = 150, 4
RACE_S, SPREAD = 0.005, 0.01
LEAST, LONGEST_S = 10, 60.0
"""Groups of which something has to be found out, and how long that may take behind the last kill but those at the end.
"""


def key_at(number: int) -> Key:
    """One of the keys: of one group, under limits that rule nothing out."""
    return key(max_peak_increase=10**9 + number)


class SlowMeter(FakeMeter):
    """Takes time of this world, in which it may be killed; and measures without noise, so that no search is in vain."""

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        time.sleep(RACE_S)
        race = super().race(job, schedules, seconds)
        results = [replace(each, time=spread(each.time)) if isinstance(each, Timed) else each for each in race.results]
        return Race(spread(race.library), tuple(results))


def spread(time: Measured) -> Measured:
    return Measured(time.us, SPREAD * time.us)


class Noting(Observer):
    """Notes each search that is over, whose entry is stored by then."""

    def __init__(self, folder: Path) -> None:
        self._notes = os.open(folder.parent / f"notes{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def done(self, outcome: Outcome) -> None:
        if outcome.entry is not None:
            how = "searched" if outcome.raced else "found"
            os.write(self._notes, f"{outcome.key.digest()} {outcome.entry.effort} {how}\n".encode())


class Loud(logging.Handler):
    """Nothing is wrong with any file, so nothing is to be logged."""

    def emit(self, record: logging.LogRecord) -> None:
        os.write(2, f"{record.getMessage()}\n".encode())
        os._exit(DAMAGED)


def work(folder: Path, seed: int) -> None:
    """Tune some of the keys with some effort, again and again until killed; each time as a process that starts."""
    logging.getLogger("fusioncc.tuning").addHandler(Loud())
    chance, noting = random.Random(seed), Noting(folder)
    while True:
        keys = [key_at(number) for number in chance.sample(range(KEYS), AT_ONCE)]
        effort = chance.choice(["quick", "quick", "full"])
        meter = SlowMeter(Clock(), noise=0.0, library=4.0)
        means = Means(DEVICE, keys[0].card, lambda each=meter: each, EFFORTS[effort], 1e4, (noting,))
        Tuner(Database(folder)).tune(keys, means)


def start(folder: Path, seed: int) -> int:
    child = os.fork()
    if not child:
        try:
            work(folder, seed)
        finally:
            os._exit(1)
    return child


def main(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    warm = Means(DEVICE, key_at(0).card, lambda: FakeMeter(Clock(), library=4.0), EFFORTS["quick"], 1e4)
    Tuner(Database(folder.parent / "warm")).tune([key_at(0)], warm)  # what is ranked here, the children need not rank
    kept, codes = Database(folder), []
    children = [start(folder, seed + number) for number in range(PROCESSES)]
    for number in range(kills):
        time.sleep(chance.uniform(0.05, 0.2))
        at = chance.randrange(PROCESSES)
        codes.append(stop(children[at]))
        children[at] = start(folder, seed + PROCESSES + number)
    deadline = time.monotonic() + LONGEST_S
    while len(kept.folder.names(SUFFIX)) < LEAST and time.monotonic() < deadline:  # a slow machine
        time.sleep(0.05)
    codes += map(stop, children)
    began = time.perf_counter()
    with kept.folder.locked():
        lock_s = time.perf_counter() - began
    stuck = []
    for name in kept.folder.names(CLAIM):
        with claimed(kept.folder, name.removesuffix(CLAIM)) as own:
            stuck += [] if own else [name]
    notes = [line.split() for file in folder.parent.glob("notes*") for line in file.read_text().splitlines()]
    found = {each.digest(): kept.find(each, DEVICE) for each in map(key_at, range(KEYS))}
    lost = [note for note in notes if (last := found[note[0]]) is None or not as_wide(last.effort, note[1])]
    searches = Counter((digest, effort) for digest, effort, how in notes if how == "searched")
    again = sum(count - 1 for count in searches.values())
    wrong = [code for code in codes if code != -signal.SIGKILL]
    damaged = len(kept.listed().refused)
    files = len(kept.folder.names(SUFFIX))
    print(json.dumps([len(notes), lost, wrong, damaged, lock_s, stuck, again, files, "torch" in sys.modules]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
