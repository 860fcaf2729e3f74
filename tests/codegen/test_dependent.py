"""Launches that start early (programmatic dependent launch): nothing of the launch before is read ahead of the wait."""

from dataclasses import replace

import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from fusioncc.codegen import emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group
from fusioncc.schedule import Schedule, TileConfig
from tests.codegen import reference
from tests.codegen.cases import DESCRIBED, DOWN, SWAPPED, TILE, Lora, Main, bundled, early, group, side_by_side, split
from tests.codegen.test_one_row import DOWN_ROW, ROW

BIG = TileConfig(128, 64, 32, 4, 3)
LORA = group(70, 200, Main(136), Main(64, ()), Main(72, (Lora(12, tensor_scales=1),), bias=True))
ROWS = group(1, 200, Main(136), Main(64, ()))
DESCRIBABLE = group(140, 208, Main(136), Main(64))
CASES: dict[str, tuple[Group, Schedule]] = {
    "joined_last": (LORA, bundled(split(LORA, TILE, DOWN, k_split=2))),
    "joined_first": (LORA, bundled(split(LORA, BIG, DOWN, k_split=2))),
    "swapped": (LORA, bundled(split(LORA, SWAPPED, DOWN))),
    "one_after_another": (LORA, split(LORA, TILE, DOWN, k_split=2)),
    "one_row": (ROWS, bundled(split(ROWS, ROW, DOWN_ROW, k_split=2))),
    "descriptors": (DESCRIBABLE, bundled(split(DESCRIBABLE, DESCRIBED, DOWN))),
    "large_descriptors": (DESCRIBABLE, bundled(split(DESCRIBABLE, replace(DESCRIBED, block_m=128), DOWN))),
    "concat": (LORA, side_by_side(LORA, "concat", TILE, DOWN, 2)),
    "horizontal": (LORA, side_by_side(LORA, "horizontal", TILE, DOWN, 2, main_split=2)),
}


class Deferred:
    """Stands for a kernel whose launch is put off until somebody waits for it."""

    def __init__(self, kernel, waiting: list) -> None:
        self.kernel, self.waiting = kernel, waiting

    def __getitem__(self, grid):
        return lambda **arguments: self.waiting.append(lambda: self.kernel[grid](**arguments))


@pytest.mark.parametrize("name", CASES)
def test_a_launch_that_runs_late_is_waited_for(load, name: str) -> None:
    """The first launch runs as late as it can: when a program of the next one waits for it."""
    value, schedule = CASES[name]
    emitted = emit(value, early(schedule), name="module", tier="fp32", why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value)
    operands = [tensors[operand] for operand in emitted.operands]
    waiting: list = []
    first = emitted.launches[0].kernel
    setattr(module, first, Deferred(getattr(module, first), waiting))

    def gdc_wait() -> None:
        here = interpreter_builder.grid_dim, interpreter_builder.grid_idx
        while waiting:
            waiting.pop()()
        interpreter_builder.grid_dim, interpreter_builder.grid_idx = here

    module.gdc_wait = gdc_wait

    def nan(shape, **options):
        return torch.full(shape, float("nan"), **options)

    outputs = module.launch(*operands, empty=nan)
    assert not waiting
    for output, plain, truth in zip(outputs, module.eager(*operands), reference.results(value, tensors), strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.parametrize("name", CASES)
def test_every_program_waits(load, name: str) -> None:
    """A launch that ended before the one before it would let a third one read what is not there yet."""
    value, schedule = CASES[name]
    emitted = emit(value, early(schedule), name="module", tier="fp32", why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value)
    waits: list = []
    module.gdc_wait = lambda: waits.append(1)
    module.launch(*(tensors[operand] for operand in emitted.operands))
    programs = sum(launch.programs(value.m) for launch in emitted.launches if launch.dependent)
    assert len(waits) >= programs > 0


def test_only_launches_that_are_waited_for_let_the_next_one_start() -> None:
    schedule = split(LORA, TILE, DOWN)
    pools = [replace(pool, dependent=pool.launch == 2) for pool in schedule.pools]
    source = emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="").source
    assert source.count("    gdc_launch_dependents()\n") == 1
    assert source.count("    gdc_wait()\n") == 1
    assert source.count("**DEPENDENT") == 1


def test_nothing_of_it_without() -> None:
    source = emit(LORA, split(LORA, TILE, DOWN), name="k", tier="fp32", why="").source
    assert "gdc" not in source and "DEPENDENT" not in source


@pytest.mark.parametrize(
    ("pool", "schedule"), [(0, split(LORA, TILE, DOWN)), (0, side_by_side(LORA, "concat", TILE, DOWN))]
)
def test_refused(pool: int, schedule: Schedule) -> None:
    pools = [replace(each, dependent=at == pool) for at, each in enumerate(schedule.pools)]
    with pytest.raises(EmissionError, match="cannot start early"):
        emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="")


def test_a_launch_starts_as_one() -> None:
    schedule = bundled(split(LORA, TILE, DOWN))
    pools = [replace(each, dependent=at == 1) for at, each in enumerate(schedule.pools)]
    with pytest.raises(EmissionError, match="start together"):
        emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="")
