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
from tests.codegen.cases import (
    DESCRIBED,
    DOWN,
    SWAPPED,
    TILE,
    Lora,
    Main,
    bundled,
    early,
    group,
    inline,
    joined_last,
    side_by_side,
    split,
)
from tests.codegen.test_one_row import DOWN_ROW, ROW
from tests.shown import shown

BIG = TileConfig(128, 64, 32, 4, 3)
LORA = group(70, 200, Main(136), Main(64, ()), Main(72, (Lora(12, tensor_scales=1),), bias=True))
ROWS = group(1, 200, Main(136), Main(64, ()))
DESCRIBABLE = group(140, 208, Main(136), Main(64))
CASES: dict[str, tuple[Group, Schedule]] = {
    "joined_last": (LORA, joined_last(bundled(split(LORA, TILE, DOWN, k_split=2)))),
    "joined_first": (LORA, bundled(split(LORA, BIG, DOWN, k_split=2))),
    "swapped": (LORA, joined_last(bundled(split(LORA, SWAPPED, DOWN)))),
    "one_after_another": (LORA, split(LORA, TILE, DOWN, k_split=2)),
    "one_row": (ROWS, bundled(split(ROWS, ROW, DOWN_ROW, k_split=2))),
    "descriptors": (DESCRIBABLE, bundled(split(DESCRIBABLE, DESCRIBED, DOWN))),
    "descriptors_joined_last": (DESCRIBABLE, joined_last(bundled(split(DESCRIBABLE, DESCRIBED, DOWN, k_split=2)))),
    "one_descriptor_joined_last": (DESCRIBABLE, joined_last(split(DESCRIBABLE, DESCRIBED, DOWN, k_split=2))),
    "large_descriptors": (DESCRIBABLE, bundled(split(DESCRIBABLE, replace(DESCRIBED, block_m=128), DOWN))),
}


class Deferred:
    """Stands for a kernel, whose launches are put off until somebody waits for them, or a launch comes that is not
    ``early``; only the last one runs at once."""

    def __init__(self, kernel, early: bool, waiting: list, launched: list[int], last: int) -> None:
        self.kernel, self.early = kernel, early
        self.waiting, self.launched, self.last = waiting, launched, last

    def __getitem__(self, grid):
        def launch(**arguments) -> None:
            self.launched.append(1)
            while self.waiting and not self.early:
                self.waiting.pop()()
            if len(self.launched) == self.last:
                self.kernel[grid](**arguments)
            else:
                self.waiting.append(lambda: self.kernel[grid](**arguments))

        return launch


@pytest.mark.parametrize("name", shown(CASES, 1))
def test_launches_that_run_late_are_waited_for(load, name: str) -> None:
    """Every launch runs as late as it can: when a program of the next one waits for it."""
    value, schedule = CASES[name]
    emitted = emit(value, early(schedule), name="module", tier="fp32", why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value)
    operands = [tensors[operand] for operand in emitted.operands]
    waiting: list = []
    launched: list[int] = []
    for kernel, starts_early in {(launch.kernel, launch.dependent) for launch in emitted.launches}:
        late = Deferred(getattr(module, kernel), starts_early, waiting, launched, len(emitted.launches))
        setattr(module, kernel, late)

    def gdc_wait() -> None:
        here = interpreter_builder.grid_dim, interpreter_builder.grid_idx
        while waiting:
            waiting.pop()()
        interpreter_builder.grid_dim, interpreter_builder.grid_idx = here

    module.gdc_wait = gdc_wait

    def nan(shape, **options):
        return torch.full(shape, float("nan"), **options)

    outputs = module.launch(*operands, empty=nan)
    assert not waiting and len(launched) == len(emitted.launches)
    for output, plain, truth in zip(outputs, module.eager(*operands), reference.results(value, tensors), strict=True):
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


@pytest.mark.exhaustive
@pytest.mark.parametrize("symbol", ["", "s0"])
@pytest.mark.parametrize("name", CASES)
def test_every_program_waits(load, name: str, symbol: str) -> None:
    """A launch that ended before the one before it would let a third one read what is not there yet. For a symbolic M
    all workers are launched, also those without a tile."""
    value, schedule = CASES[name]
    if symbol and value.m == 1:
        pytest.skip("tiles of one row are not for a symbolic M")
    value = replace(value, m_symbol=symbol)
    emitted = emit(value, early(schedule), name="module", tier="fp32", why="a test")
    module, tensors = load(emitted), reference.draw(emitted, value)
    waited: set[tuple[int, ...]] = set()
    launched: list[int] = []
    module.gdc_wait = lambda: waited.add((len(launched), *interpreter_builder.grid_idx))
    for launch in {each.kernel for each in emitted.launches}:
        setattr(module, launch, Counted(getattr(module, launch), launched, 50 if symbol else 0))
    module.launch(*(tensors[operand] for operand in emitted.operands))
    programs = sum(count for count, each in zip(launched, emitted.launches, strict=True) if each.dependent)
    assert len(waited) == programs > 0


class Counted:
    """A kernel whose programs are counted, launch by launch; persistent ones as many as ``workers``."""

    def __init__(self, kernel, launched: list[int], workers: int) -> None:
        self.kernel, self.launched, self.workers = kernel, launched, workers

    def __getitem__(self, grid):
        def launch(**arguments):
            programs = self.workers if self.workers and "WORKERS" in arguments else grid[0]
            self.launched.append(programs)
            return self.kernel[(programs,)](**arguments)

        return launch


@pytest.mark.parametrize("name", ["descriptors", "large_descriptors"])
def test_descriptors_are_made_behind_the_wait(name: str) -> None:
    """The allocator may hand them memory that the launch before still uses."""
    value, schedule = CASES[name]
    emitted = emit(value, early(schedule), name="module", tier="fp32", why="a test")
    (kernel,) = {launch.kernel for launch in emitted.launches if launch.dependent}
    body = emitted.source.split(f"def {kernel}(")[1]
    assert body.index("gdc_wait()") < body.index("make_tensor_descriptor")
    assert body.count("gdc_wait()") == 1


@pytest.mark.parametrize("role", ["main", "down"])
def test_an_operand_made_in_the_graph_forbids_it(role: str) -> None:
    """Inductor may make W between the two launches, and free A behind the first, which still reads it."""
    members = [replace(each, weight=replace(each.weight, made=each.role == role)) for each in LORA.members]
    value = replace(LORA, members=tuple(members))
    schedule = bundled(split(value, TILE, DOWN))
    with pytest.raises(EmissionError, match="cannot start early where the graph computes an operand"):
        emit(value, early(schedule), name="k", tier="fp32", why="")
    emit(value, schedule, name="k", tier="fp32", why="")


@pytest.mark.parametrize("schedule", [inline(LORA, TILE), side_by_side(LORA, "concat", TILE, DOWN)])
def test_only_split_joins_last(schedule: Schedule) -> None:
    pools = tuple(replace(pool, joins_last=True) for pool in schedule.pools)
    with pytest.raises(EmissionError, match="only main tiles of 'split' join last"):
        emit(LORA, replace(schedule, pools=pools), name="k", tier="fp32", why="")


def test_tiles_of_one_row_join_last() -> None:
    schedule = split(ROWS, ROW, DOWN_ROW)
    pools = tuple(replace(pool, joins_last=False) for pool in schedule.pools)
    with pytest.raises(EmissionError, match="tiles of one row join last"):
        emit(ROWS, replace(schedule, pools=pools), name="k", tier="fp32", why="")


def test_only_a_down_launch_lets_the_next_one_start() -> None:
    schedule = split(LORA, TILE, DOWN)
    source = emit(LORA, early(schedule), name="k", tier="fp32", why="").source
    assert source.count("    gdc_launch_dependents()\n") == 1
    assert source.count("    gdc_wait()\n") == 1
    assert source.count("**DEPENDENT") == 1
    pools = [replace(pool, dependent=pool.launch == 2) for pool in schedule.pools]
    with pytest.raises(EmissionError, match="launch 2 of 'split', of the role main, cannot start early"):
        emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="")


def test_nothing_of_it_without() -> None:
    source = emit(LORA, split(LORA, TILE, DOWN), name="k", tier="fp32", why="").source
    assert "gdc" not in source and "DEPENDENT" not in source


@pytest.mark.parametrize(
    ("pool", "schedule"),
    [(0, split(LORA, TILE, DOWN)), *((at, side_by_side(LORA, "concat", TILE, DOWN)) for at in (0, -1))],
)
def test_refused(pool: int, schedule: Schedule) -> None:
    pools = [replace(each, dependent=at == pool % len(schedule.pools)) for at, each in enumerate(schedule.pools)]
    with pytest.raises(EmissionError, match="cannot start early"):
        emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="")


def test_a_launch_starts_as_one() -> None:
    schedule = bundled(split(LORA, TILE, DOWN))
    pools = [replace(each, dependent=at == 1) for at, each in enumerate(schedule.pools)]
    with pytest.raises(EmissionError, match="start together"):
        emit(LORA, replace(schedule, pools=tuple(pools)), name="k", tier="fp32", why="")
