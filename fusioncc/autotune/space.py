"""The space of a kind: for each of its launches the pools that are legal, and how many were pruned for which reason."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusioncc.autotune import knobs
from fusioncc.autotune.kinds import Step
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


def spaces(group: Group, device: Device, kind: str, steps: tuple[Step, ...], tier: str = "fp32") -> tuple[Space, ...]:
    """One :class:`Space` for each of the ``steps`` of ``kind``, in order."""
    first = tuple(next(step.pools()) for step in steps)
    skeleton = launches(group, Schedule(kind, first), tier)
    return tuple(_space(step, base, device) for step, base in zip(steps, skeleton, strict=False))


def _space(step: Step, base: Launch, device: Device) -> Space:
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
    return Space(tuple(legal), len(legal) + pruned.total(), dict(pruned), step.consumers)
