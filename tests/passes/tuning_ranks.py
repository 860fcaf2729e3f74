"""Ranks of one job that tune together: ``python -m tests.passes.tuning_ranks FOLDER RANK SIZE DEAD``.

The last rank has a graph without groups. Rank ``DEAD`` leaves when all have met. Prints, as JSON, the choice of each
group with its reason, and how many groups this rank searched.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fusioncc.capture import capture
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import Tuning
from fusioncc.pipeline import draft
from fusioncc.tuning import tune
from tests.passes.models import BF16, Model, t
from tests.tuning.entries import DEVICE
from tests.tuning.fake_meter import Clock, FakeMeter


def graph(wanted: bool) -> torch.fx.Graph:
    """Two groups, or none."""
    if not wanted:
        return capture(Model(lambda s, x: x + s.w, w=t(8, dtype=BF16)), (t(64, 8, dtype=BF16),)).graph
    shapes = {"w": (1024, 2048), "a": (1024, 16), "b": (16, 2048), "v": (2048, 512), "c": (2048, 8), "d": (8, 512)}

    def two(s: object, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ s.w + x @ s.a @ s.b)  # type: ignore[attr-defined]
        return y @ s.v + y @ s.c @ s.d  # type: ignore[attr-defined]

    model = Model(two, **{name: t(*shape, dtype=BF16) for name, shape in shapes.items()})
    return capture(model, (t(64, 1024, dtype=BF16),)).graph


def main(folder: Path, rank: int, size: int, dead: int) -> None:
    os.environ["FUSIONCC_CACHE_DIR"] = str(folder / f"cache{rank}")  # each a machine of its own
    warnings.simplefilter("ignore")
    tune.MEET_S = 10.0
    meet = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=meet, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    meters: list[FakeMeter] = []

    def made(device: object) -> FakeMeter:
        meters.append(FakeMeter(Clock(), seed=rank, library=10.0))  # cards differ a little
        return meters[-1]

    dist.barrier()
    if rank == dead:
        os._exit(0)
    options = Options(autotune="quick", autotune_seconds=10.0)
    setting = Setting(options, DEVICE, Accepted("runnable", ("cuda",)), card="NVIDIA H200", tuning=Tuning(made))
    chosen = [draft(graph(rank < size - 1), setting).plan for _ in range(2)]
    searched = sorted({str(schedule) for meter in meters for race in meter.races for schedule in race})
    groups = [[[each.schedule.kind, str(each.schedule), each.why] for each in plan.groups] for plan in chosen]
    print(json.dumps([groups, len(searched), len(meters)]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
