"""What a process with a card would have to compile: ``python -m tests.tuning.cached JOB SCHEDULES DEVICE``.

The card is a driver that loads no kernel and launches none, so that the module's own ``launch`` runs over tensors on
the CPU. Prints :func:`looked_up` of each schedule.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import triton
from triton.runtime import driver

from fusioncc.codegen import emit
from fusioncc.device import Device
from fusioncc.graph import TORCH_DTYPES
from fusioncc.runtime.ahead import Target
from fusioncc.runtime.build import build
from fusioncc.runtime.load import load
from fusioncc.schedule import Schedule
from fusioncc.tuning.emitted import built, named
from fusioncc.tuning.measuring import Job


class Card(Target):
    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
        load_binary=lambda name, binary, shared, device: (0, 0, 32, 0, 1024),
    )

    @staticmethod
    def launcher_cls(source: Any, metadata: Any) -> Any:
        return lambda *arguments: None


def looked_up(job: Job, schedule: Schedule, device: Device) -> list[Any]:
    """Launches of a schedule; and for each kernel that launching it asks Triton for, and then building it, whether it
    was in the cache."""
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **rest: hits.append(cache_hit)
    emitted = emit(named(job.group), schedule, name=f"tuned_{schedule.kind}", tier=job.tier, why="It is being timed.")
    operands = [
        torch.empty_strided(operand.shape, operand.strides, dtype=TORCH_DTYPES[operand.dtype])
        for operand in emitted.operands
    ]
    load(emitted.name, emitted.source).launch(*operands)
    launched = len(hits)
    built(job, schedule, device, build)
    return [len(emitted.launches), hits[:launched], hits[launched:]]


def main(job: str, schedules: str, device: str) -> None:
    profile = msgspec.json.decode(device, type=Device)
    driver.set_active(Card(profile.capability))
    wanted = msgspec.json.decode(schedules, type=tuple[Schedule, ...])
    print(json.dumps([looked_up(msgspec.json.decode(job, type=Job), schedule, profile) for schedule in wanted]))


if __name__ == "__main__":
    main(*sys.argv[1:])
