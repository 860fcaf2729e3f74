"""Whether a schedule that was kept can be chosen: an entry selects one that is enumerated here, it never brings one."""

from fusioncc.autotune.choose import best, ranked_pools
from fusioncc.autotune.kinds import KINDS
from fusioncc.autotune.pick import ON_REQUEST
from fusioncc.autotune.two_pool import is_division, undivided
from fusioncc.codegen import check
from fusioncc.cost_models import footprint
from fusioncc.device import Device
from fusioncc.errors import EmissionError, TuningError
from fusioncc.packing import PACKED
from fusioncc.schedule import Schedule
from fusioncc.tuning.key import Card, Key

MAX_RESIDENT = 32
"""Programs that a multiprocessor of any card holds at most."""


def require_selectable(schedule: Schedule, key: Key, device: Device) -> None:
    """The schedule is one that is enumerated for the group of the key on ``device`` now, under the options of the key,
    and has an emitted form. What only the graph knows of weights that move is asked by whoever runs it.

    Pools are compared whole, but for ``two_pool``: there workers, late turns and chunks are settled behind the choice,
    from the compiled kernel, and have only to be some that could be.

    Raises:
        TuningError: it is not (``space``), or has none (``emission``).
    """
    group, kind, wishes = key.group, schedule.kind, key.wishes
    if Card.of(device, key.card.name) != key.card:
        raise TuningError("space", f"its key was made of another device than {device.name}")
    if kind not in KINDS or wishes.schedule not in ("auto", kind):
        raise TuningError("space", f"its kind is {kind!r}, not {wishes.schedule!r}")
    if kind != wishes.schedule and (kind in ON_REQUEST or (kind in PACKED and not wishes.pack_weights)):
        raise TuningError("space", f"its kind {kind!r} runs only where it is asked for")
    reason = KINDS[kind].illegal(group)
    if reason:
        raise TuningError("space", f"its kind {kind!r} is illegal for the group: {reason}")
    if schedule.vendor_multiprocessors is not None:
        raise TuningError("space", "it has a cap, which is set behind the choice")
    if bool(schedule.pools) != bool(KINDS[kind].ways(group, device)):
        raise TuningError("space", f"it has {len(schedule.pools)} pools, as no {kind!r} of the group has")
    if kind == "two_pool":
        _require_two_pool(schedule, key, device)
    else:
        _require_ranked(schedule, key, device)
    _require_memory(schedule, key)
    if schedule.pools:
        _require_form(schedule, key)


def is_selectable(schedule: Schedule, key: Key, device: Device) -> bool:
    """Whether :func:`require_selectable` has nothing against it."""
    try:
        require_selectable(schedule, key, device)
    except TuningError:
        return False
    return True


def _require_memory(schedule: Schedule, key: Key) -> None:
    limit = key.wishes.max_peak_increase
    if limit is None or schedule.kind == "library":
        return
    more = footprint(key.group, schedule).peak_bytes - footprint(key.group, Schedule("library")).peak_bytes
    if more > limit:
        raise TuningError("space", f"it raises the peak of the group by {more} bytes, {limit} are allowed")


def _require_form(schedule: Schedule, key: Key) -> None:
    try:
        check(key.group, schedule, key.tier)
    except EmissionError as error:
        raise TuningError("emission", f"its schedule has no emitted form: {error}") from error


def _require_ranked(schedule: Schedule, key: Key, device: Device) -> None:
    try:
        ranked_pools(key.group, device, schedule, key.tier)
    except ValueError as error:
        raise TuningError("space", f"its pools are not enumerated for the group on {device.name}") from error


def _require_two_pool(schedule: Schedule, key: Key, device: Device) -> None:
    found = best(key.group, device, "two_pool", key.tier)
    (ranked,) = ranked_pools(key.group, device, found[0], key.tier) if found is not None else ((),)
    if undivided(schedule.pools) not in map(undivided, ranked):
        raise TuningError("space", f"its pools are not enumerated for the group on {device.name}")
    if not any(is_division(key.group, schedule.pools, device, resident) for resident in range(1, MAX_RESIDENT + 1)):
        raise TuningError("space", "its workers, late turns and chunks are no division of its tiles")
