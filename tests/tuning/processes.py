"""Processes that write and read the same keys, killed at random.

``python -m tests.tuning.processes FOLDER KILLS SEED`` loads no torch. It prints what was found out as JSON: how many
stores had returned, whose results are lost, processes that read something damaged, damaged files, how long the lock
took when all were dead, leftovers of killed writers.
"""

import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

from fusioncc.tuning.database import Database
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.space import require_selectable
from tests.tuning.entries import DEVICE, entry, key

PROCESSES, CARDS = 8, ("a", "b", "c")
LIBRARY = Measured(1e6, 0.0)
DAMAGED = 3
"""Exit code of a process that read something damaged."""


def of(card: str, us: float) -> Entry:
    return entry(key=key(card=card), time=Measured(us, 0.0), library=LIBRARY)


def work(folder: Path, seed: int) -> None:
    """Find and improve until killed. A result is noted when ``store`` has returned."""
    kept, chance = Database(folder), random.Random(seed)
    notes = os.open(folder.parent / f"notes{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Loud(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.write(2, f"{record.getMessage()}\n".encode())
            os._exit(DAMAGED)

    logging.getLogger("fusioncc.tuning").addHandler(Loud())
    while True:
        card = chance.choice(CARDS)
        found = kept.find(key(card=card), DEVICE)
        better = of(card, found.time.us * 0.999 if found else 9e5)
        if kept.store(better, DEVICE) == "stored":
            os.write(notes, f"{card} {better.time.us!r}\n".encode())


def start(folder: Path, seed: int) -> int:
    child = os.fork()
    if not child:
        try:
            work(folder, seed)
        finally:
            os._exit(1)
    return child


def stop(child: int) -> int:
    """Kill a process; how it had ended by itself, if it had."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    require_selectable(entry().schedule, key(), DEVICE)  # what was ranked here, the children need not rank
    children = [start(folder, seed + number) for number in range(PROCESSES)]
    codes = []
    for number in range(kills):
        time.sleep(chance.uniform(0.01, 0.1))
        at = chance.randrange(PROCESSES)
        codes.append(stop(children[at]))
        children[at] = start(folder, seed + PROCESSES + number)
    codes += map(stop, children)
    kept, began = Database(folder), time.perf_counter()
    with kept.folder.locked():
        lock_s = time.perf_counter() - began
    notes = [line.split() for file in folder.parent.glob("notes*") for line in file.read_text().splitlines()]
    found = {card: kept.find(key(card=card), DEVICE) for card in CARDS}
    lost = [(card, us) for card, us in notes if (last := found[card]) is None or last.time.us > float(us)]
    left = len(kept.folder.names(".tmp"))
    damaged = len(kept.listed().refused)
    wrong = [code for code in codes if code != -signal.SIGKILL]
    print(json.dumps([len(notes), lost, wrong, damaged, lock_s, left, "torch" in sys.modules]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
