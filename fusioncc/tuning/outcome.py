"""What came of the search for one group, and who is told of it meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusioncc.schedule import Schedule
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.key import Key
from fusioncc.tuning.measuring import Failed, Result


@dataclass(frozen=True)
class Raced:
    """A schedule as it was proposed, what came of it, and what the vendor's kernels took in the same run. A schedule
    that was confirmed is there twice."""

    schedule: Schedule
    result: Result
    library: Measured


def counted_failures(raced: Sequence[Raced]) -> dict[str, int]:
    """How many schedules failed in which way."""
    kinds = [each.result.kind for each in raced if isinstance(each.result, Failed)]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


@dataclass(frozen=True)
class Outcome:
    """``entry`` is what is to be kept; None: nothing was found out, for the reason in ``why``. ``pruned``: combinations
    of knobs that were never compiled, by reason; ``seconds``: what the search took; ``broken``: how the vendor's
    kernels failed, which ended it; ``cut``: a schedule that was to be measured had no time."""

    key: Key
    entry: Entry | None
    why: str
    raced: tuple[Raced, ...] = ()
    pruned: Mapping[str, int] | None = None
    seconds: float = 0.0
    broken: Failed | None = None
    cut: bool = False

    @property
    def failures(self) -> dict[str, int]:
        """How many schedules failed in which way."""
        return counted_failures(self.raced)


class Observer:
    """Is told how tuning goes on; overrides what it wants to know."""

    def begin(self, keys: Sequence[Key], seconds: float) -> None:
        """These groups will be searched, in that order and in so much time."""

    def searching(self, key: Key, seconds: float) -> None:
        """A group is begun, which has so much of the time."""

    def raced(self, key: Key, raced: Sequence[Raced]) -> None:
        """One race is over."""

    def done(self, outcome: Outcome) -> None:
        """The search for a group is over."""

    def end(self) -> None:
        """All searches are over, or were broken off."""
