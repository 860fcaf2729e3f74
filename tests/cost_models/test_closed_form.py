"""Closed forms of traffic: as counted by hand, and equal to the numeric model wherever they hold."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fusioncc.autotune.choose import rank
from fusioncc.cost_models import estimate
from fusioncc.cost_models.closed_form import by_dtype, by_launch, closed_form
from fusioncc.cost_models.constants import L2_RESIDENT
from fusioncc.cost_models.estimate import launch_cost
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.letters import PADDED, K, M, letter, lettered
from fusioncc.cost_models.tiles import l2_rate
from fusioncc.cost_models.walk import l2_bytes, walks
from fusioncc.device import get_device
from fusioncc.group import Group
from fusioncc.schedule import SCHEDULES, Schedule
from tests.cost_models.groups import bundle, lora, operand
from tests.shown import shown

ROOT = Path(__file__).parents[2]
H200 = get_device("h200")
N, R, BF16, FP32 = letter("N"), letter("r"), letter("bf16"), letter("fp32")
OPERANDS = M * K + K * N + M * N
ADAPTER = K * R + N * R
WIDTHS, RANKS = (1024, 512, 256), (16, 8, 0)


@cache
def schedules(group: Group) -> dict[str, Schedule]:
    """The model's own schedule of every kind that has one for the group."""
    return {each.kind: each.schedule for each in rank(group, H200) if each.schedule is not None}


def slices(schedule: Schedule) -> int:
    """Slices of partial sums that the down pass writes."""
    return max(pool.k_split for pool in schedule.pools if pool.role == "down")


@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [
        ("library", lambda down, main: BF16 * (OPERANDS + ADAPTER + M * R + 2 * M * N)),
        ("streams", lambda down, main: BF16 * (OPERANDS + ADAPTER) + FP32 * (M * N + down * M * PADDED(R))),
        ("concat", lambda down, main: BF16 * (OPERANDS + ADAPTER) + FP32 * (main * M * N + down * M * PADDED(R))),
        ("horizontal", lambda down, main: BF16 * (OPERANDS + ADAPTER) + FP32 * (main * M * N + down * M * PADDED(R))),
        ("split", lambda down, main: BF16 * (OPERANDS + ADAPTER) + FP32 * down * M * PADDED(R)),
        ("inline", lambda down, main: BF16 * (OPERANDS + ADAPTER)),
        ("two_pool", lambda down, main: BF16 * (OPERANDS + ADAPTER) + FP32 * 2 * down * M * PADDED(R) + 16 * M),
        ("merged", lambda down, main: BF16 * OPERANDS),
    ],
)
def test_the_memory_traffic_of_a_lora_layer(kind: str, by_hand: Any) -> None:
    """All of it fits into the L2. ``two_pool`` reads its partial sums in the launch that writes them: both count."""
    group = lora(64, 1024, 1024, 8)
    schedule = schedules(group)[kind]
    form = closed_form(group, schedule, H200)
    assert form is not None
    down = slices(schedule) if any(pool.role == "down" for pool in schedule.pools) else 0
    main = max([pool.k_split for pool in schedule.pools if pool.role == "main"], default=1)
    assert (form.dram - by_hand(down, main)).expand() == 0


def test_k_concat_and_packed_by_hand() -> None:
    group = lora(64, 1024, 1024, 8)
    schedule = schedules(group)["k_concat"]
    form = closed_form(group, schedule, H200)
    assert form is not None
    values = form.letters.values
    wide, summed = 64 * (1024 + 8), 4 * schedule.pools[0].k_split * 64 * 16
    assert form.number(form.dram) == 2 * (64 * 1024 + 1024 * 8 + wide + (1024 + 8) * 1024 + 64 * 1024) + summed
    assert form.number(form.dram, values | {R: 9}) == form.number(form.dram, values | {R: 16}) - 2 * 7 * 1024
    plain = bundle(64, 1024, (1024, 0), (512, 0))
    packed = closed_form(plain, Schedule("packed"), H200)
    assert packed is not None
    wide_n, narrow = letter("N1"), letter("N2")
    assert (packed.dram - BF16 * (M * K + (M + K) * (wide_n + narrow))).expand() == 0


def test_tiles_read_their_operands_again_through_the_l2() -> None:
    """``inline``: every tile draws its rows of X, its columns of W and A, in steps along K."""
    group = lora(64, 1024, 1024, 8)
    schedule = schedules(group)["inline"]
    form = closed_form(group, schedule, H200)
    assert form is not None
    tile = schedule.pools[0].tile
    tiles = -(-64 // tile.block_m) * -(-1024 // tile.block_n)
    steps = -(-1024 // tile.block_k)
    assert form.number(form.l2) == tiles * steps * tile.block_k * 2 * (min(64, tile.block_m) + tile.block_n + 16)


def test_a_weight_beyond_the_l2_is_read_once_for_each_group_of_row_blocks() -> None:
    group = lora(8192, 4096, 14336, 16)
    schedule = schedules(group)["inline"]
    form = closed_form(group, schedule, H200)
    assert form is not None
    assert L2_RESIDENT * H200.l2_bytes < 4096 * 14336 * 2
    rows = schedule.pools[0].tile.block_m * schedule.pools[0].group_m
    assert f"K·N·ceil(M/{rows})" in by_dtype(form.dram, form.letters)
    assert form.number(form.dram.coeff(BF16).expand().coeff(K).coeff(N)) == -(-8192 // rows)


VENDOR = ("library", "streams", "k_concat", "merged")
"""Kinds with a vendor GEMM, whose tiles change with the sizes: there the sizes stay close to the first group's."""
CASES = [(kind, "bf16") for kind in SCHEDULES if kind != "packed"] + [(kind, "fp32") for kind in ("library", "split")]
STEPS = st.integers(-12, 12)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    rows=STEPS, k=STEPS, columns=st.tuples(STEPS, STEPS, STEPS), ranks=st.tuples(st.integers(1, 64), st.integers(1, 64))
)
@pytest.mark.parametrize("case", shown(CASES, 1, "-".join))
def test_a_form_equals_the_numeric_model_where_it_holds(
    case: tuple[str, str], rows: int, k: int, columns: tuple[int, int, int], ranks: tuple[int, int]
) -> None:
    """The form of one group at the sizes of another."""
    kind, adapter = case
    step = 1 if kind in VENDOR else 20
    m, depth, widths = (
        64 + rows * step // 4,
        1024 + 4 * step * k,
        [n + step * i for n, i in zip(WIDTHS, columns, strict=True)],
    )
    base = bundle(64, 1024, *zip(WIDTHS, RANKS, strict=True), adapter=adapter)
    other = bundle(m, depth, *zip(widths, (*ranks, 0), strict=True), adapter=adapter)
    schedule = schedules(base)[kind]
    form, predicted = closed_form(base, schedule, H200), estimate(other, schedule, H200)
    sequence = launches(other, schedule)
    assert form is not None
    assume(predicted is not None and walks(sequence, H200) == form.walks)
    assert predicted is not None
    names = ("M", "K", "N1", "N2", "N3", "r1", "r2", "bf16", "fp32")
    values = dict(zip(map(letter, names), (m, depth, *widths, *ranks, 2, 4), strict=True))
    assert form.number(form.dram, values) == predicted.bytes
    assert form.number(form.l2, values) == sum(map(l2_bytes, sequence, form.walks))


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 9000), k=st.integers(1, 1500), n=st.integers(1, 20000), r=st.integers(1, 128))
@pytest.mark.parametrize("kind", ["library", "merged"])
def test_a_form_equals_the_numeric_model_at_its_own_sizes(kind: str, rows: int, k: int, n: int, r: int) -> None:
    """On both sides of every threshold of the L2."""
    group = lora(rows, k, n, r)
    form, predicted = closed_form(group, Schedule(kind), H200), estimate(group, Schedule(kind), H200)
    assert form is not None and predicted is not None
    assert form.number(form.dram) == predicted.bytes


@pytest.mark.parametrize("kind", ["library", "split", "inline", "concat", "merged"])
@pytest.mark.parametrize("rows", [64, 300])
def test_l2_bytes_are_what_the_times_of_the_model_rest_on(kind: str, rows: int) -> None:
    group = lora(rows, 1024, 4096, 16)
    sequence = launches(group, schedules(group)[kind])
    found = walks(sequence, H200)
    assert found is not None
    for launch, walk in zip(sequence, found, strict=True):
        cost = launch_cost(launch, walk.warm, H200)
        assert cost is not None
        if launch.body == "pointwise":
            rate = H200.l2_gbps * 1e3
        elif launch.body == "vendor":
            rate = l2_rate(TMA_TILE, H200)
        else:
            assert launch.pool is not None
            rates = {l2_rate(part.pool.tile, H200) for part in launch.parts if part.pool is not None}
            if not launch.k or len(rates) > 1:
                continue
            rate = rates.pop() * min(launch.pool.workers or 132, 132) / 132
        assert l2_bytes(launch, walk) == pytest.approx(cost.l2 * rate)


TMA_TILE = next(pool.tile for pool in schedules(lora(4096, 4096, 4096, 16))["split"].pools if pool.tile.tma)


def test_a_bias_counts_once() -> None:
    plain = lora(64, 1024, 1024, 8)
    biased = replace(plain.members[0], bias=operand("c", 1024))
    group = replace(plain, members=(biased, *plain.members[1:]))
    for kind, schedule in schedules(plain).items():
        if kind != "k_concat":
            before, after = closed_form(plain, schedule, H200), closed_form(group, schedule, H200)
            assert before is not None and after is not None
            assert (after.dram - before.dram - BF16 * N).expand() == 0, kind


def test_equal_widths_and_ranks_share_a_letter() -> None:
    letters = lettered(bundle(64, 4096, (4096, 16), (1024, 16), (1024, 0)))
    assert {symbol.name: size for symbol, size in letters.sizes.items()} == {
        "M": 64,
        "K": 4096,
        "N1": 4096,
        "N2": 1024,
        "r": 16,
    }


def test_padding_is_that_of_the_tiles() -> None:
    form = closed_form(lora(64, 1024, 1024, 8), schedules(lora(64, 1024, 1024, 8))["split"], H200)
    assert form is not None
    assert [form.number(PADDED(R), {R: rank}) for rank in (1, 16, 17, 64)] == [16, 16, 32, 64]


def test_text() -> None:
    form = closed_form(lora(64, 1024, 1024, 8), Schedule("merged"), H200)
    assert form is not None
    assert by_dtype(form.dram, form.letters) == "bf16·(K·M + K·N + M·N)"
    assert by_launch(form.l2) == "K·bf16·(Min(64, M) + 64)·ceil(M/64)·ceil(N/64)"


def test_what_has_no_rate_cannot_be_counted() -> None:
    assert closed_form(bundle(64, 1024, (1024, 0), (512, 0), dtype="fp64"), Schedule("library"), H200) is None


def test_planning_does_not_load_sympy() -> None:
    script = "import sys, fusioncc, fusioncc.autotune.choose, fusioncc.cli\nprint('sympy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
