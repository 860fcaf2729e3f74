"""Ranks of one job that tune together: what they tell each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fusioncc.tuning.entry import Entry
from fusioncc.tuning.key import Card, Key

T = TypeVar("T")


class Ranks(Protocol):
    """All processes of a job; each asks in the same order."""

    @property
    def rank(self) -> int:
        """The number of this one."""

    def gathered(self, mine: T, wait_s: float) -> list[T]:
        """What each rank gives, by rank, when all have come, for whom is waited so long.

        Raises:
            TuningError: a rank did not answer in time (``ranks``).
        """


class Alone:
    """A process that is no rank of anything."""

    rank = 0

    def gathered(self, mine: T, wait_s: float) -> list[T]:
        return [mine]


@dataclass(frozen=True)
class Wanted:
    """A key for which a rank wants a schedule: what the vendor's kernels are predicted to take for all its groups, what
    the rank's database holds, whether it was searched already in this job."""

    key: Key
    us: float
    entry: Entry | None
    searched: bool


@dataclass(frozen=True)
class Offer:
    """What a rank wants, by digest; the card that it can measure on (None: it has none); and the seconds that its
    searches have altogether (None: those of the effort for each)."""

    card: Card | None
    wanted: Mapping[str, Wanted]
    seconds: float | None = None


def dealt(digests: list[str], keys: Mapping[str, Key], offers: list[Offer]) -> list[list[str]]:
    """The digests that each rank searches: round robin over the ranks that have the card of the key."""
    hands: list[list[str]] = [[] for _ in offers]
    for turn, digest in enumerate(digests):
        able = [rank for rank, offer in enumerate(offers) if offer.card == keys[digest].card]
        if able:
            hands[able[turn % len(able)]].append(digest)
    return hands
