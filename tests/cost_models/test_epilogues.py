"""What tiles that end with a chain cost: bytes by hand, and what a program of two members holds."""

from dataclasses import replace

import pytest
import sympy

from fusioncc.autotune.choose import best, rank
from fusioncc.autotune.kinds import KINDS as ENUMERATED
from fusioncc.autotune.space import spaces
from fusioncc.cost_models import estimate, footprint
from fusioncc.cost_models.closed_form import closed_form
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.letters import K, M, letter
from fusioncc.cost_models.resources import accumulators, step_bytes
from fusioncc.device import get_device
from fusioncc.group import Group, Operand
from fusioncc.schedule import Schedule
from tests.codegen.cases import Lora, Main, group
from tests.codegen.epilogue_cases import SWIGLU, ended, rotary

H200 = get_device("h200")
ROWS, DEPTH, WIDTH = 64, 4096, 14336
APART = group(ROWS, DEPTH, Main(WIDTH, (Lora(16),)), Main(WIDTH, (Lora(16),)))
PAIR = ended(APART, (0, 1), *SWIGLU)
PLAIN = ended(group(ROWS, DEPTH, Main(WIDTH, ()), Main(WIDTH, ())), (0, 1), *SWIGLU)
RESIDUAL = ended(
    group(ROWS, DEPTH, Main(WIDTH, (Lora(16),))),
    (0,),
    ("add.Tensor", (0, 1, "1 alpha"), "bf16"),
    reads=(Operand("res", (ROWS, WIDTH), (WIDTH, 1), "bf16"),),
    kept=(0,),
)
SEQUENCE = 16
TURNED = rotary(group(ROWS, DEPTH, *(Main(n, ()) for n in (4096, 1024, 1024))), 0, 1, rows=SEQUENCE)
ADAPTED = rotary(group(ROWS, DEPTH, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024))), 0, 1)
ONE_ROW = rotary(group(1, DEPTH, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024))), 0, 1)
KINDS = [
    (PAIR, "inline"),
    (PAIR, "split"),
    (PAIR, "two_pool"),
    (PLAIN, "concat"),
    (RESIDUAL, "split"),
    (PAIR, "library"),
    (TURNED, "concat"),
    (ADAPTED, "split"),
]


def chosen(value: Group, kind: str) -> Schedule:
    found = best(value, H200, kind)
    assert found is not None
    return found[0]


def test_a_pair_is_one_launch_that_writes_one_matrix() -> None:
    (launch,) = launches(PLAIN, chosen(PLAIN, "concat"))
    weights = 2 * DEPTH * WIDTH
    assert sum(tensor.bytes for tensor in launch.reads) == 2 * (ROWS * DEPTH + weights)
    assert [tensor.bytes for tensor in launch.writes] == [2 * ROWS * WIDTH]
    alone = replace(launch, together=1)
    assert accumulators(launch) == 2 * accumulators(alone)
    assert launch.pool is not None
    assert step_bytes(launch) - step_bytes(alone) == 2 * launch.pool.tile.block_k * launch.pool.tile.block_n


def test_a_kept_output_is_written_beside_the_result_and_the_residual_is_read() -> None:
    *_, main = launches(RESIDUAL, chosen(RESIDUAL, "split"))
    whole = 2 * ROWS * WIDTH
    assert [tensor.bytes for tensor in main.writes] == [whole, whole]
    assert sum(tensor.bytes for tensor in main.reads if tensor.name.startswith("z")) == whole


def test_what_is_repeated_is_read_once() -> None:
    """The cosines and sines of one sequence, for each of q and k, whatever heads and sequences there are."""
    (launch,) = launches(TURNED, chosen(TURNED, "concat"))
    read = [tensor.bytes for tensor in launch.reads if tensor.name.startswith("z")]
    assert read == [2 * SEQUENCE * 128] * 4
    assert [tensor.bytes for tensor in launch.writes] == [2 * ROWS * n for n in (4096, 1024, 1024)]


@pytest.mark.parametrize("value", [TURNED, ADAPTED, ONE_ROW], ids=["plain", "adapted", "one row"])
def test_tiles_that_rotate_have_both_halves_and_room(value: Group) -> None:
    for kind in (each.kind for each in rank(value, H200) if each.legal and each.kind != "library"):
        for steps in ENUMERATED[kind].ways(value, H200):
            for space in spaces(value, H200, kind, steps):
                turning = [choice.launch for choice in space.legal if choice.launch.body != "down"]
                parts = [part for launch in turning for part in launch.parts if part.head > 1]
                assert all(part.pool and part.pool.tile.holds_heads(128) for part in parts)
                assert all(accumulators(part) <= 96 for part in parts)
                assert not parts or len({part.pool.tile.block_n for part in parts if part.pool}) > 1


def test_behind_the_vendors_products_an_epilogue_is_a_kernel() -> None:
    before, after = footprint(APART, Schedule("library")), footprint(PAIR, Schedule("library"))
    assert after.kernels == before.kernels + 1
    assert after.bytes == before.bytes + 3 * 2 * ROWS * WIDTH
    assert footprint(PAIR, chosen(PAIR, "inline")).kernels == 1


@pytest.mark.parametrize(("value", "kind"), KINDS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_closed_form_is_the_numeric_model(value: Group, kind: str) -> None:
    schedule = chosen(value, kind)
    form, predicted = closed_form(value, schedule, H200), estimate(value, schedule, H200)
    assert form is not None and predicted is not None
    assert form.number(form.dram) == predicted.bytes


def test_the_form_of_a_pair_has_letters_only() -> None:
    form = closed_form(PLAIN, chosen(PLAIN, "concat"), H200)
    assert form is not None
    weights = 2 * K * letter("N") * sympy.ceiling(M / sympy.Integer(8 * 64))  # once for each group of row blocks
    assert form.dram.expand() == (letter("bf16") * (K * M + weights + M * letter("N"))).expand()


def test_ended_tiles_are_ranked_like_others_and_never_the_vendors() -> None:
    legal = [each.kind for each in rank(PAIR, H200) if each.legal]
    assert {*legal} == {"library", "split", "inline", "two_pool"}
    assert legal[-1] == "library"
    assert {each.kind for each in rank(PLAIN, H200) if each.legal} == {"library", "concat", "horizontal"}


def test_members_of_one_epilogue_share_every_launch() -> None:
    for kind in ("inline", "split", "two_pool"):
        pools = [pool for pool in chosen(PAIR, kind).pools if pool.role == "main"]
        assert [set(pool.members) for pool in pools] == [set(PAIR.mains)]
