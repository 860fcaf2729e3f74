"""Front doors for Python: ``optimize``, ``plan``, ``plan_of``, ``trace_of``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from fusioncc.backend import Request, registered
from fusioncc.capture import capture
from fusioncc.codegen.launch import EmittedModule
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import Device, get_device
from fusioncc.errors import CaptureError, OptionError, PlanError, TraceError
from fusioncc.passes.emit_groups import module_of
from fusioncc.passes.insert_kernels import insert_kernels
from fusioncc.passes.plan_chains import chain_module
from fusioncc.passes.plan_groups import Setting
from fusioncc.pipeline import draft, holding_groups
from fusioncc.plan import Plan
from fusioncc.records import merged_of, packed_of, plan_of
from fusioncc.runtime.load import load

__all__ = ["Planned", "dump_data", "merged_of", "optimize", "packed_of", "plan", "plan_of", "trace_of"]


@dataclass(frozen=True)
class Planned:
    """A plan with what a dump shows beside it: the graph before and after as readable code, the emitted modules, and
    how long capturing and planning took, in seconds."""

    plan: Plan
    before: str
    after: str
    modules: tuple[EmittedModule, ...]
    capture_s: float = field(default=0.0, compare=False)
    planning_s: float = field(default=0.0, compare=False)


def optimize(
    model: Any, example_inputs: tuple[Any, ...] | None = None, *, plan: Plan | str | Path | None = None, **options: Any
) -> Callable[..., Any]:
    """The model, compiled with its GEMM groups fused; call it like the model.

    Args:
        model: an ``nn.Module``, an ``fx.GraphModule``, an ``ExportedProgram``, or a function of tensors.
        example_inputs: when given, the model is compiled for them now (it runs once, without gradients); otherwise at
            the first call.
        plan: a plan to apply instead of planning: a :class:`~fusioncc.plan.Plan`, its JSON, or the path of a
            ``plan.json``. Refused when a graph differs from the one it was made for.
        options: see :class:`~fusioncc.config.Options`.

    Raises:
        OptionError: an unknown option or value.
        PlanError: the plan cannot be read.
        CaptureError: ``model`` is nothing that can be compiled, or cannot run: it is on the meta device and the inputs
            are not.
    """
    chosen = Options.of(options)
    if example_inputs is not None:
        _require_inputs(example_inputs)
    if isinstance(model, ExportedProgram):
        model = model.module()
    if not callable(model):
        raise CaptureError(f"cannot compile a {type(model).__name__}")
    if plan is not None and chosen.schedule != "auto":
        raise OptionError(
            f"schedule={chosen.schedule!r} has no effect beside a plan, which holds the schedules: edit it"
        )
    request: Any = Request(chosen, _read_plan(plan))
    compiled: Callable[..., Any] = torch.compile(model, backend=registered(), options=request)
    if example_inputs is not None:
        _require_numbers(model, example_inputs)
        with torch.no_grad():
            compiled(*example_inputs)
    return compiled


def plan(
    model: Any,
    example_inputs: tuple[Any, ...] = (),
    device: str | Path | Device = "h200",
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """The plan for a model on a device, without that device and without running the model.

    Args:
        model: an ``nn.Module`` (also on the meta device), ``fx.GraphModule`` or ``ExportedProgram``.
        example_inputs: positional example inputs; only shapes, dtypes and devices matter.
        device: a device profile: its name, the path of a JSON file, or a :class:`~fusioncc.device.Device`.
        kwargs: keyword example inputs.

    Raises:
        OptionError: an unknown option, value or device.
        CaptureError: the model cannot be captured, or the inputs are not in a tuple and a mapping.
    """
    _require_inputs(example_inputs, kwargs)
    return draft(capture(model, example_inputs, kwargs).graph, _offline(device, options)).plan


def trace_of(compiled: Any) -> dict[str, Any]:
    """What the persistent kernels of a model compiled with ``trace=True`` recorded, as a Chrome trace: write it with
    ``json.dump`` and open it in ui.perfetto.dev or chrome://tracing.

    A process is a kernel, named after its groups; a thread is a worker; an event is a tile, with its role (``main``,
    ``down``) as category, and with member, tile number and multiprocessor as arguments. ``ts`` and ``dur`` are in
    microseconds of the device's clock, from the first tile on. Of each kernel the last launch counts, so that equal
    layers show the one that ran last.

    Args:
        compiled: what ``torch.compile`` or :func:`optimize` returned, called at least once.

    Raises:
        TraceError: nothing was recorded; the plan says which groups have nothing to trace.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for planned in (group for plan in plan_of(compiled) for group in plan.groups if group.insertion and group.kernel):
        emitted = module_of(planned, trace=True)
        if emitted.traced:
            groups.setdefault((emitted.name, emitted.source), []).append(planned.name)
    loaded = {load(name, source): ", ".join(dict.fromkeys(names)) for (name, source), names in groups.items()}
    traces = [(f"{names}: {kernel}", *rest) for module, names in loaded.items() for kernel, *rest in module.TRACES]
    if not traces:
        raise TraceError("nothing was recorded: compile with trace=True and a persistent schedule, and call it first")
    trace: dict[str, Any] = next(iter(loaded)).chrome_trace(traces)
    return trace


def dump_data(
    model: Any,
    example_inputs: tuple[Any, ...] = (),
    device: str | Path | Device = "h200",
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Planned:
    """What ``fusioncc dump`` writes: arguments as for :func:`plan`."""
    _require_inputs(example_inputs, kwargs)
    start = perf_counter()
    captured = capture(model, example_inputs, kwargs)
    capture_s = perf_counter() - start
    before = readable(captured)
    start = perf_counter()
    drafted = draft(captured.graph, _offline(device, options))
    planning_s = perf_counter() - start
    groups = [
        (planned.group, drafted.modules[planned.name], _stand_in(planned.kernel))
        for planned in drafted.plan.groups
        if planned.name in drafted.modules
    ]
    chains = [
        (planned, drafted.chain_modules[planned.kernel], _stand_in(planned.kernel))
        for planned in drafted.plan.chains
        if planned.claimed
    ]
    left = [chain_module(planned) for planned in drafted.plan.chains if not planned.claimed]
    insert_kernels(captured.graph, groups, "call", holding_groups(drafted.plan.groups), chains=chains)
    modules = {module.name: module for module in (*drafted.modules.values(), *drafted.chain_modules.values(), *left)}
    return Planned(drafted.plan, before, readable(captured), tuple(modules.values()), capture_s, planning_s)


def _require_inputs(example_inputs: Any, kwargs: Any = None) -> None:
    """The containers of example inputs; a lone tensor is a frequent slip, and would be taken apart row by row."""
    if not isinstance(example_inputs, tuple | list):
        raise CaptureError(f"example_inputs is a tuple of positional inputs, not a {type(example_inputs).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CaptureError(f"kwargs is a mapping of keyword inputs, not a {type(kwargs).__name__}")


def _require_numbers(model: Any, example_inputs: Any) -> None:
    """A model without weights cannot be run on real inputs; torch says so in a page."""
    weights = (*model.named_parameters(), *model.named_buffers()) if isinstance(model, torch.nn.Module) else ()
    empty = next((name for name, weight in weights if weight.is_meta), None)
    inputs = [value for value in tree_leaves(example_inputs) if isinstance(value, torch.Tensor)]
    if empty is not None and any(not value.is_meta for value in inputs):
        raise CaptureError(
            f"{empty} is on the meta device and holds no numbers, so the model cannot run: load its weights, or ask "
            "fusioncc.plan for the plan alone"
        )


def _stand_in(name: str) -> Any:
    """In place of an emitted module, where the graph is only read: no triton is needed to write a dump."""

    def launch(*operands: Any) -> Any:
        raise CaptureError(f"{name} stands for an emitted kernel in a graph that is for reading")

    launch.__name__ = launch.__qualname__ = name
    launch.__module__ = "kernels"
    return SimpleNamespace(launch=launch)


def readable(module: fx.GraphModule) -> str:
    """A graph as Python code with shapes."""
    module.recompile()
    return str(module.print_readable(print_output=False)).strip() + "\n"


def _offline(device: str | Path | Device, options: dict[str, Any]) -> Setting:
    profile = get_device(device)
    return Setting(Options.of(options, device=profile), profile, Accepted("runnable", ("offline",)))


def _read_plan(given: Plan | str | Path | None) -> Plan | None:
    if given is None or isinstance(given, Plan):
        return given
    if not isinstance(given, str | Path):
        raise PlanError(f"plan is a Plan, its JSON or the path of one, not {type(given).__name__}")
    text = str(given)
    if text.lstrip().startswith("{"):
        return Plan.from_json(text)
    try:
        return Plan.from_json(Path(given).read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read the plan {text}: {error.strerror}") from error
