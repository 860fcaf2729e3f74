"""On a card: schedules raced beside the vendor's kernels, and what a wrong, endless or wild kernel costs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import pytest
import torch

from fusioncc.autotune import best
from fusioncc.group import Group
from fusioncc.runtime.card import identity
from fusioncc.runtime.executor import profile
from fusioncc.schedule import Schedule
from fusioncc.tuning.card_worker import Limits
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.measuring import Dropped, Failed, Job, Race, Timed
from fusioncc.tuning.meter import CardMeter
from tests.codegen.cases import Lora, Main, group

GROUP = group(64, 1024, Main(1024, (Lora(16),)))
KINDS = ("inline", "split", "two_pool", "horizontal")
WRONG, HANG, WILD = 1, 2, 3
"""``group_m`` of the mutants."""
LIMITS = Limits(attempt=30.0)
Make = Callable[..., CardMeter]


@pytest.fixture
def meter() -> Iterator[Make]:
    made: list[CardMeter] = []

    def make(*bench: str) -> CardMeter:
        made.append(CardMeter(profile(torch.device("cuda", 0), None), 0, limits=LIMITS, bench=bench))
        return made[-1]

    yield make
    for each in made:
        each.close()


def schedule(kind: str = "inline", value: Group = GROUP) -> Schedule:
    found = best(value, profile(torch.device("cuda", 0), None), kind)
    assert found is not None
    return found[0]


def mutant(number: int) -> Schedule:
    plain = schedule()
    return replace(plain, pools=tuple(replace(pool, group_m=number) for pool in plain.pools))


def race(meter: CardMeter, *schedules: Schedule, value: Group = GROUP, rest: Literal["inductor", "eager"]) -> Race:
    return meter.race(Job(value.signature(), "fp32", rest), schedules, 240.0)


def is_sane(time: Measured | Failed) -> bool:
    """Of products of 64 x 1024 x 1024, which take a few microseconds."""
    return isinstance(time, Measured) and 1.0 < time.us < 200.0 and 0.0 <= time.spread_us < time.us / 2


@pytest.mark.parametrize("rest", ["inductor", "eager"])
def test_schedules_are_raced_beside_the_library(meter: Make, rest: Literal["inductor", "eager"]) -> None:
    found = race(meter(), *map(schedule, KINDS), rest=rest)
    assert is_sane(found.library)
    assert all(isinstance(each, Timed | Dropped) for each in found.results), found
    timed = [each for each in found.results if isinstance(each, Timed)]
    assert timed and all(is_sane(each.time) for each in timed)
    assert [each.schedule.kind for each in timed] == [
        kind for kind, each in zip(KINDS, found.results, strict=True) if isinstance(each, Timed)
    ]


def test_a_wrong_an_endless_and_a_wild_kernel_cost_only_themselves(meter: Make) -> None:
    found_index, uuid = identity(0)
    one = meter("tests.gpu.mutants:bench", str(found_index), uuid)
    good = schedule()
    first, wrong, endless, wild, last = race(
        one, good, mutant(WRONG), mutant(HANG), mutant(WILD), schedule("split"), rest="eager"
    ).results
    assert isinstance(first, Timed) and isinstance(last, Timed | Dropped)
    assert isinstance(wrong, Failed) and wrong.kind == "wrong"
    assert isinstance(endless, Failed) and endless.kind == "hang"
    assert isinstance(wild, Failed) and wild.kind in ("crash", "wrong")
    again = race(one, good, rest="eager")
    assert isinstance(again.results[0], Timed) and is_sane(again.library)
    assert (torch.ones(1 << 20, device="cuda").sum() == 1 << 20).item(), "the card of this process is as before"


def test_a_card_that_is_full_of_a_model(meter: Make) -> None:
    """8 GiB are left for operand sets of 0.5 GiB, the weights in fp64 (1.9 GiB) and the worker itself."""
    value = group(64, 8192, Main(28672, (Lora(16),)))
    free, _ = torch.cuda.mem_get_info()
    model = torch.empty(max(0, free - (8 << 30)), dtype=torch.int8, device="cuda")
    found = race(meter(), schedule("inline", value), value=value, rest="eager")
    assert isinstance(found.library, Measured), found
    assert isinstance(found.results[0], Timed | Dropped), found
    del model
    torch.cuda.empty_cache()
