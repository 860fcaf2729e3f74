"""The space of a kind: for each of its launches the pools that are legal, and how many were pruned for which reason."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusioncc.autotune import knobs
from fusioncc.autotune.kinds import KINDS
from fusioncc.cost_models.launches import Launch, launches, with_pool
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Schedule


@dataclass(frozen=True)
class Space:
    """One launch: its legal forms in a fixed order; ``enumerated`` is their number and all of ``pruned``."""

    legal: tuple[Launch, ...]
    enumerated: int
    pruned: Mapping[str, int] = field(default_factory=dict)
    consumers: int = 0
    """Later launches that add this one's partial sums."""

    def why_empty(self) -> str:
        """The commonest reason for pruning, with its share."""
        reason, count = max(self.pruned.items(), key=lambda item: item[1])
        return f"no tile config fits: {count} of {self.enumerated} need {reason}"


def spaces(group: Group, device: Device, kind: str, tier: str = "fp32") -> tuple[Space, ...]:
    """One :class:`Space` for each emitted launch of ``kind``, in order; empty for kinds without emitted kernels.

    Raises:
        KeyError: no such kind.
    """
    if KINDS[kind].illegal(group):
        return ()
    steps = KINDS[kind].steps(group, device)
    first = tuple(next(step.pools()) for step in steps)
    skeleton = launches(group, Schedule(kind, first), tier)
    answer = []
    for step, base in zip(steps, skeleton, strict=False):
        pruned: Counter[str] = Counter()
        legal = []
        for pool in step.pools():
            launch = with_pool(base, pool)
            columns = pool.tile.block_n if step.role == "down" else launch.n
            reason = knobs.oversized(pool.tile, launch.m, columns, -(-launch.k // pool.k_split)) or knobs.prune(
                launch, device
            )
            if reason:
                pruned[reason] += 1
            else:
                legal.append(launch)
        answer.append(Space(tuple(legal), len(legal) + pruned.total(), dict(pruned), step.consumers))
    return tuple(answer)
