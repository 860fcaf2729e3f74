"""The meter's processes with a scripted bench in the place of the card: what fails costs only itself."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import Limits
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.measuring import Dropped, Failed, Race, Timed
from fusioncc.tuning.meter import CardMeter
from tests.shown import shown
from tests.tuning.scripted import BENCH, COMPILER, DEVICE, LIBRARY_US, job

LIMITS = Limits(attempt=2.0, sample=2.0, open=2.0)
LONG = 60.0
"""Seconds of races that end before."""
Make = Callable[..., CardMeter]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def meter(notes: Path) -> Iterator[Make]:
    made, before = [], children()

    def make(library: str = str(LIBRARY_US), limits: Limits = LIMITS) -> CardMeter:
        made.append(
            CardMeter(DEVICE, limits=limits, compilers=1, bench=(BENCH, str(notes), library), compiler=COMPILER)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert children() <= before


def children() -> set[int]:
    """Processes of this one, zombies included."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


def race(meter: CardMeter, *kinds: str, seconds: float = LONG, tier: str = "fp32") -> Race:
    return meter.race(job(tier), tuple(map(Schedule, kinds)), seconds)


def lines(notes: Path) -> list[str]:
    return [line.partition(" ")[2] for line in notes.read_text().splitlines()]


def workers(notes: Path) -> list[int]:
    return list(dict.fromkeys(int(line.split()[0]) for line in notes.read_text().splitlines()))


def timed(us: float, kind: str | None = None) -> Timed:
    return Timed(Schedule(kind or str(us)), Measured(us, 0.0))


def test_those_that_are_right_and_not_slow_are_raced(meter: Make, notes: Path) -> None:
    found = race(meter(), "10.0", "12.0", "15.1")
    assert found == Race(Measured(LIBRARY_US, 0.0), (timed(10.0), timed(12.0), Dropped(15.1)))
    said = lines(notes)
    assert said[:2] == ["open fp32", "try library"] and "forget 15.1" in said and "sample 15.1" not in said
    sampled = [line for line in said if line.startswith("sample")]
    rounds = [sampled[at : at + 3] for at in range(0, len(sampled), 3)]
    assert len(rounds) == 15 and len({*map(tuple, rounds)}) > 1, "in turns, in an order drawn anew"
    assert all(sorted(each) == ["sample 10.0", "sample 12.0", "sample 20.0"] for each in rounds)


HARMLESS = {
    "wrong": Failed("wrong", "out: RMS error 2.00"),
    "build": Failed("build", "kernel inline_0 spills 1000 registers"),
    "memory": Failed("memory", "CUDA out of memory. Tried to allocate 2 GiB."),
}
DEADLY = {
    "hang": Failed("hang", "no answer within 2.0 s"),
    "exit": Failed("crash", "it left with code 7: the driver is gone"),
    "abort": Failed("crash", "it died of SIGABRT"),
    "cuda": Failed("crash", "CUDA error: an illegal memory access was encountered"),
}


def test_what_fails_without_harm_leaves_the_worker(meter: Make, notes: Path) -> None:
    later = (f"11.0 then {event}" for event in HARMLESS)
    found = race(meter(), *HARMLESS, "10.0", *later, "12.0")
    assert found.results == (*HARMLESS.values(), timed(10.0), *HARMLESS.values(), timed(12.0))
    assert found.library == Measured(LIBRARY_US, 0.0) and len(workers(notes)) == 1


@pytest.mark.exhaustive
def test_what_takes_the_worker_along_costs_only_itself(meter: Make, notes: Path) -> None:
    found = race(meter(), "10.0", *DEADLY, "11.0", "12.0 then hang", "12.0 then abort", "13.0")
    died = (DEADLY["hang"], DEADLY["abort"])
    assert found.results == (timed(10.0), *DEADLY.values(), timed(11.0), *died, timed(13.0))
    assert found.library == Measured(LIBRARY_US, 0.0)
    *dead, last = workers(notes)
    assert len(dead) == 6 and not any(Path(f"/proc/{each}").exists() for each in dead) and children() >= {last}
    assert [lines(notes).count(f"sample {us}") for us in (10.0, 11.0, 13.0)] == [15, 15, 15], "no time was lost"


@pytest.mark.exhaustive
def test_only_what_a_dead_worker_knew_is_tried_again(meter: Make, notes: Path) -> None:
    race(meter(), "exit", "10.0", "11.0")
    assert [lines(notes).count(f"try {kind}") for kind in ("exit", "10.0", "11.0", "library")] == [1, 1, 1, 2]


@pytest.mark.exhaustive
@pytest.mark.parametrize("event", shown(["exit", "memory"], 1))
def test_where_the_library_fails_the_race_ends(meter: Make, notes: Path, event: str) -> None:
    """Nothing could win: it would have to be faster."""
    found = race(meter(library=event), "10.0", "14.0", "compiler hang", seconds=1000.0)
    assert isinstance(found.library, Failed) and found.library.kind == ("crash" if event == "exit" else "memory")
    assert found.results == (None, None, None) and lines(notes) == ["open fp32", "try library"]


def test_where_the_library_fails_late_nothing_else_is_timed_any_more(meter: Make, notes: Path) -> None:
    found = race(meter(library="20.0 then memory"), "10.0", "12.0")
    assert found.library == HARMLESS["memory"]
    sampled = [line for line in lines(notes) if line.startswith("sample")]
    assert sampled[-1] == "sample 20.0 then memory" and len(sampled) <= 3


def test_the_library_is_compiled_once_for_a_job(meter: Make, notes: Path) -> None:
    one = meter()
    for tier in ("fp32", "fp32", "relaxed"):
        assert race(one, "10.0", tier=tier).library == Measured(LIBRARY_US, 0.0)
    assert lines(notes).count("try library") == 2 and len(workers(notes)) == 1
    assert lines(notes).count("forget 10.0") == 3


def test_a_job_without_room(meter: Make) -> None:
    one = meter()
    found = race(one, "10.0", "compiler build", tier="memory")
    why = "CUDA out of memory. Tried to allocate 2 GiB."
    assert found.library == Failed("memory", why) and found.results[0] == Failed("memory", why)
    assert race(one, "10.0").results == (timed(10.0),)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tier", shown(["exit", "hang"], 1))
def test_a_worker_that_cannot_begin(meter: Make, tier: str) -> None:
    """Nobody is to blame; the next race tries again."""
    one = meter()
    found = race(one, "10.0", tier=tier)
    assert isinstance(found.library, Failed) and found.library.kind == {"exit": "crash", "hang": "hang"}[tier]
    assert found.results == (None,)
    assert race(one, "10.0").results == (timed(10.0),)


@pytest.mark.exhaustive
def test_the_time_is_kept(meter: Make) -> None:
    """A compiler that does not come back holds nobody up: what has no time left is None, the others are timed."""
    one = meter()
    race(one, "10.0")
    began = time.monotonic()
    found = race(one, "11.0", "compiler hang", "12.0", seconds=2.0)
    assert time.monotonic() - began < 4.0
    assert found == Race(Measured(LIBRARY_US, 0.0), (timed(11.0), None, None))


@pytest.mark.exhaustive
def test_when_time_is_up_only_the_library_is_tried_again(meter: Make) -> None:
    one = meter()
    race(one)
    for compiled in one._pool.compiled(job(), (Schedule("10.0"), Schedule("hang")), first=True):
        compiled.result(LONG)
    found = race(one, "10.0", "hang", "12.0", seconds=1.5)
    assert found == Race(Measured(LIBRARY_US, 0.0), (None, DEADLY["hang"], None))


def test_in_no_time_there_is_the_library(meter: Make) -> None:
    assert race(meter(), "10.0", "11.0", seconds=0.0) == Race(Measured(LIBRARY_US, 0.0), (None, None))


@pytest.mark.exhaustive
def test_a_compiler_that_dies_is_replaced(meter: Make) -> None:
    kinds = ("compiler abort", "10.0", "compiler exit", "compiler build", "11.0")
    found = race(meter(), *kinds)
    died = "its compiler did not come back: it"
    assert found.results == (
        Failed("build", f"{died} died of SIGABRT"),
        timed(10.0),
        Failed("build", f"{died} left with code 7: the driver is gone"),
        Failed("build", "kernel inline_0 does not compile"),
        timed(11.0),
    )


@pytest.mark.exhaustive
def test_a_worker_killed_between_races_is_nobody_s_fault(meter: Make, notes: Path) -> None:
    one = meter()
    race(one, "10.0")
    (worker,) = workers(notes)
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.2)
    assert race(one, "11.0").results == (timed(11.0),)


@pytest.mark.exhaustive
def test_an_interrupted_race_leaves_no_answer_behind(meter: Make) -> None:
    one = meter(limits=Limits())
    race(one, "10.0")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            race(one, "hang")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert race(one, "11.0", "12.0").results == (timed(11.0), timed(12.0))


MARK = "FUSIONCC_TEST_OF_METER"
PARENT = """
import signal, sys, time
from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import Limits
from fusioncc.tuning.meter import CardMeter
from tests.tuning.scripted import BENCH, COMPILER, DEVICE, job

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack
limits = Limits(attempt=1000.0)
meter = CardMeter(DEVICE, limits=limits, compilers=2, bench=(BENCH, sys.argv[1]), compiler=COMPILER)
meter.begin()
meter.prepare(job(), (Schedule("compiler hang"),))
if sys.argv[2] == "leaves":
    meter.race(job(), (Schedule("10"),), 60.0)
    time.sleep(1.0)
else:
    meter.race(job(), (Schedule("hang"),), 60.0)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", shown(["is interrupted", "leaves", "is killed"], 1))
def test_processes_end_with_their_parent(end: str, notes: Path) -> None:
    """However it ends, and whatever they are doing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), MARK: str(notes)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(notes), end], env=environment, stderr=-1)
    until(lambda: notes.exists() and ("sample 10" if end == "leaves" else "try hang") in lines(notes))
    assert len(marked(notes)) == 4, "the parent, a worker, a compiler that hangs and one that does not"
    if end != "leaves":
        parent.send_signal(signal.SIGINT if end == "is interrupted" else signal.SIGKILL)
    parent.communicate(timeout=60)
    until(lambda: not marked(notes))


def until(done: Callable[[], bool]) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("a minute went by")


def marked(notes: Path) -> list[int]:
    """Processes that have the mark of a test in their environment, as those have that they start."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or not ours
            if f"{MARK}={notes}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
