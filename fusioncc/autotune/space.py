"""The space of a kind: for each of its launches the pools that are legal, and how many were pruned for which reason."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusioncc.autotune import knobs
from fusioncc.autotune.step import Step
from fusioncc.cost_models.launch import Launch, with_pools
from fusioncc.cost_models.launches import launches
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, Schedule


@dataclass(frozen=True)
class Choice:
    """What a launch may be: its pools, and how the cost models see them."""

    pools: tuple[Pool, ...]
    launch: Launch


@dataclass(frozen=True)
class Space:
    """One launch: its legal forms in a fixed order; ``enumerated`` is their number and all of ``pruned``."""

    legal: tuple[Choice, ...]
    enumerated: int
    pruned: Mapping[str, int] = field(default_factory=dict)
    consumers: int = 0
    """Later launches that add this one's partial sums."""

    def why_empty(self) -> str:
        """Every reason for pruning with its share, the commonest first."""
        ordered = sorted(self.pruned.items(), key=lambda item: -item[1])
        return f"no tile config of {self.enumerated} fits: " + ", ".join(f"{count} {why}" for why, count in ordered)


def spaces(group: Group, device: Device, kind: str, steps: tuple[Step, ...], tier: str = "fp32") -> tuple[Space, ...]:
    """One :class:`Space` for each of the ``steps`` of ``kind``, in order."""
    first = tuple(pool for step in steps for pool in next(step.pools()))
    skeleton = [launch for launch in launches(group, Schedule(kind, first), tier) if launch.pool is not None]
    return tuple(_space(step, base, device) for step, base in zip(steps, skeleton, strict=False))


def _space(step: Step, base: Launch, device: Device) -> Space:
    """Short K steps are for launches that nothing else fits."""
    found = _pruned(step, base, device, knobs.LINE_BYTES)
    return found if found.legal else _pruned(step, base, device, 0)


def _pruned(step: Step, base: Launch, device: Device, least: int) -> Space:
    pruned: Counter[str] = Counter()
    legal = []
    sides = _Sides(base, least)
    for pools in step.pools():
        reason = sides.unsuited(pools)  # asked first: no launch has to be made for it
        if not reason:
            launch = with_pools(base, pools)
            reason = knobs.prune(launch, device)
        if reason:
            pruned[reason] += 1
        else:
            legal.append(Choice(pools, launch))
    return Space(tuple(legal), len(legal) + pruned.total(), dict(pruned), step.consumers)


class _Sides:
    """The sizes of the members of a launch, by which tiles are judged; a K step has ``least`` bytes at least."""

    def __init__(self, base: Launch, least: int) -> None:
        self.parts, self.least = base.parts, least
        self.element = max(max(part.x_element, part.w_element) for part in base.parts)
        self.of: dict[tuple[bool, tuple[int, ...]], tuple[int, int, int]] = {}

    def unsuited(self, pools: tuple[Pool, ...]) -> str:
        """Why a tile does not suit its members, of which the widest counts: its size, or the bytes of its K step."""
        for pool in pools:
            down = pool.role == "down"
            m, widest, k = self.of.get((down, pool.members)) or self._measured(down, pool.members)
            columns = pool.tile.block_n if down else widest
            depth = -(-k // pool.k_split) or pool.tile.block_k
            reason = knobs.oversized(pool.tile, m, columns, depth) or knobs.short(
                pool.tile, self.element, min(self.least, k * self.element)
            )
            if reason:
                return reason
        return ""

    def _measured(self, down: bool, members: tuple[int, ...]) -> tuple[int, int, int]:
        parts = [part for part in self.parts if (part.body == "down") == down and part.member in members]
        return self.of.setdefault((down, members), (parts[0].m, max(part.n for part in parts), parts[0].k))
