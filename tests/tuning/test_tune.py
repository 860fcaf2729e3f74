"""Tuning groups: once each, in the time they share, kept at once, and never twice on a machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusioncc.errors import MissingExtraError, TuningError
from fusioncc.schedule import Schedule
from fusioncc.tuning import tune
from fusioncc.tuning.claims import claimed
from fusioncc.tuning.database import Database
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Job, Meter, Race
from fusioncc.tuning.outcome import Observer, Outcome, Raced
from fusioncc.tuning.ranks import Offer, dealt
from fusioncc.tuning.tune import Means, Tuner
from tests.cost_models.groups import bundle, lora
from tests.tuning.entries import DATE, DEVICE, entry, key, schedule
from tests.tuning.fake_meter import Clock, FakeMeter

ROOT = Path(__file__).parents[2]
SMALL, MIDDLE, LARGE = key(lora(64, 1024, 1024, 16)), key(lora(64, 2048, 4096, 16)), key(lora(64, 4096, 14336, 16))


class Watcher(Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def begin(self, keys: Sequence[Key], seconds: float) -> None:
        self.told.append(("begin", tuple(keys), seconds))

    def searching(self, key: Key, seconds: float) -> None:
        self.told.append(("searching", key, seconds))

    def raced(self, key: Key, raced: Sequence[Raced]) -> None:
        self.told.append(("raced", key, len(raced)))

    def done(self, outcome: Outcome) -> None:
        self.told.append(("done", outcome.key, outcome.entry))

    def end(self) -> None:
        self.told.append(("end",))


def means(meter: FakeMeter, effort: str = "quick", seconds: float | None = None, **more: Any) -> Means:
    return Means(
        DEVICE, SMALL.card, lambda: meter, EFFORTS[effort], seconds, clock=meter.clock, now=lambda: DATE, **more
    )


@pytest.fixture
def tuner(tmp_path: Path) -> Tuner:
    return Tuner(Database(tmp_path / "tuned"))


def test_each_signature_is_searched_once_most_time_first(tuner: Tuner) -> None:
    watcher, meter = Watcher(), FakeMeter(Clock(), library=10.0)
    tuned = tuner.tune([SMALL, LARGE, MIDDLE, MIDDLE], means(meter, observers=(watcher,)))
    assert [outcome.key for outcome in tuned.outcomes] == [LARGE, MIDDLE, SMALL]
    assert tuned.searched and {*tuned.entries} == {each.digest() for each in (SMALL, MIDDLE, LARGE)}
    assert all(tuner.database.find(each.key, DEVICE) == each.entry for each in tuned.outcomes)
    names = [each[0] for each in watcher.told]
    assert names[0] == "begin" and names[-1] == "end" and names.count("searching") == names.count("done") == 3
    assert meter.closed == 1


@pytest.mark.exhaustive
def test_how_often_a_group_runs_counts(tuner: Tuner) -> None:
    tuned = tuner.tune([LARGE, *[SMALL] * 1000], means(FakeMeter(Clock(), library=10.0)))
    assert [outcome.key for outcome in tuned.outcomes] == [SMALL, LARGE]


def test_what_is_known_is_not_searched_again(tuner: Tuner) -> None:
    meter = FakeMeter(Clock(), library=10.0)
    first = tuner.tune([SMALL], means(meter))
    races = len(meter.races)
    again = tuner.tune([SMALL], means(meter))
    elsewhere = Tuner(Database(tuner.database.folder.path)).tune([SMALL], means(meter))
    assert again.entries == elsewhere.entries == first.entries and not again.searched and not elsewhere.searched
    assert len(meter.races) == races and meter.closed == 1, "no meter is started for it"


def test_more_effort_searches_again_and_less_does_not(tuner: Tuner) -> None:
    meter = FakeMeter(Clock(), library=10.0)
    assert tuner.tune([SMALL], means(meter)).searched
    full = tuner.tune([SMALL], means(meter, "full", 1e6))
    assert full.searched and full.entries[SMALL.digest()].effort == "full"
    assert not tuner.tune([SMALL], means(meter)).searched
    assert not tuner.tune([SMALL], means(meter, "full", 1e6)).searched


def test_a_wider_search_that_keeps_the_schedule_is_made_once_on_a_machine(tuner: Tuner) -> None:
    """Processes come one after the other; the second finds nothing that is faster than what the first one has."""
    lucky = entry(0.5, key=SMALL, schedule=schedule("inline", group=SMALL.group), library=Measured(500.0, 0.1))
    lucky = replace(lucky, time=Measured(0.5, 0.01))
    assert tuner.database.store(lucky, DEVICE) == "stored"
    folder, meter = tuner.database.folder.path, FakeMeter(Clock(), library=10.0)
    tuned = tuner.tune([SMALL], means(meter, "full", 1e6))
    (outcome,) = tuned.outcomes
    assert outcome.entry is not None and outcome.entry.effort == "full" and outcome.entry.schedule != lucky.schedule
    kept = replace(lucky, effort="full", candidates=outcome.entry.candidates)
    assert tuned.entries == {SMALL.digest(): kept} and tuner.database.find(SMALL, DEVICE) == kept
    again = Tuner(Database(folder)).tune([SMALL], means(meter, "full", 1e6))
    assert not again.searched and again.entries == tuned.entries


def test_library_is_kept_too(tuner: Tuner) -> None:
    meter = FakeMeter(Clock(), library=0.2)
    tuned = tuner.tune([SMALL], means(meter))
    assert tuned.entries[SMALL.digest()].schedule == Schedule("library")
    assert not tuner.tune([SMALL], means(meter)).searched


def test_what_came_to_nothing_is_not_tried_again_in_this_process(tuner: Tuner) -> None:
    meter = FakeMeter(Clock())
    fruitless = tuner.tune([SMALL], means(meter, seconds=0.0))
    assert fruitless.searched and fruitless.entries == {} and "no time" in fruitless.outcomes[0].why
    assert not tuner.tune([SMALL], means(meter)).searched
    assert Tuner(tuner.database).tune([SMALL], means(meter)).searched


@pytest.mark.parametrize("seconds", [20.0, 60.0, 300.0])
@pytest.mark.parametrize("effort", ["quick", "full"])
def test_groups_share_the_time(tuner: Tuner, seconds: float, effort: str) -> None:
    watcher, meter = Watcher(), FakeMeter(Clock(), library=10.0)
    tuner.tune([SMALL, MIDDLE, LARGE], means(meter, effort, seconds, observers=(watcher,)))
    assert meter.clock.now <= 1.1 * seconds
    shares = [each[2] for each in watcher.told if each[0] == "searching"]
    assert shares[0] == seconds / 3 and all(each >= 0.8 * seconds / 3 for each in shares)
    assert shares == sorted(shares) or effort == "full", "what one leaves is for the others"


def test_the_next_groups_are_compiled_while_one_is_searched(tuner: Tuner) -> None:
    """So that what is raced first of them is ready when it is their turn, and the first group is not held up."""
    told: list[tuple[str, int]] = []
    keys = [key(lora(64, 1024 * at, 1024, 16)) for at in (8, 7, 6, 5, 4)]

    class Noting(FakeMeter):
        def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
            told.append(("prepare", job.group.k))
            super().prepare(job, schedules)

        def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
            told.append(("race", job.group.k))
            return super().race(job, schedules, seconds)

    meter = Noting(Clock(), library=10.0)
    tuner.tune(keys, means(meter))
    before = [k // 1024 for what, k in told[: told.index(("race", 8192))] if what == "prepare"]
    assert list(dict.fromkeys(before)) == [8, 7, 6, 5]
    assert told.index(("prepare", 4096)) < told.index(("race", 7168))
    alone = Noting(Clock(), library=10.0)
    Tuner(Database(tuner.database.folder.path / "none")).tune(keys[:1], means(alone))
    assert alone.races[0] == meter.races[0]


def test_the_effort_says_how_long_where_nobody_else_does(tuner: Tuner) -> None:
    watcher = Watcher()
    tuner.tune([SMALL, LARGE], means(FakeMeter(Clock()), observers=(watcher,)))
    assert watcher.told[0][2] == 2 * EFFORTS["quick"].seconds


class Interrupted(FakeMeter):
    """The user has enough in the second group."""

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        if job.group == MIDDLE.group:
            raise KeyboardInterrupt
        return super().race(job, schedules, seconds)


def test_what_was_found_before_an_interrupt_is_kept(tuner: Tuner) -> None:
    watcher, meter = Watcher(), Interrupted(Clock(), library=10.0)
    with pytest.raises(KeyboardInterrupt):
        tuner.tune([SMALL, MIDDLE, LARGE], means(meter, observers=(watcher,)))
    assert meter.closed == 1 and watcher.told[-1] == ("end",)
    assert [tuner.database.find(each, DEVICE) is not None for each in (LARGE, MIDDLE, SMALL)] == [True, False, False]
    with claimed(tuner.database.folder, MIDDLE.digest()) as own:
        assert own, "nobody waits for it"


def test_without_a_meter_nothing_is_tuned(tuner: Tuner, caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> Meter:
        raise MissingExtraError("there is no card")

    tuned = tuner.tune([SMALL], replace(means(FakeMeter(Clock())), meters=missing))
    assert tuned.entries == {} and tuned.outcomes == ()
    assert [record.getMessage() for record in caplog.records] == ["nothing is tuned: there is no card"]


def test_a_folder_that_cannot_be_written_keeps_results_in_memory(tuner: Tuner, tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("in the way")
    meter = FakeMeter(Clock(), library=10.0)
    tuned = tuner.tune([SMALL], means(meter))
    assert tuner.database.find(SMALL, DEVICE) == tuned.entries[SMALL.digest()]
    assert not tuner.tune([SMALL], means(meter)).searched


def test_a_claim_of_another_is_waited_for_and_its_entry_taken(tuner: Tuner) -> None:
    """The other group is searched meanwhile."""
    found = entry(key=LARGE, schedule=Schedule("library"), time=entry().library)

    class Meanwhile(FakeMeter):
        def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
            if job.group == SMALL.group and not self.races:
                assert tuner.database.store(found, DEVICE) == "stored"
                theirs.__exit__(None, None, None)
            return super().race(job, schedules, seconds)

    theirs = claimed(tuner.database.folder, LARGE.digest())
    assert theirs.__enter__()
    meter = Meanwhile(Clock(), library=10.0)
    tuned = tuner.tune([SMALL, LARGE], means(meter))
    assert [outcome.key for outcome in tuned.outcomes] == [SMALL, LARGE]
    assert tuned.entries[LARGE.digest()] == found and "another process found it" in tuned.outcomes[1].why


def test_a_claim_that_lasts_too_long_is_given_up(tuner: Tuner) -> None:
    with claimed(tuner.database.folder, SMALL.digest()) as own:
        assert own
        tuned = tuner.tune([SMALL], means(FakeMeter(Clock()), seconds=0.2))
    assert tuned.entries == {} and "still searching" in tuned.outcomes[0].why


def run(script: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


SEARCHING = """
import json, sys, time
from pathlib import Path
from fusioncc.tuning.database import Database
from fusioncc.tuning.tune import Tuner
from tests.tuning.fake_meter import Clock, FakeMeter
from tests.tuning.test_tune import MIDDLE, SMALL, means
from dataclasses import replace

folder, role = Path(sys.argv[1]), sys.argv[2]
begun = folder.parent / "begun"

class Waiting(FakeMeter):
    def race(self, job, schedules, seconds):
        print("racing", flush=True)
        while not begun.exists():
            time.sleep(0.01)
        return super().race(job, schedules, seconds)

def started():
    if role == "second":
        begun.touch()
    return meter

meter = Waiting(Clock(), library=10.0)
used = replace(means(meter, seconds=100.0), clock=time.monotonic, meters=started)
tuned = Tuner(Database(folder)).tune([SMALL], used)
kinds = [each.schedule.kind for each in tuned.entries.values()]
print(json.dumps([len(meter.races), kinds, [outcome.why for outcome in tuned.outcomes]]))
"""


@pytest.mark.exhaustive
def test_two_processes_search_once(tmp_path: Path) -> None:
    first = run(SEARCHING, str(tmp_path / "tuned"), "first")
    assert first.stdout is not None and first.stdout.readline() == "racing\n"
    second = run(SEARCHING, str(tmp_path / "tuned"), "second")
    mine, theirs = (json.loads(each.communicate(timeout=120)[0].splitlines()[-1]) for each in (first, second))
    assert mine[0] >= 2 and theirs[0] == 0
    assert mine[1] == theirs[1] != [] and theirs[2] == ["another process found it"]


def test_the_claim_of_a_dead_process_is_free(tmp_path: Path) -> None:
    first = run(SEARCHING, str(tmp_path / "tuned"), "first")
    assert first.stdout is not None and first.stdout.readline() == "racing\n"
    tuner = Tuner(Database(tmp_path / "tuned"))
    with claimed(tuner.database.folder, SMALL.digest()) as own:
        assert not own
    first.kill()
    first.communicate()
    began = time.monotonic()
    assert tuner.tune([SMALL], means(FakeMeter(Clock(), library=10.0))).entries
    assert time.monotonic() - began < 10.0


class Fixed:
    """A rank with the answers of others."""

    def __init__(self, rank: int, *theirs: Sequence[Any]) -> None:
        self.rank, self.theirs = rank, [*theirs]

    def gathered(self, mine: Any, wait_s: float) -> list[Any]:
        if not self.theirs:
            raise TuningError("ranks", "a rank did not answer")
        answers = [*self.theirs.pop(0)]
        answers.insert(self.rank, mine)
        return answers


def test_groups_are_dealt_to_ranks_that_have_the_card() -> None:
    keys = {each.digest(): each for each in (SMALL, MIDDLE, LARGE, key(lora(64, 4096, 14336, 16), card="NVIDIA A100"))}
    here = Offer(SMALL.card, {})
    assert dealt([*keys], keys, [here, Offer(None, {}), here]) == [[*keys][0:3:2], [], [[*keys][1]]]
    assert dealt([*keys][3:], keys, [here, here]) == [[], []]


def test_a_rank_that_wants_nothing_searches_for_the_others_and_ends_with_the_same(tuner: Tuner, tmp_path: Path) -> None:
    asking = Tuner(Database(tmp_path / "other"))
    meter = FakeMeter(Clock(), library=10.0)
    offer = asking._offer([LARGE, SMALL], means(meter))
    theirs: dict[str, Entry] = Tuner(Database(tmp_path / "third")).tune([LARGE], means(meter)).entries  # type: ignore[assignment]
    tuned = tuner.tune([], means(meter), Fixed(1, [offer], [theirs]))
    assert [outcome.key for outcome in tuned.outcomes] == [SMALL], "the second of two"
    assert {*tuned.entries} == {LARGE.digest(), SMALL.digest()}
    assert tuner.database.find(LARGE, DEVICE) == theirs[LARGE.digest()]


def test_what_a_rank_has_already_nobody_searches(tuner: Tuner, tmp_path: Path) -> None:
    meter = FakeMeter(Clock(), library=10.0)
    other = Tuner(Database(tmp_path / "other"))
    known = other.tune([SMALL], means(meter)).entries
    tuned = tuner.tune([SMALL], means(meter), Fixed(0, [other._offer([SMALL], means(meter))]))
    assert tuned.entries == known and not tuned.searched


def test_a_dead_rank_is_an_error(tuner: Tuner) -> None:
    with pytest.raises(TuningError, match="did not answer"):
        tuner.tune([SMALL], means(FakeMeter(Clock())), Fixed(0))


def test_a_bundle_of_everything() -> None:
    """Keys of different groups are different files."""
    assert len({key(group).digest() for group in (bundle(64, 1024, (512, 8)), bundle(64, 1024, (512, 0)))}) == 2


class Answering(Fixed):
    """Notes what this rank gives, and how long it would wait."""

    def __init__(self, rank: int, *theirs: Sequence[Any]) -> None:
        super().__init__(rank, *theirs)
        self.given: list[Any] = []
        self.waits: list[float] = []

    def gathered(self, mine: Any, wait_s: float) -> list[Any]:
        self.given.append(mine)
        self.waits.append(wait_s)
        return super().gathered(mine, wait_s)


def test_a_rank_whose_search_breaks_off_gives_what_it_found_and_takes_the_rest(tuner: Tuner, tmp_path: Path) -> None:
    class Breaking(FakeMeter):
        def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
            if job.group == SMALL.group:
                raise ZeroDivisionError("in the meter")
            return super().race(job, schedules, seconds)

    theirs = Tuner(Database(tmp_path / "other")).tune([MIDDLE], means(FakeMeter(Clock(), library=10.0))).entries
    ranks = Answering(0, [Offer(SMALL.card, {})], [theirs])
    tuned = tuner.tune([SMALL, MIDDLE, LARGE], means(Breaking(Clock(), library=10.0)), ranks)
    assert "ZeroDivisionError: in the meter" in str(tuned.failure) and tuned.searched
    assert {*ranks.given[1]} == {LARGE.digest()} and {*tuned.entries} == {LARGE.digest(), MIDDLE.digest()}
    assert not tuner.tune([SMALL], means(FakeMeter(Clock()))).searched, "nor are they asked for it again"


@pytest.mark.parametrize(("seconds", "least"), [(None, 2 * EFFORTS["full"].seconds), (9000.0, 9000.0)])
def test_ranks_are_waited_for_as_long_as_the_longest_may_search(
    tuner: Tuner, seconds: float | None, least: float
) -> None:
    """Also by a rank that searches less, or nothing; that of the longest hand is told by the offers."""
    of = means(FakeMeter(Clock(), library=10.0), "full", seconds)
    offer = Tuner(tuner.database)._offer([SMALL, MIDDLE, LARGE], of)
    ranks = Answering(1, [offer], [{}])
    tuner.tune([], replace(of, seconds=None), ranks)
    assert 1.1 * least < ranks.waits[1] < 1.1 * least + 600.0


def test_claims_of_others_cost_the_overtime_once(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    @contextmanager
    def held(folder: object, digest: str, wait_s: float = 0.0) -> Iterator[bool]:
        clock.now += wait_s
        yield False

    monkeypatch.setattr(tune, "claimed", held)
    keys = [key(lora(64, 1024, width, 16)) for width in range(256, 256 * 21, 256)]
    tuned = tuner.tune(keys, means(FakeMeter(clock), seconds=100.0))
    assert len(tuned.outcomes) == 20 and clock.now <= 110.0 + 1e-6
