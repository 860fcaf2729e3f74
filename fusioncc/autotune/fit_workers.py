"""Fit workers: give ``two_pool`` as many programs as are resident at once, as its compiled kernel tells.

What it says is better than what the cost model expects: registers and shared memory are those that the compiler took.
Progress never depends on it (``fusioncc/codegen/two_pool.py``): too many programs come late, too few leave the card
idle.
"""

from dataclasses import replace

from fusioncc.autotune.two_pool import divided, is_division, with_workers
from fusioncc.cost_models.resources import resident
from fusioncc.device import Device
from fusioncc.group import Group
from fusioncc.runtime.compiled import Compiled
from fusioncc.schedule import Schedule


def fit_workers(group: Group, schedule: Schedule, compiled: tuple[Compiled, ...], device: Device) -> Schedule:
    """The schedule with as many workers as ``device`` holds of the compiled kernel and has main tiles for; one that is
    divided for so many, any other than ``two_pool``, or one that was not compiled, as it is."""
    fitting = resident_a_multiprocessor(schedule, compiled, device)
    if fitting is None:
        return schedule
    if is_division(group, schedule.pools, device, fitting):  # as it was simulated, or measured
        return schedule
    _, pools = divided(group, with_workers(group, schedule.pools, device, fitting), device)
    return replace(schedule, pools=pools)


def resident_a_multiprocessor(schedule: Schedule, compiled: tuple[Compiled, ...], device: Device) -> int | None:
    """Programs of a compiled ``two_pool`` kernel that one multiprocessor of ``device`` holds; None: nothing to tell."""
    if schedule.kind != "two_pool" or not compiled:
        return None
    (kernel,) = compiled
    return resident(kernel.shared_bytes, kernel.registers, kernel.num_warps, device)


def workers_of(schedule: Schedule) -> int:
    """Workers of the main pools of a ``two_pool`` schedule."""
    return max(pool.workers or 0 for pool in schedule.pools if pool.role == "main")
