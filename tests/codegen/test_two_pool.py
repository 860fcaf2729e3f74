"""``two_pool`` under random interleavings: it always ends, with the same right bits, whoever is resident."""

from dataclasses import replace

import pytest
import torch

from fusioncc.codegen import EmittedModule, emit
from fusioncc.cost_models.pools import MainTiles, PoolLaunch, simulate
from fusioncc.group import Group
from fusioncc.schedule import Schedule, TileConfig
from tests.codegen import reference
from tests.codegen.cases import DESCRIBED, DOWN, SWAPPED, Lora, Main, group, two_pool
from tests.codegen.interleaving import NoProgress, interleaved
from tests.shown import shown

TILE = TileConfig(32, 32, 32, 4, 3)
LONG = group(100, 96, Main(70, (Lora(12),)))
BUNDLE = group(70, 96, Main(64, (Lora(8),), bias=True), Main(32, ()), Main(40, (Lora(4), Lora(16))))
ONE_ROW = group(1, 128, Main(96))
SYMBOL = group(70, 96, Main(64), symbol="s0")
FEW = group(5, 200, Main(72), Main(40, (Lora(12),)))
SAVED = group(70, 96, Main(64, (Lora(8, saved=True),)))
SCHEDULES: dict[str, tuple[Group, Schedule]] = {
    "stripes": (LONG, two_pool(LONG, TILE, DOWN, workers=5, downs=2, k_split=2)),
    "late stripes": (LONG, two_pool(LONG, TILE, DOWN, workers=5, downs=2, k_split=2, late=1)),
    "very late stripes": (LONG, two_pool(LONG, TILE, DOWN, workers=4, downs=1, k_split=1, late=9)),
    "all workers are late": (LONG, two_pool(LONG, TILE, DOWN, workers=3, downs=3, k_split=2, late=2)),
    "queue": (LONG, two_pool(LONG, TILE, DOWN, workers=5, downs=2, k_split=2, chunk=1)),
    "queue of chunks": (LONG, two_pool(LONG, TILE, DOWN, workers=4, downs=3, k_split=3, chunk=3)),
    "one worker": (LONG, two_pool(LONG, TILE, DOWN, workers=1, downs=1, k_split=2)),
    "more down workers than tiles": (ONE_ROW, two_pool(ONE_ROW, TILE, DOWN, workers=9, downs=8, k_split=1)),
    "one row": (ONE_ROW, two_pool(ONE_ROW, TILE, DOWN, workers=4, downs=2, k_split=4)),
    "more workers than tiles": (LONG, two_pool(LONG, TILE, DOWN, workers=50, downs=20, k_split=2, late=1)),
    "bundle": (BUNDLE, two_pool(BUNDLE, TILE, DOWN, workers=5, downs=2, k_split=2, chunk=2)),
    "rows of a symbol": (SYMBOL, two_pool(SYMBOL, TILE, DOWN, workers=5, downs=2, k_split=2, late=1)),
    "few rows, transposed": (FEW, two_pool(FEW, SWAPPED, replace(SWAPPED, block_n=16), workers=5, downs=2, k_split=3)),
    "saved": (SAVED, two_pool(SAVED, TILE, DOWN, workers=5, downs=2, k_split=1)),
}


def launched(load, module: EmittedModule, value: Group, seed: int, resident: int) -> list[torch.Tensor]:
    tensors = reference.draw(module, value)
    with interleaved(seed, resident):
        return list(load(module).launch(*(tensors[operand] for operand in module.operands)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_interleaving_gives_the_same_right_bits(load, name: str) -> None:
    value, schedule = SCHEDULES[name]
    module = emit(value, schedule, name="module", tier="fp32", why="a test")
    tensors = reference.draw(module, value)
    plain = load(module).eager(*(tensors[operand] for operand in module.operands))
    first = launched(load, module, value, seed=0, resident=100)
    for output, eager, truth in zip(first, plain, reference.results(value, tensors), strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(eager, truth)
    for seed, resident in enumerate((1, 2, 3, 100), start=1):
        again = launched(load, module, value, seed, resident)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_descriptors_and_fp32_adapters(load) -> None:
    value = group(70, 128, Main(64, (Lora(8, dtype="fp32"),)), Main(64, (Lora(16),)))
    module = emit(value, two_pool(value, DESCRIBED, DOWN, 3, 2, 2), name="module", tier="fp32", why="a test")
    tensors = reference.draw(module, value)
    plain = load(module).eager(*(tensors[operand] for operand in module.operands))
    outputs = launched(load, module, value, seed=3, resident=2)
    for output, eager, truth in zip(outputs, plain, reference.results(value, tensors), strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(eager.to(output.dtype), truth)


@pytest.mark.exhaustive
def test_roles_by_program_id_would_hang(load) -> None:
    """The interleavings have teeth: without the ticket, programs wait for others that have not started."""
    value, schedule = SCHEDULES["stripes"]
    module = emit(value, schedule, name="module", tier="fp32", why="a test")
    ticket = 'worker = tl.atomic_add(counters_ptr, 1, sem="relaxed")'
    assert ticket in module.source
    by_id = replace(module, source=module.source.replace(ticket, "worker = tl.program_id(0)"))
    with pytest.raises(Exception, match=NoProgress.__name__):
        for seed in range(20):
            launched(load, by_id, value, seed, resident=2)


@pytest.mark.exhaustive
def test_joining_before_it_is_published_would_be_wrong(load) -> None:
    value, schedule = SCHEDULES["stripes"]
    module = emit(value, schedule, name="module", tier="fp32", why="a test")
    wait = '    while tl.atomic_add(counters_ptr + 3 + row_block, 0, sem="acquire") < K_SPLIT:\n        pass\n'
    assert wait in module.source
    eager_to_join = replace(module, source=module.source.replace(wait, ""))
    first = launched(load, module, value, seed=0, resident=100)
    others = [launched(load, eager_to_join, value, seed, resident=100) for seed in range(5)]
    assert not all(torch.equal(first[0], other[0]) for other in others)


STRIPES = ("stripes", "late stripes", "very late stripes", "all workers are late", "more workers than tiles")


@pytest.mark.parametrize("name", shown(STRIPES, 2))
def test_workers_have_the_tiles_that_the_model_gives_them(load, name: str) -> None:
    """The simulated launch (``fusioncc/cost_models/pools.py``) hands tiles out as the kernel does."""
    value, schedule = SCHEDULES[name]
    down, main = schedule.pools
    blocks = [-(-size // block) for size, block in ((value.m, TILE.block_m), (value.members[0].n, TILE.block_n))]
    members = (MainTiles(*blocks, main.group_m),)
    down_tiles = blocks[0] * down.k_split
    wanted = simulate(
        PoolLaunch(main.workers, down.workers, members, down_tiles, 1.0, 1.0, k_split=down.k_split, late=down.late)
    )
    module = emit(value, schedule, name="module", tier="fp32", why="a test", trace=True)
    loaded = load(module)
    tensors = reference.draw(module, value)
    with interleaved(seed=1, resident=3):
        loaded.launch(*(tensors[operand] for operand in module.operands))
    ((_, tiles, rows),) = loaded.TRACES
    workers = rows[:, 0].tolist()
    assert [count for _, _, count in tiles] == [members[0].tiles, down_tiles]
    found = [
        [tile for tile, who in enumerate(workers[: members[0].tiles]) if who == at] for at in range(len(wanted.lanes))
    ]
    assert found == [sorted(span.tile for span in lane if span.kind == "main") for lane in wanted.lanes]
    assert all(who < down.workers for who in workers[members[0].tiles :])
