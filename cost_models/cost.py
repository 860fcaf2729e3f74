"""The cost of one launch, as every model of time answers it."""

from dataclasses import dataclass

OVERLAPPING = ("dram", "l2", "mma")
"""Terms of one launch that run at the same time: the largest counts."""
ADDED = ("latency", "launch", "tail")
"""Terms that come on top."""


@dataclass(frozen=True)
class Cost:
    """Terms in us; ``dram_bytes`` through the memory."""

    dram: float
    l2: float
    mma: float
    latency: float
    launch: float
    tail: float
    dram_bytes: int
    tiles: int = 0
    waves: float = 0.0

    @property
    def us(self) -> float:
        """Time of the launch: the largest overlapping term and everything that is added."""
        return max(self.dram, self.l2, self.mma) + self.latency + self.launch + self.tail
