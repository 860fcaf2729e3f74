"""The kinds of schedule that can be planned: whether one is legal for a group, and what its launches may be.

An emitted kind is a list of *steps*. A step is one launch with the pools it may take; costs add over steps, so each is
chosen by itself and nothing is multiplied out. Where main members may share a launch or not, each way is a list of its
own. A new kind is one more entry of ``KINDS``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fusioncc import packing
from fusioncc.autotune import knobs
from fusioncc.autotune.side_by_side import side_by_side_ways
from fusioncc.autotune.step import Step, down_pass, one_row, starts_early, tma_workers
from fusioncc.autotune.streams import streams_illegal, streams_ways
from fusioncc.autotune.two_pool import settled, two_pool_ways
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.schedule import MAX_RANK, Pool, TileConfig

NO_BRANCH = "no low-rank branch to join"
VENDOR_ENDS = "a vendor GEMM stores its product: its tiles end with no epilogue"
ADDED_LATER = "a branch is added in a launch of its own, whose tiles end with no epilogue"
NORMED_APART = "a vendor GEMM reads its X from memory: a norm in front has to write it"
NORMED_WHOLE = "a norm in front needs whole rows, of which a down tile sums slices and a main tile none"
BATCHED = "batched members have no emitted form yet"


@dataclass(frozen=True)
class Kind:
    """``illegal(group)`` answers with a reason or an empty string; ``ways(group, device)`` with the launches, in order,
    of each way to run the kind. ``settled(group, device, ranked, tier)`` may have a closer look at the ranking of what
    a launch may be, and answer with a better one."""

    name: str
    illegal: Callable[[Group], str]
    ways: Callable[[Group, Device], tuple[tuple[Step, ...], ...]]
    settled: Callable[[Group, Device, Sequence[tuple[Pool, ...]], str], tuple[tuple[Pool, ...], ...]] | None = None


def bundles(group: Group) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Ways to divide the main members into launches: all in one, those with a branch in one, those one by one, but for
    members that end together. What is in no launch stays with the vendor library: it ends with nothing, and reads an X
    that is written."""
    ways = dict.fromkeys([(group.mains,), (group.joined,), group.together(group.joined)])
    ended = [set(epilogue.mains) for epilogue in group.epilogues]
    ended += [{main} for main in group.mains if group.norm is not None]
    return tuple(way for way in ways if all(any(mains <= {*launch} for launch in way) for mains in ended))


def _never(group: Group) -> str:
    return ""


def _whole(illegal: Callable[[Group], str]) -> Callable[[Group], str]:
    """The same for a kind whose products are a vendor GEMM's."""
    return lambda group: illegal(group) or (VENDOR_ENDS if group.epilogues else NORMED_APART if group.norm else "")


def _side_by_side(group: Group) -> str:
    joined = any(group.branches_of(main) for epilogue in group.epilogues for main in epilogue.mains)
    return _no_tile(group) or (ADDED_LATER if joined else NORMED_WHOLE if group.norm and group.branches else "")


def _batched(group: Group) -> str:
    return BATCHED if any(member.batch > 1 for member in group.members) else ""


def _no_slices(group: Group) -> str:
    return _no_form(group) or (NORMED_WHOLE if group.norm else "")


def _too_wide(group: Group) -> str:
    widest = max((group.members[down].n for down in group.downs), default=0)
    return f"rank {widest} fits in no tile, which has {MAX_RANK} at most" if widest > MAX_RANK else ""


def _no_tile(group: Group) -> str:
    return _batched(group) or _too_wide(group)


def _no_merging(group: Group) -> str:
    return _batched(group) or ("" if group.branches else NO_BRANCH)


def _no_form(group: Group) -> str:
    return _no_merging(group) or _too_wide(group)


def _main_step(
    mains: tuple[int, ...], launch: int, workers: int = 0, *, early: bool = False, rows: tuple[TileConfig, ...] = ()
) -> Step:
    """The tiles of a bundle of main members; with ``workers``, also persistent TMA pools, of which that many
    programs are one a multiprocessor."""

    def pools() -> Iterator[tuple[Pool, ...]]:
        for tile in (*rows, *knobs.main_tiles(), *(knobs.TMA_TILES if workers else ())):
            last, programs = knobs.joins_last(tile, early), workers * knobs.TMA_TILES[tile] if tile.tma else None
            yield (Pool("main", mains, tile, launch, workers=programs, dependent=early, joins_last=last),)

    return Step(mains, pools)


def _inline_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    return tuple(
        tuple(_main_step(mains, launch) for launch, mains in enumerate(launches)) for launches in bundles(group)
    )


def _split_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    early = starts_early(group, device)

    def mains_in(launch: int, mains: tuple[int, ...], last: bool | None) -> Step:
        rows = knobs.row_tiles(group.k) if one_row(group, mains) else ()
        workers, behind_downs = tma_workers(group, mains, device), launch == 1
        step = _main_step(mains, launch, workers, early=early and behind_downs, rows=rows)
        if last is None or not behind_downs:
            return step
        return replace(step, pools=lambda: (each for each in step.pools() if each[0].joins_last == last))

    def way(launches: tuple[tuple[int, ...], ...], last: bool | None) -> tuple[Step, ...]:
        steps = (mains_in(launch, mains, last) for launch, mains in enumerate(launches, start=1))
        return (down_pass(group, len(launches), early=early), *steps)

    orders = (True, False) if early else (None,)  # tiles that hide the down pass are ranked apart from those that wait
    return tuple(way(launches, last) for launches in bundles(group) for last in orders)


def _concat_ways(group: Group, device: Device) -> tuple[tuple[Step, ...], ...]:
    sums = Step(group.joined, lambda: ((Pool("up", group.joined, tile, 1),) for tile in knobs.SUM_TILES))
    return ((down_pass(group, consumers=1, copies=True), sums),)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("library", _never, lambda group, device: ()),
        Kind("streams", _whole(lambda group: _no_tile(group) or streams_illegal(group)), streams_ways),
        Kind("concat", _side_by_side, partial(side_by_side_ways, uniform=True)),
        Kind("horizontal", _side_by_side, partial(side_by_side_ways, uniform=False)),
        Kind("split", _no_slices, _split_ways),
        Kind("inline", _no_form, _inline_ways),
        Kind("two_pool", _no_slices, two_pool_ways, settled),
        Kind("packed", _whole(packing.refusal), lambda group, device: ()),
        Kind("k_concat", _whole(lambda group: packing.concat_refusal(group) or _too_wide(group)), _concat_ways),
        Kind("merged", _whole(_no_merging), lambda group, device: ()),
    )
}
