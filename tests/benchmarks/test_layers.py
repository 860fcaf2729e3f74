"""The groups that the cost model is held to, and the schedules of each: enough, spread, legal, and a fair prefix."""

from collections import Counter
from collections.abc import Iterator

import pytest
from candidates import PLACES, candidates, spread
from layers import FAMILIES, GROUPS, LAYERS, RANKS, ROWS, SITES, Layer, group_of

from fusioncc.autotune import best, ranked_pools
from fusioncc.codegen import emit
from fusioncc.codegen.emission import KINDS
from fusioncc.cost_models import estimate
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.shown import shown

H200 = get_device("h200")
ONE_OF_EACH_SITE = LAYERS[: len(SITES)]


def test_what_the_issue_asks_for() -> None:
    assert len(LAYERS) == GROUPS >= 60
    assert len({group_of(layer).signature() for layer in LAYERS}) == GROUPS
    assert {layer.family for layer in LAYERS} == set(FAMILIES) and len(FAMILIES) == 3
    assert {"q", "k", "v", "o", "gate", "up", "down", "q/k/v", "gate/up"} <= {layer.site for layer in LAYERS}
    assert (min(ROWS), max(ROWS)) == (1, 16384) and {layer.m for layer in LAYERS} == set(ROWS)
    assert (min(RANKS), max(RANKS)) == (4, 128) and {layer.rank for layer in LAYERS} == {0, *RANKS}


def test_every_projection_of_every_family_at_two_sizes() -> None:
    sizes = Counter((layer.family, layer.site) for layer in LAYERS)
    assert set(sizes.values()) == {2} and len(sizes) == 3 * len(SITES)


@pytest.mark.parametrize("length", range(1, GROUPS + 1))
def test_a_prefix_is_balanced(length: int) -> None:
    for values, name in ((FAMILIES, "family"), (SITES, "site"), (ROWS, "m")):
        counts = Counter(getattr(layer, name) for layer in LAYERS[:length])
        assert max(counts.values()) - min(counts[value] for value in values) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_third_has_few_and_many_rows_in_every_family(family: str) -> None:
    rows = [layer.m for layer in LAYERS[: GROUPS // 3] if layer.family == family]
    assert min(sum(m <= 64 for m in rows), sum(m >= 1000 for m in rows)) >= 2


def test_sizes_and_biases() -> None:
    found = {(layer.family, layer.site): (layer.k, layer.widths, layer.bias) for layer in LAYERS}
    assert found["Llama-3-8B", "gate/up"] == (4096, (14336, 14336), False)
    assert found["Qwen2.5-7B", "q/k/v"] == (3584, (3584, 512, 512), True)
    assert found["Qwen2.5-7B", "o"] == (3584, (3584,), False)
    assert found["Mistral-Nemo-12B", "down"] == (14336, (5120,), False)
    assert found["Mistral-Nemo-12B", "o"] == (4096, (5120,), False)
    group = group_of(Layer("any", "q/k", 3, 8, (4, 2), 1, bias=True))
    assert [(member.role, member.m, member.n, member.k) for member in group.members] == [
        ("main", 3, 4, 8), ("down", 3, 1, 8), ("up", 3, 4, 1), ("main", 3, 2, 8), ("down", 3, 1, 8), ("up", 3, 2, 1),
    ]  # fmt: skip
    assert [member.bias is not None for member in group.members] == [True, False, False] * 2
    assert len({member.weight.node for member in group.members}) == 6


@pytest.mark.parametrize("layer", shown(ONE_OF_EACH_SITE, 1, lambda layer: layer.label))
def test_every_candidate_emits(layer: Layer) -> None:
    emits(layer)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", LAYERS[len(SITES) :], ids=lambda layer: layer.label)
def test_every_other_candidate_emits(layer: Layer) -> None:
    emits(layer)


def emits(layer: Layer) -> None:
    group = group_of(layer)
    schedules = candidates(group)
    assert len(set(schedules)) == len(schedules) >= 8
    kinds = Counter(schedule.kind for schedule in schedules)
    assert {"library", "streams", "concat", "horizontal"} <= set(kinds)
    if layer.rank:
        assert all(kinds[kind] == PLACES for kind in ("streams", "concat", "horizontal", "split", "inline", "two_pool"))
    for schedule in schedules:
        assert estimate(group, schedule, H200) is not None
        if schedule.kind in KINDS:
            emit(group, schedule, name="bench", tier="fp32", why="a test")


def test_a_short_ranking_is_walked_again() -> None:
    """One row, rank 128: 6 down passes and 4 joins of ``streams``."""
    schedules = spread(group_of(Layer("any", "down", 1, 14336, (4096,), 128)), "streams")
    downs, ups = ({schedule.pools[at] for schedule in schedules} for at in (0, 1))
    assert (len(schedules), len(downs), len(ups)) == (PLACES, 6, 4)


def test_the_first_is_the_best_and_the_rest_goes_down_to_the_end() -> None:
    group = group_of(LAYERS[0])
    for kind in ("inline", "split", "concat"):
        schedules = spread(group, kind)
        assert schedules[0] == best(group, H200, kind)[0]
        times = list(microseconds(group, schedules))
        assert times[0] == min(times)
        ranked = ranked_pools(group, H200, schedules[0])
        for launch, ranking in enumerate(ranked):
            taken = {schedule.by_launch()[launch] for schedule in schedules}
            assert {ranking[0], ranking[-1]} < taken and len(taken) == min(PLACES, len(ranking))
        ends = Schedule(kind, tuple(pool for ranking in ranked for pool in ranking[-1]))
        assert max(times) >= next(microseconds(group, [ends])) > 2.5 * times[0]
        if len(ranked) == 1:
            every = list(microseconds(group, [Schedule(kind, pools) for pools in ranked[0]]))
            assert times == pytest.approx(sorted(times)) and times[-1] == max(every) > 4 * times[0]


def microseconds(group: Group, schedules: list[Schedule]) -> Iterator[float]:
    for schedule in schedules:
        predicted = estimate(group, schedule, H200)
        assert predicted is not None
        yield predicted.us
