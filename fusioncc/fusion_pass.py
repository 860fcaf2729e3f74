"""The pass itself, for those who have an FX graph: ``FusionPass(options)(graph)`` rewrites it in place."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from fusioncc.config import Options
from fusioncc.decision import accepted_with
from fusioncc.device import Device
from fusioncc.graph import tensor
from fusioncc.packing import PACKED
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.tune_groups import Tuning, card_tuning
from fusioncc.pipeline import rewrite
from fusioncc.plan import SCHEMA, Plan
from fusioncc.runtime.executor import profile, runnable
from fusioncc.runtime.merged import MergedWeights
from fusioncc.runtime.packed import PackedWeights
from fusioncc.runtime.torch_ranks import has_ranks
from fusioncc.seam import attempt
from fusioncc.tuning.database import Asked, database


class FusionPass(CustomGraphPass):
    """Finds, plans, emits and inserts the GEMM groups of a functional ATen graph.

    Args:
        options: an :class:`~fusioncc.config.Options`, or None for the defaults.
        plan: a plan made elsewhere, applied instead of planning; refused when the graph differs.
        form: ``visible`` inserts Triton kernels that Inductor sees, ``call`` calls to the emitted modules. None:
            ``visible``, but ``call`` under Triton's interpreter, whose own bf16 arithmetic is wrong.
        then: a pass that runs behind this one (Inductor before 2.12 takes only one).
        record: is given every plan.
        merged: holds what ``schedule="merged"`` merges; None: one of its own. Keep it, or keep the pass: a graph whose
            merged weights are gone runs unmerged.
        packed: holds what ``pack_weights=True`` packs, likewise.
        tuning: who measures schedules where ``autotune`` asks for it, and who is told; None: the card of the graph.

    The graph's nodes carry ``meta["val"]``, as after AOTAutograd. Fits Inductor's ``post_grad_custom_pre_pass``.
    ``plans`` holds one plan for each graph seen, and ``asked`` what the database was asked for them. ``mark`` stands in
    cache keys for what the database holds; None: as it is when Inductor asks.
    """

    def __init__(
        self,
        options: Options | None = None,
        plan: Plan | None = None,
        form: str | None = None,
        then: Callable[[fx.Graph], None] | None = None,
        record: Callable[[Plan], None] | None = None,
        merged: MergedWeights | None = None,
        packed: PackedWeights | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.options = options or Options()
        self.given = plan
        self.form = form
        self.then = then
        self.plans: list[Plan] = []
        self.merged = merged or MergedWeights()
        self.packed = packed or PackedWeights()
        self.tuning = tuning
        self.mark: str | None = None
        self.asked = Asked()
        self._record = record or (lambda plan: None)

    def __call__(self, graph: fx.Graph) -> None:
        device = device_of(graph)
        chosen = profile(device, self.options.device)
        plan = attempt(
            f"the pass failed on a graph on {device}",
            lambda: self._rewrite(graph, device, chosen),
            lambda cause: Plan(SCHEMA, chosen.name, "", (), (), (), cause),
            self.options.on_error,
        )
        self.plans.append(plan)
        self._record(plan)
        if self.then is not None:
            self.then(graph)

    def _rewrite(self, graph: fx.Graph, device: torch.device, chosen: Device) -> Plan:
        decision = runnable(device)
        form = self.form or ("call" if accepted_with(decision, "interpreter") else "visible")
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            held_by = {"merged": self.merged.key, **dict.fromkeys(PACKED, self.packed.key)}
            card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
            tuning = self.tuning or (card_tuning() if accepted_with(decision, "cuda") else None)
            setting = Setting(self.options, chosen, decision, self.given, card, tuning)
            with database().watched(self.asked):
                return rewrite(graph, setting, form, held_by)

    def uuid(self) -> Any:
        """Everything the rewritten graph depends on besides the graph; part of Inductor's cache keys. None forbids
        caching."""
        settings = self.settings()
        if settings is None:
            return None
        mark = database().mark() if self.mark is None else self.mark
        return hashlib.sha256(repr((settings, mark if self.asks() else "")).encode()).digest()

    def asks(self) -> bool:
        """Whether the rewritten graph depends on what the database holds."""
        return self.given is None and not self.options.deterministic

    def settings(self) -> str | None:
        """Everything the rewritten graph depends on besides the graph and the database; None where a rewritten graph
        must not be cached: where weights are merged or packed, for the graph names what holds them in this process; and
        where several ranks tune together: each has to come to this pass, whatever its cache holds."""
        import triton

        given_kinds = {group.schedule.kind for group in self.given.groups} if self.given is not None else set()
        if self.options.pack_weights or not {self.options.schedule, *given_kinds}.isdisjoint(("merged", *PACKED)):
            return None
        if self.options.autotune != "none" and not self.options.deterministic and has_ranks():
            return None
        behind = None
        if self.then is not None:
            behind = self.then.uuid() if isinstance(self.then, CustomGraphPass) else None
            if behind is None:
                return None
        facts = (
            dataclasses.astuple(self.options),
            self.form,
            triton.__version__,
            torch.__version__,
            source_digest(),
            behind,
        )
        given = self.given.to_json() if self.given is not None else ""
        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        return hashlib.sha256(repr((facts, given, card)).encode()).hexdigest()


def device_of(graph: fx.Graph) -> torch.device:
    """Device of the graph: that of its CUDA tensors when there are any, else of its first tensor."""
    found = [value.device for node in graph.nodes if (value := tensor(node)) is not None]
    return next((device for device in found if device.type == "cuda"), found[0] if found else torch.device("cpu"))


@functools.cache
def source_digest() -> str:
    """Digest of the package's own source and of the schedules that ship, so that no cache survives a change of a pass,
    of the emitter or of a choice."""
    root = Path(__file__).parent
    folders = (root, *(root / name for name in ("autotune", "codegen", "cost_models", "passes", "runtime", "tuning")))
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    files += sorted((root / "tuned").glob("*.json"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
