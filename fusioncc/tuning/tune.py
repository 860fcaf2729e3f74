"""Tune groups: once for each signature on a machine, most time first, in a time that they share."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from time import monotonic

from fusioncc.cost_models.estimate import estimate
from fusioncc.device import Device
from fusioncc.errors import FusionError
from fusioncc.schedule import Schedule
from fusioncc.seam import translated
from fusioncc.tuning.claims import claimed
from fusioncc.tuning.database import Database, database
from fusioncc.tuning.efforts import Effort, as_wide
from fusioncc.tuning.entry import Entry, settled
from fusioncc.tuning.key import Card, Key
from fusioncc.tuning.measuring import Meter
from fusioncc.tuning.outcome import Observer, Outcome, Raced
from fusioncc.tuning.ranks import Alone, Offer, Ranks, Wanted, dealt
from fusioncc.tuning.search import prepare, search

OVERTIME = 0.1
"""Part of the time by which all searches together may be late: so much longer are those of other processes waited
for."""
AHEAD = 3
"""Groups whose first schedules are compiled while another group is searched: the compilers are many, the card is
one."""
MEET_S, LATE_S = 600.0, 120.0
"""How long a rank waits for others that are still planning; and, beyond the time of the search, for each group that one
searches, and once for the start of its worker: what Inductor makes of ``library`` is in no time."""
log = logging.getLogger("fusioncc.tuning")


@dataclass(frozen=True)
class Means:
    """What tuning is done with: the profile and the card of this process (None: it has none to measure on), who
    measures, how widely, in how many seconds altogether (None: those of the effort for each group), and who is told."""

    device: Device
    card: Card | None
    meters: Callable[[], Meter]
    effort: Effort
    seconds: float | None = None
    observers: tuple[Observer, ...] = ()
    clock: Callable[[], float] = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True)
class Tuned:
    """By digest, what is known now of the keys of all ranks; what this process searched; whether any rank did; and what
    broke the searches of this one off."""

    entries: Mapping[str, Entry]
    outcomes: tuple[Outcome, ...]
    searched: bool
    failure: FusionError | None = None


@dataclass
class Tuner:
    """Tunes into a database, and remembers what was searched, so that no search is made twice in this process."""

    database: Database
    searched: set[tuple[str, str]] = field(default_factory=set)
    """Digest and effort."""

    def tune(self, keys: Sequence[Key], means: Means, ranks: Ranks | None = None) -> Tuned:
        """Find or search a schedule for each key. What is found is stored after each group.

        All ranks have to call this, those that want nothing too; each ends with the same entries, also where one fails.

        Raises:
            TuningError: another rank did not answer (``ranks``).
        """
        ranks = ranks or Alone()
        offers = ranks.gathered(self._offer(keys, means), MEET_S)
        wanted: dict[str, Wanted] = {}
        for offer in offers:
            for digest, each in offer.wanted.items():
                wanted[digest] = _merged(wanted.get(digest), each)
        entries = {digest: each.entry for digest, each in wanted.items() if each.entry is not None}
        missing = sorted(
            (digest for digest, each in wanted.items() if not (each.searched or _suffices(each.entry, means.effort))),
            key=lambda digest: (-wanted[digest].us, digest),
        )
        if not missing:
            self._tell(entries, wanted, means.effort)
            return Tuned(entries, (), False)
        hands = dealt(missing, {digest: each.key for digest, each in wanted.items()}, offers)
        mine, done, failure = [wanted[digest].key for digest in hands[ranks.rank]], list[Outcome](), None
        try:
            translated("tuning failed", lambda: self._search_all(mine, means, done), FusionError)
        except FusionError as error:  # the others wait for what was found before
            failure = error
        found = {each.key.digest(): each.entry for each in done if each.entry is not None}
        for theirs in ranks.gathered(found, _longest(hands, offers, means.effort)):
            for digest, entry in theirs.items():
                old = entries.get(digest)
                entries[digest] = entry if old is None else settled(entry, old)
                if digest not in found and entries[digest] != old and entry.key.card == means.card:
                    self.database.store(entries[digest], means.device)
        self.searched.update((digest, means.effort.name) for digest in missing)
        self._tell(entries, wanted, means.effort)
        return Tuned(entries, tuple(done), True, failure)

    def _tell(self, entries: Mapping[str, Entry], wanted: Iterable[str], effort: Effort) -> None:
        """Who watches the database learns whether anything is left to be measured."""
        if not all(_suffices(entries.get(digest), effort) for digest in wanted):
            self.database.leave_unmeasured()

    def _offer(self, keys: Sequence[Key], means: Means) -> Offer:
        counts = Counter(key.digest() for key in keys)
        wanted = {}
        for key in keys:
            digest = key.digest()
            us, searched = counts[digest] * _library_us(key, means.device), (digest, means.effort.name) in self.searched
            wanted[digest] = Wanted(key, us, self.database.find(key, means.device), searched)
        return Offer(means.card, wanted, means.seconds)

    def _search_all(self, keys: Sequence[Key], means: Means, done: list[Outcome]) -> None:
        """Search each key in turn, and note what came of it in ``done``; those that another process is searching come
        last, when it may be done."""
        if not keys:
            return
        total = _total(len(keys), means.effort, means.seconds)
        try:
            meter = means.meters()
        except FusionError as error:
            log.warning("nothing is tuned: %s", error)
            return
        running = _Running(self.database, means, meter, total, means.clock() + total, done)
        try:
            for observer in means.observers:
                observer.begin(keys, total)
            running.run(keys)
        finally:
            meter.close()
            for observer in means.observers:
                observer.end()


@dataclass
class _Running:
    database: Database
    means: Means
    meter: Meter
    total: float
    deadline: float
    done: list[Outcome]

    def run(self, keys: Sequence[Key]) -> None:
        """All keys; each has an equal part of the time that is left when it is begun."""
        others = [key for at, key in enumerate(keys) if not self._tried(keys[at:])]
        for at, key in enumerate(others):
            if not self._tried(others[at:], self._patience(len(others) - at)):
                self._end(Outcome(key, None, "another process is still searching"))

    def _share(self, groups: int) -> float:
        return max(0.0, self.deadline - self.means.clock()) / groups

    def _patience(self, groups: int) -> float:
        """How long another process is waited for: the share of a group and, of all groups together, the overtime."""
        over = OVERTIME * self.total
        return max(0.0, min(self._share(groups) + over, self.deadline + over - self.means.clock()))

    def _tried(self, keys: Sequence[Key], wait_s: float = 0.0) -> bool:
        """Search for the first of the keys that are left, unless another process does and is not done in
        ``wait_s``."""
        key, *following = keys
        with claimed(self.database.folder, key.digest(), wait_s) as own:
            if not own:
                return False
            entry = self.database.find(key, self.means.device)
            if _suffices(entry, self.means.effort):
                self._end(Outcome(key, entry, "another process found it"))
                return True
            share = self._share(len(keys))
            for observer in self.means.observers:
                observer.searching(key, share)

            def tell(raced: Sequence[Raced]) -> None:
                for observer in self.means.observers:
                    observer.raced(key, raced)

            def prepare_others() -> None:
                for each in following[:AHEAD]:
                    prepare(each, means.device, self.meter, means.effort)

            means = self.means
            outcome = search(
                key,
                means.device,
                self.meter,
                means.effort,
                share,
                clock=means.clock,
                now=means.now,
                tell=tell,
                meanwhile=prepare_others,
            )
            if outcome.entry is not None:
                self.database.store(outcome.entry, means.device)
            self._end(outcome)
        return True

    def _end(self, outcome: Outcome) -> None:
        self.done.append(outcome)
        for observer in self.means.observers:
            observer.done(outcome)


def _total(groups: int, effort: Effort, seconds: float | None) -> float:
    """The time of so many searches altogether."""
    return effort.seconds * groups if seconds is None else seconds


def _longest(hands: Sequence[Sequence[str]], offers: Sequence[Offer], effort: Effort) -> float:
    """How long the rank that takes longest may search, s."""
    totals = (_total(len(hand), effort, offer.seconds) for hand, offer in zip(hands, offers, strict=True))
    return (1 + OVERTIME) * max(totals) + LATE_S * (1 + max(map(len, hands)))


def _suffices(entry: Entry | None, effort: Effort) -> bool:
    return entry is not None and as_wide(entry.effort, effort.name)


def _merged(one: Wanted | None, other: Wanted) -> Wanted:
    """What two ranks want of one key, together."""
    if one is None:
        return other
    best = one.entry or other.entry
    if one.entry is not None and other.entry is not None:
        best = settled(other.entry, one.entry)
    return replace(one, us=one.us + other.us, entry=best, searched=one.searched and other.searched)


def _library_us(key: Key, device: Device) -> float:
    """Predicted time of the vendor's kernels."""
    predicted = estimate(key.group, Schedule("library"), device, key.tier)
    return predicted.us if predicted is not None else 0.0


@cache
def _tuner(kept: Database) -> Tuner:
    return Tuner(kept)


def tuner() -> Tuner:
    """The tuner into the database of the cache folder, one for the whole process."""
    return _tuner(database())
