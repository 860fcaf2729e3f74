"""The kinds of schedule that can be planned: whether one is legal for a group, and what its launches may be.

An emitted kind is a list of *steps*. A step is one launch with the pools it may take; costs add over steps, so each is
chosen by itself and nothing is multiplied out. A new kind is one more entry of ``KINDS``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fusioncc.autotune import knobs
from fusioncc.cost_models.constants import TMA_CAPABILITY
from fusioncc.descriptors import refusal
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import Pool, padded_rank

NO_BRANCH = "no low-rank branch to join; bundles of main members alone run as library until concat/horizontal exist"
BATCHED = "batched members have no emitted form yet"


@dataclass(frozen=True)
class Step:
    """One launch of a kind: the members it covers, and what generates its pools."""

    role: str
    members: tuple[int, ...]
    pools: Callable[[], Iterator[Pool]]
    consumers: int = 0
    """Later launches that add this step's partial sums, slice by slice."""


@dataclass(frozen=True)
class Kind:
    """``illegal(group)`` answers with a reason or an empty string; ``steps(group, device)`` with the launches, in
    order."""

    name: str
    illegal: Callable[[Group], str]
    steps: Callable[[Group, Device], tuple[Step, ...]]


def joined_mains(group: Group) -> tuple[int, ...]:
    """Main members with a branch; the others stay vendor GEMMs."""
    return tuple(main for main in group.mains if group.branches_of(main))


def _never(group: Group) -> str:
    return ""


def _no_form(group: Group) -> str:
    if any(member.batch > 1 for member in group.members):
        return BATCHED
    return "" if group.branches else NO_BRANCH


def _main_step(group: Group, main: int, launch: int, workers: int = 0) -> Step:
    """The tiles of one main member; with ``workers``, also persistent TMA pools of that many programs."""

    def pools() -> Iterator[Pool]:
        for tile in knobs.main_tiles():
            yield Pool("main", (main,), tile, launch)
        for tile in knobs.TMA_TILES if workers else ():
            yield Pool("main", (main,), tile, launch, workers=workers)

    return Step("main", (main,), pools)


def _inline_steps(group: Group, device: Device) -> tuple[Step, ...]:
    return tuple(_main_step(group, main, launch) for launch, main in enumerate(joined_mains(group)))


def _split_steps(group: Group, device: Device) -> tuple[Step, ...]:
    downs = tuple(branch.down for branch in group.branches)
    columns = max(padded_rank(group.members[down].n) for down in downs)
    saved = any(branch.saved for branch in group.branches)

    def pools() -> Iterator[Pool]:
        for tile in knobs.down_tiles(columns):
            for k_split in (1,) if saved else knobs.K_SPLIT:
                yield Pool("down", downs, tile, 0, k_split=k_split)

    mains = (
        _main_step(group, main, launch, _tma_workers(group, main, device))
        for launch, main in enumerate(joined_mains(group), start=1)
    )
    return (Step("down", downs, pools, consumers=len(joined_mains(group))), *mains)


def _tma_workers(group: Group, main: int, device: Device) -> int:
    """Programs of a persistent pool, one a multiprocessor; 0 where the member has no TMA form on ``device``."""
    tma = device.capability >= TMA_CAPABILITY and not refusal(group, main)
    return device.multiprocessors if tma else 0


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("library", _never, lambda group, device: ()),
        Kind("split", _no_form, _split_steps),
        Kind("inline", _no_form, _inline_steps),
    )
}
