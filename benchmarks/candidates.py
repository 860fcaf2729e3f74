"""The schedules of a group that are measured: of every legal kind some, spread over the ranking of its space."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any

from fusioncc.autotune import best, ranked_pools
from fusioncc.codegen import EmittedModule, emit
from fusioncc.codegen.emission import KINDS
from fusioncc.device import get_device
from fusioncc.errors import FusionError
from fusioncc.group import Group
from fusioncc.schedule import SCHEDULES, Schedule

DEVICE = get_device("h200")
EXACT = tuple(kind for kind in SCHEDULES if kind != "merged")
"""Kinds that are legal at the default tier: ``merged`` rounds the sum of the weights."""
PLACES = 11
"""Schedules of a kind: the model's best, and others down to the worst, closer together near the top. Eight are wanted,
and of those that were compiled for capability 90 one in twenty spilled registers, which is refused."""


def candidates(group: Group) -> list[Schedule]:
    """Schedules of every legal kind, the model's best of each first."""
    return [schedule for kind in EXACT for schedule in spread(group, kind)]


def spread(group: Group, kind: str) -> list[Schedule]:
    """The model's best of a kind, and schedules of which each launch takes every place of its ranking once, in an order
    of its own: some places on each time, modulo their number, a prime."""
    found = best(group, DEVICE, kind)
    if found is None:
        return []
    ranked = ranked_pools(group, DEVICE, found[0])

    def at(turn: int) -> Schedule:
        places = [(launch + 1) * turn % PLACES for launch in range(len(ranked))]
        chosen = [each[_down(each, place)] for each, place in zip(ranked, places, strict=True)]
        return Schedule(kind, tuple(pool for pools in chosen for pool in pools))

    return list(dict.fromkeys([found[0], *map(at, range(1, PLACES))])) if ranked else [found[0]]


def _down(ranking: Sequence[Any], place: int) -> int:
    """Where in a ranking a place is: the first is its top, the last its end. A short one is walked again."""
    if len(ranking) < PLACES:
        return place % len(ranking)
    return max(place, round((len(ranking) - 1) * (place / (PLACES - 1)) ** 2))


@cache
def module_of(group: Group, schedule: Schedule) -> tuple[EmittedModule, ModuleType] | None:
    """The emitted part of a schedule, if it has one.

    Raises:
        FusionError: it has no emitted form.
    """
    from fusioncc.runtime.load import load

    if schedule.kind not in KINDS:
        return None
    emitted = emit(group, schedule, name="bench", tier="fp32", why="a benchmark")
    return emitted, load(emitted.name, emitted.source)


def build_one(job: tuple[Group, Schedule]) -> str:
    """Compile what a schedule emits (fills Triton's cache); the error, or nothing."""
    from fusioncc.runtime.build import build

    group, schedule = job
    try:
        made = module_of(group, schedule)
        if made is not None:
            build(*made, group.m)
    except FusionError as error:
        return str(error)
    return ""


def compact(value: Any) -> Any:
    """A schedule as JSON holds it, without what is as usual."""
    if not is_dataclass(value):
        return [compact(each) for each in value] if isinstance(value, tuple) else value
    named = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: compact(given) for name, (given, usual) in named.items() if given != usual}
