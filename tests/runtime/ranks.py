"""One of two ranks: ``python -m tests.runtime.ranks STORE RANK``. The second comes late to the second meeting, by more
than the time of the first, and not at all to the third. Prints what was gathered, and how long it took, as JSON."""

import json
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from fusioncc.errors import TuningError
from fusioncc.runtime.torch_ranks import torch_ranks

FIRST_S, LATE_S, LONGER_S, SHORT_S = 1.0, 3.0, 60.0, 2.0


def main(store: str, rank: int) -> None:
    meet = dist.FileStore(store, 2)
    dist.init_process_group("gloo", store=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    dist.barrier()  # processes start at different times
    ranks = torch_ranks()
    assert ranks is not None
    said = [ranks.gathered(rank, FIRST_S)]
    if rank == 1:
        time.sleep(LATE_S)
    began = time.monotonic()
    said.append(ranks.gathered(rank + 10, LONGER_S))
    took = time.monotonic() - began
    if rank == 1:
        print(json.dumps([said, took, ""]), flush=True)
        time.sleep(SHORT_S + 5.0)
        os._exit(0)
    began = time.monotonic()
    try:
        ranks.gathered(rank, SHORT_S)
        why = "both were there"
    except TuningError as error:
        why = str(error)
    print(json.dumps([said, took, why, time.monotonic() - began]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
