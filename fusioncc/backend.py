"""``torch.compile(model, backend="fusioncc")``: the backend Dynamo finds by entry point.

The graph goes to AOTAutograd; fusioncc's pass rewrites the functional graph, Inductor (or eager ATen) runs the rest.
When anything of ours fails, the same rest runs the original graph.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.registry import list_backends, register_backend
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import counters

from fusioncc.config import Options
from fusioncc.decision import accepted_with
from fusioncc.errors import OptionError
from fusioncc.fusion_pass import FusionPass
from fusioncc.mark_cache import MarkCache
from fusioncc.pipeline import holds_weights
from fusioncc.plan import Plan
from fusioncc.records import PlanLog, current_record
from fusioncc.runtime.executor import profile, runnable
from fusioncc.runtime.plan_cache import PlanCache
from fusioncc.runtime.scratch import with_descriptors
from fusioncc.runtime.weights import Holder
from fusioncc.seam import attempt
from fusioncc.tuning.database import database

Compiled = Callable[..., Any]
NAME = "fusioncc"


@dataclass(frozen=True, eq=False)
class Request:
    """What ``optimize`` asks for in the place of options: with them a plan made elsewhere, for every graph it fits.

    No two are equal, so that Dynamo serves no call of ``optimize`` from another one's code.
    """

    options: Options
    plan: Plan | None


def fusioncc(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | Options | Request | None = None,
    mode: str | None = None,
) -> Compiled:
    """Compile one graph of Dynamo's.

    Args:
        options: see :class:`~fusioncc.config.Options`; ``{"inductor": {...}}`` passes options on to Inductor.
        mode: one of Inductor's modes (``reduce-overhead``, ``max-autotune``, ...), for the rest of the graph.

    Raises:
        OptionError: an unknown option, value or mode; the message lists the valid ones.
    """
    request = options if isinstance(options, Request) else Request(Options.of(options), None)
    chosen = request.options
    given = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    devices = [value.device for value in given]
    device = next((d for d in devices if d.type == "cuda"), devices[0] if devices else torch.device("cpu"))
    interpreted = accepted_with(runnable(device), "interpreter")
    rest = _eager_rest if interpreted or chosen.rest == "eager" else _inductor_rest
    patches = _inductor_patches(chosen, mode)
    record = current_record()
    log = PlanLog(record.plans, profile(device, chosen.device).name)
    form = "call" if rest is _eager_rest else "visible"
    fusion = FusionPass(chosen, request.plan, form, record=log.add, merged=record.merged, packed=record.packed)
    work = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    work.meta.update(gm.meta)

    def without_fusion(cause: str) -> Compiled:
        log.fail(cause)
        return rest(gm, example_inputs, None, log, patches)

    compiled = attempt(
        "compiling with fused kernels failed",
        lambda: rest(work, example_inputs, fusion, log, patches),
        without_fusion,
        chosen.on_error,
        let_through=(RestartAnalysis,),
    )
    for node in work.graph.nodes:
        # Dynamo drops these weak references from its own graph; while one lives, swap_tensors refuses the weight.
        node.meta.pop("grapharg", None)
    held = any(holds_weights(group) for plan in fusion.plans for group in plan.groups)
    return _holding((record.merged, record.packed), compiled) if held else compiled


def _holding(holders: tuple[Holder, ...], compiled: Compiled) -> Compiled:
    """``compiled``, which keeps alive the merged and packed weights that its graph reads."""

    def run(_: tuple[Holder, ...], *args: Any) -> Any:
        return compiled(*args)

    return functools.update_wrapper(functools.partial(run, holders), compiled)


def registered() -> str:
    """The backend's name, which Dynamo knows by the installed entry point, or else (in a checkout) from here.

    Dynamo drops the weak references of a compilation, for which ``swap_tensors`` refuses a weight, only behind a
    registered backend; since torch 2.14 a partial of one is none.
    """
    if NAME not in list_backends(exclude_tags=()):
        register_backend(fusioncc, NAME)
    return NAME


def _inductor_patches(options: Options, mode: str | None) -> dict[str, Any]:
    patches: dict[str, Any] = {}
    if mode and mode != "default":
        try:
            patches.update(torch._inductor.list_mode_options(mode))
        except (KeyError, RuntimeError):
            valid = ", ".join(torch._inductor.list_mode_options())
            raise OptionError(f"unknown mode {mode!r}; valid modes: {valid}") from None
    patches.update(options.inductor)
    known = torch._inductor.config.get_config_copy()
    for name in patches:
        if name.replace("-", "_") not in known:
            raise OptionError(f"unknown Inductor option {name!r}; see torch._inductor.list_options()")
    return {name.replace("-", "_"): value for name, value in patches.items()}


def _inductor_rest(
    gm: fx.GraphModule, example_inputs: list[Any], fusion: FusionPass | None, log: PlanLog, patches: dict[str, Any]
) -> Compiled:
    """Inductor compiles the graph, with the pass in front of its own post-grad passes and the user's."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    if fusion is None:
        original: Any = compile_fx(gm, example_inputs, config_patches=patches or None)
        return with_descriptors(original)
    fusion.then = patches.get("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass)
    settings, kept, marks = fusion.settings(), database(), None
    if settings is not None and fusion.asks():
        marks = MarkCache.of(gm, example_inputs, (settings, sorted(patches.items())))
        fusion.mark = marks.read(kept) or kept.mark()
    if settings is not None:
        log.cache = PlanCache.of(gm, example_inputs, (fusion.uuid(), sorted(patches.items())))
    before = _cache_hits()
    patches = {**patches, "post_grad_custom_pre_pass": fusion}
    compiled: Any = compile_fx(gm, example_inputs, config_patches=patches)
    if not fusion.plans and _cache_hits() > before:
        log.recall()
    elif marks is not None and fusion.mark is not None:
        marks.write(fusion.mark, fusion.asked, kept)
    return with_descriptors(compiled)


def _cache_hits() -> int:
    """Graphs that Inductor's and AOTAutograd's caches answered for so far in this process."""
    return int(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])


def _eager_rest(
    gm: fx.GraphModule, example_inputs: list[Any], fusion: FusionPass | None, log: PlanLog, patches: dict[str, Any]
) -> Compiled:
    """AOTAutograd makes the functional graph, ATen runs what no kernel claimed."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def forward(graph_module: fx.GraphModule, _: list[Any]) -> Compiled:
        if fusion is not None:
            fusion(graph_module.graph)
            graph_module.recompile()
        return make_boxed_func(graph_module.forward)

    def backward(graph_module: fx.GraphModule, _: list[Any]) -> Compiled:
        return make_boxed_func(graph_module.forward)

    return aot_autograd(fw_compiler=forward, bw_compiler=backward)(gm, example_inputs)
