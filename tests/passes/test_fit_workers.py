"""Workers of ``two_pool``: what the model expects to be resident, what a compiled kernel (a faked one) says instead."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fusioncc.autotune import best
from fusioncc.autotune.fit_workers import fit_workers, workers_of
from fusioncc.codegen import EmittedModule, emit
from fusioncc.config import Options
from fusioncc.cost_models.resources import resident
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.errors import KernelBuildError
from fusioncc.passes import build_groups as building
from fusioncc.passes.build_groups import build_groups
from fusioncc.passes.emit_groups import emit_groups
from fusioncc.passes.plan_groups import Setting, plan_groups
from fusioncc.plan import SCHEMA, GroupPlan, Plan
from fusioncc.runtime.build import build
from fusioncc.runtime.compiled import Compiled
from fusioncc.schedule import Schedule, TileConfig
from tests.codegen.cases import DOWN, Lora, Main, group, inline, two_pool

H200, A100 = get_device("h200"), get_device("a100-80")
LONG = group(2048, 4096, Main(4096, (Lora(16),)))
SMALL = TileConfig(64, 64, 64, 4, 3)
"""32 x 64 main tiles of ``LONG``."""


def kernel(registers: int = 128, shared: int = 64 << 10, spills: int = 0) -> Any:
    """A compiled kernel as Triton returns it."""
    metadata = SimpleNamespace(shared=shared)
    return SimpleNamespace(n_regs=registers, n_spills=spills, metadata=metadata, _init_handles=lambda: None)


class Module:
    """An emitted module whose kernels compile to what is given, one after another."""

    def __init__(self, emitted: EmittedModule, *kernels: Any) -> None:
        for launch, each in zip(emitted.launches, kernels, strict=True):
            setattr(self, launch.kernel, SimpleNamespace(warmup=lambda each=each, **arguments: each))


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "device", "programs"),
    [
        (128, 64 << 10, 4, H200, 3),  # 228 KiB of shared memory
        (128, 100 << 10, 4, H200, 2),
        (255, 200 << 10, 8, H200, 1),
        (168, 1 << 10, 8, H200, 1),  # 65536 registers
        (128, 1 << 10, 8, H200, 2),
        (129, 1 << 10, 8, H200, 1),  # 136 are allotted
        (32, 1 << 10, 16, H200, 3),  # 1536 threads
        (24, 0, 1, H200, 16),
        (128, 80 << 10, 4, A100, 2),
        (128, 164 << 10, 4, A100, 0),
    ],
)
def test_programs_of_a_multiprocessor(registers: int, shared: int, warps: int, device: Any, programs: int) -> None:
    assert resident(shared, registers, warps, device) == programs


def test_a_build_says_what_its_kernels_take() -> None:
    emitted = emit(LONG, two_pool(LONG, SMALL, DOWN, 132, 16, 2), name="k", tier="fp32", why="a test")
    assert build(emitted, Module(emitted, kernel(96, 4096)), 2048) == (Compiled(4, 96, 4096),)
    with pytest.raises(KernelBuildError, match="spills 1000 registers"):
        build(emitted, Module(emitted, kernel(spills=1000)), 2048)


@pytest.mark.parametrize(("shared", "workers"), [(64 << 10, 396), (100 << 10, 264), (200 << 10, 132)])
def test_workers_are_what_is_resident(shared: int, workers: int) -> None:
    """132 multiprocessors, and more tiles than programs; asked for more or fewer, it is what fits."""
    for asked in (1, 132, 1000):
        schedule = two_pool(LONG, SMALL, DOWN, workers=asked, downs=1, k_split=4)
        down, main = fit_workers(LONG, schedule, (Compiled(4, 128, shared),), H200).pools
        assert main.workers == workers and 32 <= (down.workers or 0) <= 128, "of 128 down tiles"
        assert replace(down, workers=1, late=0) == schedule.pools[0]
        assert replace(main, workers=asked, chunk=None) == schedule.pools[1]


@pytest.mark.parametrize(("n", "a_multiprocessor"), [(1024, 1), (132 * 64, 1), (133 * 64, 2), (28672, 4)])
def test_no_more_workers_than_there_are_tiles_for(n: int, a_multiprocessor: int) -> None:
    value = group(16, 4096, Main(n, (Lora(16),)))
    schedule = two_pool(value, TileConfig(16, 64, 64, 4, 3), DOWN, workers=132, downs=1, k_split=32)
    small = (Compiled(4, 64, 1 << 10),)
    down, main = fit_workers(value, schedule, small, H200).pools
    assert main.workers == 132 * a_multiprocessor and (down.workers or 0) in (8, 16, 32)
    symbolic = replace(value, m_symbol="s0")
    assert fit_workers(symbolic, schedule, small, H200).pools[1].workers == 132 * 8


@pytest.mark.parametrize("compiled", [(), (Compiled(4, 64, 1 << 10),)])
def test_what_is_left_as_it_is(compiled: tuple[Compiled, ...]) -> None:
    schedule = inline(LONG, SMALL) if compiled else two_pool(LONG, SMALL, DOWN, 132, 1, 1)
    assert fit_workers(LONG, schedule, compiled, H200) == schedule


def test_the_model_decides_where_nothing_is_compiled() -> None:
    found = best(LONG, H200, "two_pool")
    assert found is not None
    workers = workers_of(found[0])
    assert workers % 132 == 0 and workers >= 132


def settled(
    monkeypatch: pytest.MonkeyPatch, compiled: Any, given: Schedule | None = None, runs: str = "cuda"
) -> tuple[GroupPlan, EmittedModule | None, list[Schedule]]:
    """The group planned and built by a compiler that says ``compiled`` (or fails): plan, module, what was built."""
    options = Options.of(schedule="two_pool" if given is None else "auto")
    setting = Setting(options, H200, Accepted("runnable", (runs,)))
    (first,), _ = plan_groups((LONG,), replace(setting, options=Options.of(schedule="two_pool")), {})
    if given is not None:
        plan = Plan(SCHEMA, "h200", "", (replace(first, schedule=given),), ())
        setting = replace(setting, given=Plan.from_json(json.dumps(json.loads(plan.to_json()))))
    groups, _ = plan_groups((LONG,), setting, {})
    emitted = emit_groups(groups, "raise")
    built: list[EmittedModule] = []

    def compile_(module: EmittedModule, *rest: Any) -> tuple[Compiled, ...]:
        built.append(module)
        found = compiled(len(built)) if callable(compiled) else compiled
        if isinstance(found, Exception):
            raise found
        return (found,)

    monkeypatch.setattr(building, "build", compile_)
    done = build_groups(emitted.groups, emitted.modules, setting)
    ready = [each.emitted for each in done.ready]
    return done.groups[0], ready[0] if ready else None, built


def test_the_plan_holds_the_workers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, module, built = settled(monkeypatch, Compiled(8, 128, 100 << 10))
    assert module is not None
    (launch,) = module.launches
    assert workers_of(planned.schedule) == launch.workers
    assert module.launches == built[-1].launches, "what runs was built"
    assert Plan.from_json(Plan(SCHEMA, "h200", "", (planned,), ()).to_json()).groups[0].schedule == planned.schedule


@pytest.mark.parametrize(("shared", "registers"), [(226 << 10, 255), (1 << 10, 64)])
def test_workers_as_compiled(shared: int, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = best(LONG, H200, "two_pool")
    assert chosen is not None
    warps = chosen[0].pools[1].tile.num_warps
    planned, _, built = settled(monkeypatch, Compiled(warps, registers, shared))
    expected = fit_workers(LONG, chosen[0], (Compiled(warps, registers, shared),), H200)
    assert planned.schedule == expected
    changed = expected != chosen[0]
    assert (f"{workers_of(expected)} workers are resident at once, as compiled" in planned.why) == changed
    assert len(built) == 1 + changed, "built again with other workers"


def test_one_of_the_two_changes_the_choice() -> None:
    """The test above has both sides."""
    chosen = best(LONG, H200, "two_pool")
    assert chosen is not None
    warps = chosen[0].pools[1].tile.num_warps
    fitted = [
        fit_workers(LONG, chosen[0], (Compiled(warps, *each),), H200) for each in ((255, 226 << 10), (64, 1 << 10))
    ]
    assert workers_of(fitted[0]) == 132 < workers_of(fitted[1])


def test_a_step_down_then_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(attempt: int) -> Any:
        return KernelBuildError("too much shared memory", 0) if attempt in (1, 3) else Compiled(8, 64, 1 << 10)

    planned, module, built = settled(monkeypatch, compiled)
    assert len(built) == 5, "no fit; a fit that fails; the next one"
    assert module is not None and module.launches == built[-1].launches
    assert "the first choice of tiles did not build; " in planned.why
    assert "workers are resident at once, as compiled" in planned.why


@pytest.mark.parametrize("workers", [100, 5000])
def test_a_given_plan_keeps_its_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = two_pool(LONG, SMALL, replace(DOWN, block_k=64), workers=workers, downs=8, k_split=2)
    planned, module, _ = settled(monkeypatch, Compiled(4, 128, 64 << 10), given)
    assert planned.schedule == given and module is not None and module.launches[0].workers == workers
    said = "396 of its 5000 workers are resident at once"
    assert (said in planned.why) == (workers == 5000) == (said in module.source)


def test_under_the_interpreter_the_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _, built = settled(monkeypatch, Compiled(8, 64, 1 << 10), runs="interpreter")
    assert planned.why == "forced by schedule=" and built == []
    assert planned.schedule == best(LONG, H200, "two_pool")[0]  # type: ignore[index]


def test_small_tiles_have_more_workers_than_multiprocessors() -> None:
    """A tile that leaves room for another is counted so by the model as well."""
    schedules = [best(group(m, 4096, Main(14336, (Lora(16),))), H200, "two_pool") for m in (1, 16, 64)]
    assert any(workers_of(found[0]) > 132 for found in schedules if found is not None)


def test_a_fit_divides_the_tiles_anew() -> None:
    """Other workers, another division: by the simulation, not by a rule."""
    pools = [
        fit_workers(LONG, two_pool(LONG, SMALL, DOWN, 132, 64, 4), (Compiled(4, 128, shared),), H200).pools
        for shared in (16 << 10, 200 << 10)
    ]
    (many, _), (few, _) = pools
    assert (many.workers, many.late) != (few.workers, few.late)
    assert {each.workers for each in (many, few)} <= {128, 32}, "all down tiles at once, or a quarter of them"
