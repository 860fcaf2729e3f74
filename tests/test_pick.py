"""Which of the ranked kinds runs, and how much faster than others some must be predicted."""

from dataclasses import replace

import pytest

from fusioncc.autotune import best, pick
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.passes.plan_groups import why_chosen
from fusioncc.schedule import Candidate, Estimate, Pool, Schedule, TileConfig
from tests.cost_models.groups import bundle, lora

FEW, MANY = lora(64, 4096, 4096, 16), lora(65, 4096, 4096, 16)
PLAIN = bundle(64, 4096, (4096, 0), (1024, 0))


def candidates(times: dict[str, float], binds: str = "dram", tma: bool = True) -> tuple[Candidate, ...]:
    """Candidates with these predicted times, us, fastest first; main tiles through TMA or pointers."""
    found = best(FEW, get_device("h200"), "library")
    assert found is not None
    estimate: Estimate = replace(found[1], binds=binds)
    ordered = sorted(times.items(), key=lambda item: item[1])
    pools = (Pool("main", (0,), TileConfig(128, 128, 64, tma=tma), 0),)
    return tuple(Candidate(kind, True, "", us, Schedule(kind, pools), estimate) for kind, us in ordered)


@pytest.mark.parametrize(
    ("times", "group", "kind"),
    [
        ({"inline": 98.6, "library": 100}, FEW, "library"),
        ({"inline": 98.4, "library": 100}, FEW, "inline"),
        ({"streams": 50, "merged": 50, "k_concat": 50, "library": 100}, FEW, "library"),
        ({"two_pool": 76.1, "split": 80, "library": 100}, FEW, "split"),
        ({"two_pool": 75.9, "split": 80, "library": 100}, FEW, "two_pool"),
        ({"two_pool": 96, "library": 100}, FEW, "library"),
        ({"two_pool": 94, "library": 100}, FEW, "two_pool"),
        ({"two_pool": 94, "split": 99, "library": 100}, FEW, "two_pool"),
        ({"two_pool": 94.9, "split": 98.6, "library": 100}, FEW, "library"),
        ({"split": 96.1, "inline": 100, "library": 110}, FEW, "inline"),
        ({"split": 95.9, "inline": 100, "library": 110}, FEW, "split"),
        ({"split": 99.9, "inline": 100, "library": 110}, MANY, "split"),
        ({"split": 97, "library": 99, "inline": 99.5}, FEW, "split"),
        ({"concat": 96.1, "inline": 100, "library": 110}, FEW, "concat"),
        ({"two_pool": 95, "split": 96.1, "inline": 100, "library": 110}, FEW, "inline"),
    ],
)
def test_the_kind_that_runs(times: dict[str, float], group: Group, kind: str) -> None:
    assert pick(candidates(times), group).kind == kind


@pytest.mark.parametrize(("waiting", "kind"), [(86, "split"), (84, "two_pool")])
def test_programs_that_wait_and_have_no_tma_must_be_further_ahead(waiting: float, kind: str) -> None:
    times = {"two_pool": waiting, "split": 100, "library": 110}
    assert pick(candidates(times, tma=False), FEW).kind == kind
    assert pick(candidates(times), FEW).kind == "two_pool"


@pytest.mark.parametrize(
    ("concat", "binds", "kind"), [(91, "mma", "library"), (89, "mma", "concat"), (91, "l2", "concat")]
)
def test_plain_products_on_the_tensor_cores_must_be_further_ahead(concat: float, binds: str, kind: str) -> None:
    assert pick(candidates({"concat": concat, "library": 100}, binds), PLAIN).kind == kind
    assert pick(candidates({"concat": concat, "library": 100}, binds), FEW).kind == "concat"


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"split": 80, "library": 100}, "predicted 80.0 us against 100.0 us for library, bound by dram"),
        (
            {"split": 98.8, "library": 100},
            "predicted 100.0 us against 98.8 us for split (would have to be 1.5% ahead), bound by dram",
        ),
        (
            {"split": 97, "inline": 100, "library": 110},
            "predicted 100.0 us against 97.0 us for split (would have to be 4.0% ahead), bound by dram",
        ),
        (
            {"two_pool": 97, "split": 100, "library": 110},
            "predicted 100.0 us against 97.0 us for two_pool (would have to be 5.0% ahead of every other kind), "
            "bound by dram",
        ),
        (
            {"two_pool": 93, "split": 96.1, "inline": 100, "library": 110},
            "predicted 100.0 us against 93.0 us for two_pool (would have to be 5.0% ahead of every other kind), "
            "bound by dram",
        ),
        (
            {"streams": 90, "split": 95, "library": 100},
            "predicted 95.0 us against 100.0 us for library, bound by dram; on request, streams is predicted 90.0 us",
        ),
    ],
)
def test_the_plan_says_what_was_passed_over(times: dict[str, float], reason: str) -> None:
    ranked = candidates(times)
    assert why_chosen(pick(ranked, FEW), ranked, FEW) == reason
