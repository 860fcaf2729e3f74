"""The bench of the card, with kernels interpreted on the CPU and graphs that are plain calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from fusioncc.codegen import EmittedModule
from fusioncc.codegen.reference import reference
from fusioncc.device import get_device
from fusioncc.errors import EmissionError, MeasuringError
from fusioncc.group import Group
from fusioncc.runtime import build, card, replay, room
from fusioncc.runtime.compiled import Compiled
from fusioncc.schedule import Schedule, TileConfig
from fusioncc.tuning import emitted
from fusioncc.tuning.bench import CardBench
from fusioncc.tuning.emitted import named
from fusioncc.tuning.measuring import Job
from tests.codegen.cases import Lora, Main, group, inline, k_concat, two_pool
from tests.codegen.golden_cases import golden

H200 = get_device("h200")
SMALL = TileConfig(16, 32, 32, 4, 2)
TWINS = group(32, 64, *(Main(64, (Lora(16, dtype="fp16"),), dtype="fp16") for _ in range(2)), dtype="fp16")
"""Two members that differ in their names only."""
SETS = 3


@dataclass(frozen=True)
class Plain:
    """In the place of a graph."""

    calls: tuple[Callable[[], Any], ...]

    def ms(self, times: int) -> float:
        for call in self.calls:
            call()
        return 0.3


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> CardBench:
    def captured(calls: Sequence[Callable[[], Any]], pool: Any) -> Plain:
        assert pool == "pool"
        return Plain(tuple(calls))

    def drawn_sets(draw: Any, call: Any, bytes_of_one: int) -> list[Any]:
        sets = [draw(seed) for seed in range(SETS)]
        for operands in sets:
            call(*operands)
        return sets

    monkeypatch.setattr(card, "take", lambda index, uuid: None)
    monkeypatch.setattr(room, "release", lambda: None)
    monkeypatch.setattr(replay, "SharedPool", lambda: SimpleNamespace(handle="pool"))
    monkeypatch.setattr(room, "drawn_sets", drawn_sets)
    monkeypatch.setattr(replay, "captured", captured)
    monkeypatch.setattr(build, "build", lambda *launches: ())
    return CardBench("0", "uuid")


def open_(bench: CardBench, value: Group, rest: Literal["inductor", "eager"] = "eager") -> None:
    bench.open(Job(value.signature(), "fp32", rest), H200)


@pytest.mark.exhaustive
def test_a_schedule_and_the_library_run_over_every_set(bench: CardBench) -> None:
    open_(bench, TWINS)
    schedule = inline(TWINS, SMALL)
    assert bench.attempt(0, schedule) == (schedule, pytest.approx(100.0)), "us of one of three calls"
    assert bench.attempt(-1, None) == (None, pytest.approx(100.0))
    assert bench.sample(0) == bench.sample(-1) == pytest.approx(100.0)
    bench.forget(0)
    bench.forget(0)
    with pytest.raises(KeyError):
        bench.sample(0)


def test_tensors_without_a_name_are_not_one_tensor() -> None:
    value = named(TWINS.signature())
    assert len({operand.node for operand in value.operands}) == len(value.operands) == 7
    assert named(TWINS) == TWINS and named(value) == value
    ended = golden()["inline_ended_swapped"][0]
    assert named(ended.signature()).signature() == ended.signature()
    assert len({operand.node for operand in named(ended.signature()).operands}) == len(ended.operands)


def changed(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    """What is emitted has something else in the place of ``before``."""
    plain = emitted.emit

    def emit(*args: Any, **names: Any) -> EmittedModule:
        module = plain(*args, **names)
        assert before in module.source
        return replace(module, source=module.source.replace(before, after))

    monkeypatch.setattr(emitted, "emit", emit)


BEFORE, ROWS = "tl.store(out_tile,", "    m = x.shape[0]\n"
FULL = ROWS + "    raise torch.OutOfMemoryError('CUDA out of memory.')\n"


@pytest.mark.parametrize(
    ("before", "after", "kind", "why"),
    [
        (BEFORE, "tl.store(out_tile + 1,", "wrong", "out_0: RMS error"),
        (ROWS, FULL, "memory", "CUDA out of memory."),
    ],
)
def test_what_is_off_has_no_time(
    bench: CardBench, monkeypatch: pytest.MonkeyPatch, before: str, after: str, kind: str, why: str
) -> None:
    open_(bench, TWINS)
    changed(monkeypatch, before, after)
    with pytest.raises(MeasuringError, match=why) as caught:
        bench.attempt(0, inline(TWINS, SMALL))
    assert caught.value.kind == kind
    with pytest.raises(KeyError):
        bench.sample(0)


def test_what_is_a_part_of_the_group_is_not_timed(bench: CardBench) -> None:
    open_(bench, TWINS)
    one = Schedule("inline", inline(TWINS, SMALL).pools[:1])
    for schedule in (one, k_concat(TWINS, replace(SMALL, block_n=16)), Schedule("merged")):
        with pytest.raises(EmissionError):
            bench.attempt(0, schedule)


@pytest.mark.exhaustive
def test_workers_are_those_that_are_resident(bench: CardBench, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def build_(module: EmittedModule, *rest: Any) -> tuple[Compiled, ...]:
        built.append(module.launches[0].workers)
        return (Compiled(4, 64, 1 << 10),)

    monkeypatch.setattr(build, "build", build_)
    open_(bench, TWINS)
    ran, _ = bench.attempt(0, two_pool(TWINS, SMALL, replace(SMALL, block_n=16), workers=7, downs=1, k_split=1))
    assert ran is not None and built == [7, 132] and ran.pools[1].workers == 132, "and is built again"


def test_the_library_is_what_would_run(bench: CardBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's code where that runs the rest, and in the fp32 precision of the group."""
    matmul: Any = torch.backends.cuda.matmul
    seen: list[Any] = []

    def compile_(function: Any, dynamic: bool) -> Any:
        seen.append(dynamic)
        return lambda *operands: seen.append(matmul.fp32_precision)

    monkeypatch.setattr(torch, "compile", compile_)
    before = matmul.fp32_precision
    value = group(32, 64, Main(64, (Lora(16, dtype="fp32"),), dtype="fp32"), dtype="fp32", precision="tf32")
    open_(bench, value, "inductor")
    assert bench.attempt(-1, None)[0] is None
    assert seen[0] is False and set(seen[1:]) == {"tf32"} and matmul.fp32_precision == before
    assert "tf32" not in reference(value, name="library", tier="fp32").source.split("NAME =")[0]
