"""On a card: every schedule on every kind of group against fp64, in guarded, poisoned buffers; two pools under stress.

Each emitted module checks itself: RMS error and maximum against eager's own, guard zones, nothing left unwritten.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from fusioncc.autotune import best, next_best
from fusioncc.codegen import EmittedModule, emit
from fusioncc.codegen.emission import KINDS
from fusioncc.device import get_device
from fusioncc.errors import KernelBuildError
from fusioncc.group import Group
from fusioncc.passes.build_groups import MAX_ATTEMPTS
from fusioncc.runtime.build import build
from fusioncc.runtime.load import load
from fusioncc.schedule import Schedule
from tests.codegen.cases import Lora, Main, group

H200 = get_device("h200")
DTYPES = {
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16"},
    "bf16, fp32 adapters": {"dtype": "bf16", "adapters": "fp32"},
    "fp16, fp32 adapters": {"dtype": "fp16", "adapters": "fp32"},
    "tf32": {"dtype": "fp32", "precision": "tf32"},
    "ieee": {"dtype": "fp32", "precision": "ieee"},
}


SHAPES = ((1, 4096, 4096), (3, 1000, 1496), (17, 999, 1001), (64, 2048, 4096), (300, 200, 330), (1000, 4096, 1024))
"""M, K and N: aligned, multiples of 8, odd."""
RANKS = (8, 1, 3, 16, 64, 128)


def layer(
    name: str, rows: int, k: int, n: int, rank: int, layout: str = "nk", bias: bool = False, scales: int = 0
) -> Group:
    options = dict(DTYPES[name])
    dtype = options["dtype"]
    adapters = options.pop("adapters", dtype)
    main = Main(n, (Lora(rank, dtype=adapters, tensor_scales=scales),), bias=bias, dtype=dtype, layout=layout)
    return group(rows, k, main, **options)


def module_of(value: Group, kind: str, *, may_spill: bool = False) -> EmittedModule:
    """The best schedule of a kind that builds on this card. Where all tiles of wide ranks over odd sizes spill, the
    planner refuses the kind: skipped where it ``may_spill``."""
    found = best(value, H200, kind)
    if found is None:
        pytest.skip(f"no {kind} for this group: {kind} has no tile that fits")
    schedule: Schedule | None = found[0]
    failure = ""
    for _ in range(MAX_ATTEMPTS):
        if schedule is None and may_spill and "spills" in failure:
            pytest.skip(f"refused: {failure}")
        assert schedule is not None, failure
        emitted = emit(value, schedule, name=f"check_{kind}", tier="fp32", why="a test")
        try:
            build(emitted, load(emitted.name, emitted.source), value.m)
            return emitted
        except KernelBuildError as error:
            failure = str(error)
            schedule = next_best(value, H200, schedule, error.launch, smaller=error.spilled)
    raise AssertionError(failure)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "rank"), list(zip(SHAPES, RANKS, strict=True)))
def test_every_schedule_is_right(kind: str, dtype: str, shape: tuple[int, int, int], rank: int) -> None:
    for layout, bias in (("nk", True), ("kn", False)):
        is_right(layer(dtype, *shape, rank, layout, bias), kind)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("layout", "bias", "scales"), [("nk", False, 1), ("kn", True, 1), ("nk", True, 0)])
def test_every_combination_is_right(
    kind: str,
    dtype: str,
    rank: int,
    shape: tuple[int, int, int],
    layout: str,
    bias: bool,
    scales: int,
    record_property: Callable[[str, object], None],
) -> None:
    """``--junitxml`` keeps how the errors compare with eager's: the largest ratio of three seeds."""
    odd, wide = shape[1] % 8 != 0 or shape[2] % 8 != 0, dtype not in ("bf16", "fp16")
    module = is_right(layer(dtype, *shape, rank, layout, bias, scales), kind, may_spill=odd and wide and rank >= 64)
    rms, worst = map(max, zip(*(ratios(module, module.draw(seed)) for seed in range(3)), strict=True))
    record_property("rms_ratio", rms)
    record_property("max_ratio", worst)


def is_right(value: Group, kind: str, *, may_spill: bool = False) -> ModuleType:
    """The module, whose own check has nothing to say."""
    emitted = module_of(value, kind, may_spill=may_spill)
    module = load(emitted.name, emitted.source)
    for seed in range(3):
        assert module.check(module.draw(seed)) == ""
    return module


def ratios(module: ModuleType, operands: list[torch.Tensor]) -> tuple[float, float]:
    """RMS and largest error of the first result, over eager's own; 1 where neither errs."""
    exact = module.eager(*(operand.double() for operand in operands))[0]
    plain, result = module.eager(*operands)[0], module.launch(*operands)[0]
    ours, theirs = module.deviation(result, exact), module.deviation(plain.to(result.dtype), exact)
    first, second = (own / other if other else 1.0 + (own > 0) for own, other in zip(ours, theirs, strict=True))
    return first, second


BUNDLES = {
    "q_k_v": group(64, 4096, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024))),
    "q_and_v": group(2048, 4096, Main(4096, (Lora(16),)), Main(1024, ()), Main(1024, (Lora(8),), bias=True)),
    "gate_up": group(512, 4096, *(Main(n, (Lora(16, dtype="fp32"),)) for n in (14336, 14336))),
    "one_row": group(1, 4096, *(Main(n, (Lora(16),)) for n in (4096, 1024, 1024))),
    "plain": group(64, 4096, *(Main(n, ()) for n in (4096, 1024, 1024))),
    "two_branches": group(100, 2048, Main(1000, (Lora(8), Lora(64))), Main(520, (Lora(3),), bias=True)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_are_right_with_the_same_bits(kind: str, name: str) -> None:
    emitted = module_of(BUNDLES[name], kind)
    module = load(emitted.name, emitted.source)
    operands = module.draw(0)
    assert module.check(operands) == ""
    first, again = module.launch(*operands), module.launch(*operands)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


LAUNCHES = 50_000
"""On each of two streams."""
DELAY = """for _ in range(down_tile * 37 % 53):
                tl.atomic_add(counters_ptr + 3 + tl.cdiv(M, BLOCK_M), 1, sem="relaxed")
            tl.debug_barrier()"""


@pytest.mark.parametrize("acquire", [True, False], ids=["as emitted", "without the acquire, reported"])
def test_two_pools_on_two_streams_with_delays(acquire: bool, record_property: Callable[[str, object], None]) -> None:
    """Down workers dawdle before they publish; both streams share the card, so that not all programs are resident."""
    value = group(256, 512, Main(512, (Lora(16),)))
    emitted = module_of(value, "two_pool")
    source, count = re.subn(r"tl\.debug_barrier\(\)", DELAY, emitted.source, count=1)
    assert count == 1
    if not acquire:
        source = source.replace('sem="acquire"', 'sem="relaxed"')
    module = load(emitted.name + ("" if acquire else "_relaxed"), replace(emitted, source=source).source)
    operands = module.draw(0)
    wanted = module.launch(*operands)
    streams = [torch.cuda.Stream() for _ in range(2)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for turn in range(LAUNCHES):
        for stream, count_wrong in zip(streams, wrong, strict=True):
            with torch.cuda.stream(stream):
                found = module.launch(*operands)
                count_wrong += (found[0] != wanted[0]).any()
        if turn % 1000 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    total = sum(int(each) for each in wrong)
    record_property("wrong_launches", total)
    assert total == 0 or not acquire
