"""How widely is searched, and for how long: one table, least first."""

from dataclasses import dataclass
from typing import Literal

Name = Literal["none", "quick", "full"]


@dataclass(frozen=True)
class Effort:
    """``candidates``: schedules of a group that are measured first; ``local``: whether the neighbours of the best one
    are measured then, until none is faster; ``seconds``: for one group, compilation included."""

    name: Name
    candidates: int
    local: bool
    seconds: float


EFFORTS: dict[str, Effort] = {
    "none": Effort("none", 0, False, 0.0),
    "quick": Effort("quick", 8, False, 60.0),
    "full": Effort("full", 8, True, 300.0),
}
"""A kernel compiles in one to three seconds, several at once, and is timed in tenths of one; in the first race of a
group Inductor also compiles what the kernels are measured against."""
MEASURING = tuple(name for name, effort in EFFORTS.items() if effort.candidates)
"""Those that measure."""


def as_wide(effort: str, other: str) -> bool:
    """Whether an effort searches at least as widely as another."""
    order = list(EFFORTS)
    return order.index(effort) >= order.index(other)
