"""On a card: what a traced kernel records is plausible, and under graph replay it is that of the last replay."""

from collections import defaultdict
from itertools import pairwise

import pytest
import torch

import fusioncc
from tests.lora_models import rows
from tests.test_streams import Projections


class Wide(torch.nn.Module):
    """A layer with several tiles for each multiprocessor."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a = (torch.nn.Linear(4096, n, bias=False) for n in (28672, 16))
        self.b = torch.nn.Linear(16, 28672, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x) + self.b(self.a(x))


def spans(run) -> list[dict]:
    return [event for event in fusioncc.trace_of(run)["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("schedule", ["two_pool", "split"])
def test_times_and_places(schedule: str, dtype: torch.dtype) -> None:
    model, x = Projections(rank=16, dtype=dtype).cuda(), rows(4096, dtype=dtype).cuda()
    run = fusioncc.optimize(model, schedule=schedule, trace=True, on_error="raise")
    with torch.no_grad():
        run(x)
        results, eager = run(x), model(x)
    for got, wanted in zip(results, eager, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    (group,) = fusioncc.plan_of(run)[0].groups
    if not any(pool.workers for pool in group.schedule.pools):
        pytest.skip("no main tile through TMA was chosen")
    lanes, places = defaultdict(list), defaultdict(set)
    for event in spans(run):
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        places[event["pid"], event["tid"]].add(event["args"]["multiprocessor"])
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert all(len(place) == 1 and max(place) < count for place in places.values()), "a program moved"
    assert max(end for lane in lanes.values() for _, end in lane) < 10_000, "us"
    for lane in lanes.values():
        assert all(start < end for start, end in lane)
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(sorted(lane)))


def test_graph_replay() -> None:
    model, x = Projections(rank=16, dtype=torch.bfloat16).cuda(), rows(512, dtype=torch.bfloat16).cuda()
    run = fusioncc.optimize(model, (x,), schedule="two_pool", trace=True, on_error="raise")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        run(x)
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        events = spans(run)
        assert min(event["ts"] for event in events) == 0
        assert all(0 < event["dur"] < 10_000 for event in events)


def test_the_workers_of_the_plan_are_resident_at_once() -> None:
    """More than fit would come late, to a multiprocessor that has run its share before."""
    torch.manual_seed(0)
    model = Wide().bfloat16().cuda()
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    run = fusioncc.optimize(model, (x,), schedule="two_pool", trace=True, on_error="raise")
    with torch.no_grad():
        run(x)
    workers = max(pool.workers for pool in fusioncc.plan_of(run)[0].groups[0].schedule.pools)
    places = defaultdict(set)
    for event in spans(run):
        places[event["args"]["multiprocessor"]].add(event["tid"])
    assert max(map(len, places.values())) <= workers // torch.cuda.get_device_properties(0).multi_processor_count
