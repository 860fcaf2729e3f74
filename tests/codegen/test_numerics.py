"""The emitted kernels under the interpreter against fp64: never further from it than eager in the same dtypes."""

from dataclasses import replace

import pytest

from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.codegen.cases import DOWN, SWAPPED, TILE, Case, Lora, Main, group, inline, split
from tests.codegen.reference import draw, eager, error, exact, launch

RMS_LIMIT = 1.1
RMS_LIMIT_FP32 = 1.5
"""fp32 keeps nothing to spare: two orders of one sum differ by this much (1.1 holds where eager rounds to 16 bits)."""
MAX_LIMIT = 3.0

K, N = 104, 90
"""Ragged in every tile."""


def one(lora: Lora, m: int = 33, k: int = K, dtype: str = "bf16") -> Group:
    return group(m, k, Main(N, (lora,), dtype=dtype), dtype=dtype)


def heads(*ranks: int) -> Group:
    return group(16, K, *(Main(n, (Lora(rank),)) for n, rank in zip((192, 48, 48), ranks, strict=True)))


GROUPS: dict[str, Group] = {
    **{f"rank {rank}": one(Lora(rank)) for rank in (1, 4, 8, 12, 64)},
    **{f"{m} rows": one(Lora(), m) for m in (1, 3, 16)},
    "whole tiles": group(64, 256, Main(128)),
    "K shorter than a tile": one(Lora(), k=24),
    "grouped heads": heads(8, 8, 8),
    "grouped heads, unequal ranks": heads(8, 4, 64),
    "two branches": group(33, K, Main(N, (Lora(8), Lora(8, scale=0.5)))),
    "two branches, unequal ranks": group(33, K, Main(N, (Lora(12), Lora(64, scale=0.5)))),
    "bias": group(33, K, Main(N, bias=True)),
    "down and up bias": one(Lora(12, down_bias=0.5, up_bias=-1.5)),
    "unscaled": one(Lora(scale=1.0)),
    "negative scale": one(Lora(scale=-0.25)),
    "tensor scale": one(Lora(tensor_scales=1)),
    "two tensor scales": one(Lora(tensor_scales=2, scale=1.0)),
    "fp32 adapters": one(Lora(dtype="fp32")),
    "fp32 adapters and bias": one(Lora(12, dtype="fp32", down_bias=2.0, up_bias=1.0)),
    "fp32 output": group(33, K, Main(N), out="fp32"),
    "fp16": one(Lora(dtype="fp16"), dtype="fp16"),
    "fp32 adapters over fp16": one(Lora(dtype="fp32"), dtype="fp16"),
    "fp32 weight under bf16 rows": group(33, K, Main(N, dtype="fp32")),
    "fp32": one(Lora(dtype="fp32"), dtype="fp32"),
    "fp32 as tf32": replace(one(Lora(dtype="fp32"), dtype="fp32"), fp32_precision="tf32"),
    "weights [K, N]": group(33, K, Main(N, (Lora(layout="kn"),), layout="kn")),
    "transposed rows": group(33, K, Main(N), x_layout="km"),
    "expanded weight": group(33, K, Main(N, layout="expanded")),
    "symbolic rows": group(33, K, Main(N), symbol="s0*s1"),
}
SAVED: dict[str, Group] = {
    "saved": one(Lora(12, saved=True)),
    "saved with its bias": one(Lora(12, saved=True, down_bias=2.0)),
    "one of two saved": group(33, K, Main(N, (Lora(8), Lora(4, saved=True)))),
    "saved fp32": one(Lora(dtype="fp32", saved=True)),
}

ALSO_UNSPLIT = ("rank 8", "3 rows", "grouped heads", "two branches, unequal ranks", "down and up bias", "fp32 adapters")
"""Groups whose down product is also tried in one slice."""


def schedules(value: Group) -> dict[str, Schedule]:
    """Each kind once, some with swapped operands."""
    saved = any(branch.saved for branch in value.branches)
    return {
        "inline": inline(value, TILE, group_m=1),
        "inline swapped": inline(value, SWAPPED),
        "split 1": split(value, SWAPPED, replace(DOWN, swap_operands=True)),
        **({} if saved else {"split 4": split(value, TILE, DOWN, k_split=4, group_m=2)}),
    }


CASES = {
    f"{name}: {kind}": Case(value, schedule)
    for name, value in (GROUPS | SAVED).items()
    for kind, schedule in schedules(value).items()
    if kind != "split 1" or name in SAVED or name in ALSO_UNSPLIT
}
RELAXED = {
    f"{name}: {kind}": Case(GROUPS[name], schedule, "relaxed")
    for name in ("fp32 adapters", "fp32 adapters and bias", "fp32 adapters over fp16", "rank 8")
    for kind, schedule in schedules(GROUPS[name]).items()
}


def assert_as_good_as_eager(case: Case, rows: int) -> None:
    tensors = draw(case.group, case.emitted("kernels").operands, rows)
    limit = RMS_LIMIT_FP32 if case.group.lhs.dtype == "fp32" else RMS_LIMIT
    results = launch(case, tensors)
    truths, plains = exact(case, tensors), eager(case, tensors)
    assert len(results) == len(truths)
    for result, truth, plain in zip(results, truths, plains, strict=True):
        ours, theirs = error(result, truth), error(plain.to(result.dtype), truth)
        assert ours.rms <= limit * theirs.rms, (ours, theirs)
        assert ours.worst <= MAX_LIMIT * theirs.worst, (ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_as_good_as_eager(name: str) -> None:
    assert_as_good_as_eager(CASES[name], CASES[name].group.m)


@pytest.mark.parametrize("name", RELAXED)
def test_relaxed_as_good_as_eager_with_rounded_adapters(name: str) -> None:
    assert_as_good_as_eager(RELAXED[name], RELAXED[name].group.m)


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("kind", ["inline", "inline swapped", "split 4"])
def test_symbolic_rows_differ_from_the_hint(kind: str, rows: int) -> None:
    assert_as_good_as_eager(CASES[f"symbolic rows: {kind}"], rows)


def low_rank_error(kind: str, tier: str) -> float:
    """RMS error of a branch alone: fp32 adapters over bf16 rows, W = 0, the output not rounded."""
    value = group(33, K, Main(N, (Lora(12, dtype="fp32"),)), out="fp32")
    case = Case(value, schedules(value)[kind], tier)
    tensors = draw(value, case.emitted("kernels").operands, value.m)
    tensors[value.members[0].weight].zero_()
    [result], [truth] = launch(case, tensors), exact(case, tensors)
    return error(result, truth).rms


@pytest.mark.parametrize("kind", ["inline", "inline swapped", "split 4"])
def test_fp32_adapters_keep_fp32_accuracy(kind: str) -> None:
    """Rounding the adapters to bf16 costs about 2e-3, as the relaxed tier shows."""
    assert low_rank_error(kind, "fp32") < 1e-6
    assert 5e-4 < low_rank_error(kind, "relaxed") < 5e-3
