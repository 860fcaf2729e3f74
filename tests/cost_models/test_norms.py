"""What tiles that norm their X cost: bytes by hand, what a program holds, and which kinds have such tiles."""

from dataclasses import replace

import pytest

from fusioncc.autotune.choose import best, rank
from fusioncc.autotune.kinds import KINDS as ENUMERATED
from fusioncc.autotune.kinds import bundles
from fusioncc.autotune.space import spaces
from fusioncc.cost_models import estimate, footprint
from fusioncc.cost_models.closed_form import closed_form
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.letters import K, M
from fusioncc.cost_models.memory import peak_bytes
from fusioncc.cost_models.resources import accumulators, shared_bytes
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import Schedule, squares_x
from tests.codegen.cases import Lora, Main, group
from tests.codegen.norm_cases import normed

H200 = get_device("h200")
ROWS, DEPTH, WIDTHS = 16, 4096, (4096, 1024, 1024)
PLAIN = normed(group(ROWS, DEPTH, *(Main(n, ()) for n in WIDTHS)))
LORA = normed(group(ROWS, DEPTH, *(Main(n, (Lora(16),)) for n in WIDTHS)))
LIBRARY = Schedule("library")


def chosen(value: Group, kind: str) -> Schedule:
    found = best(value, H200, kind)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("value", "kind"), [(PLAIN, "concat"), (PLAIN, "horizontal"), (LORA, "inline")])
def test_a_normed_group_reads_x_and_its_weight_and_writes_no_x(value: Group, kind: str) -> None:
    (launch,) = launches(value, chosen(value, kind))
    apart = launches(value.bare, chosen(value, kind))[0]
    assert {tensor.name for tensor in launch.reads} - {tensor.name for tensor in apart.reads} == {"g.0"}
    assert sum(tensor.bytes for tensor in launch.reads) == sum(tensor.bytes for tensor in apart.reads) + 2 * DEPTH
    assert launch.writes == apart.writes


def test_the_vendor_s_products_read_what_a_kernel_in_front_writes() -> None:
    norm, *products = launches(PLAIN, LIBRARY)
    x = 2 * ROWS * DEPTH
    assert [tensor.bytes for tensor in (*norm.reads, *norm.writes)] == [x, 2 * DEPTH, x]
    assert all(norm.writes[0] in launch.reads for launch in products)
    before, after, alone = (
        footprint(PLAIN, LIBRARY),
        footprint(PLAIN, chosen(PLAIN, "concat")),
        footprint(PLAIN.bare, LIBRARY),
    )
    assert (before.kernels, after.kernels) == (4, 1)
    assert before.bytes == alone.bytes + 2 * x + 2 * DEPTH
    results = sum(2 * ROWS * n for n in WIDTHS)
    assert (before.peak_bytes, after.peak_bytes) == (max(2 * x, x + results), x + results)
    assert peak_bytes(launches(PLAIN, LIBRARY)) == before.peak_bytes


def test_only_kinds_with_whole_rows_are_legal() -> None:
    legal = {each.kind for each in rank(LORA, H200) if each.legal}
    assert legal == {"library", "inline"}
    assert {each.kind for each in rank(PLAIN, H200) if each.legal} == {"library", "concat", "horizontal"}
    assert all(set(LORA.mains) == {main for launch in way for main in launch} for way in bundles(LORA))
    mixed = normed(group(ROWS, DEPTH, Main(4096, (Lora(16),)), Main(1024, ())))
    assert (mixed.joined,) in bundles(mixed.bare) and bundles(mixed) == ((mixed.mains,),)


def test_a_normed_step_takes_longer_and_a_thread_holds_its_squares() -> None:
    schedule = chosen(PLAIN, "concat")
    times = [estimate(value, schedule, H200) for value in (PLAIN, PLAIN.bare)]
    assert times[0] is not None and times[1] is not None and times[0].us > times[1].us
    (one,), (other,) = (launches(value, schedule) for value in (PLAIN, PLAIN.bare))
    tile = schedule.pools[0].tile
    assert accumulators(one) == accumulators(other) + tile.block_m * tile.block_k / (32 * tile.num_warps)
    more = 2 * tile.block_m * tile.block_k + 4 * tile.block_m * tile.num_warps
    assert shared_bytes(one, H200) == shared_bytes(other, H200) + more


def test_without_a_weight_no_tile_has_squares_beside_the_warp_group_mma() -> None:
    bare = replace(PLAIN, norm=replace(PLAIN.norm, weight=None))  # type: ignore[type-var]
    for value, some in ((bare, False), (PLAIN, True)):
        (step,) = ENUMERATED["concat"].ways(value, H200)[0]
        (space,) = spaces(value, H200, "concat", (step,))
        assert any(squares_x(choice.pools[0].tile) for choice in space.legal) == some
        assert all(pool.k_split == 1 and not pool.tile.tma for choice in space.legal for pool in choice.pools)


@pytest.mark.parametrize(("value", "kind"), [(PLAIN, "concat"), (LORA, "inline"), (PLAIN, "library")])
def test_a_closed_form_is_the_numeric_model(value: Group, kind: str) -> None:
    schedule = LIBRARY if kind == "library" else chosen(value, kind)
    form, predicted = closed_form(value, schedule, H200), estimate(value, schedule, H200)
    assert form is not None and predicted is not None
    assert form.number(form.dram) == predicted.bytes
    assert form.dram.has(K) and form.dram.has(M)
