"""Plans, merged and packed weights of compiled models: which ``torch.compile`` call made which.

``torch.compile`` gives a backend a graph and nothing about the call it came from. Every call makes one wrapper object
around the backend, which is on the stack while the backend runs; plans are kept by that object, so that two models of
one class stay apart. Dynamo may serve a second, equal call from the first one's code; then the plans of the equal
wrapper with the same code are the answer.
"""

import sys
import weakref
from typing import Any

from fusioncc.errors import CaptureError
from fusioncc.plan import SCHEMA, Plan
from fusioncc.runtime.merged import MergedWeights
from fusioncc.runtime.packed import PackedWeights
from fusioncc.runtime.plan_cache import PlanCache


class Record:
    """Plans, merged and packed weights of one ``torch.compile`` call."""

    def __init__(self, wrapper: Any = None) -> None:
        self.wrapper = weakref.ref(wrapper) if wrapper is not None else lambda: None
        self.plans: list[Plan] = []
        self.merged = MergedWeights()
        self.packed = PackedWeights()


_records: list[Record] = []


class PlanLog:
    """Takes down the plans of one graph: for ``plan_of``, and for a process that finds the compiled graph in a cache.

    Args:
        plans: the list to which the graph's plans belong.
        device: name of the profile that the graph is planned for.
    """

    def __init__(self, plans: list[Plan], device: str) -> None:
        self._plans = plans
        self._device = device
        self._own: list[Plan] = []
        self.cache: PlanCache | None = None

    def add(self, plan: Plan) -> None:
        """A plan that was just carried out."""
        if plan in self._own:
            return
        self._plans.append(plan)
        self._own.append(plan)
        if self.cache is not None:
            self.cache.write(self._own)

    def fail(self, cause: str) -> None:
        """The graph is compiled without fusion after all: what was taken down did not come to be."""
        for plan in self._own:
            self._plans.remove(plan)
        self._own, self.cache = [], None
        self.add(Plan(SCHEMA, self._device, "", (), (), (), cause))

    def recall(self) -> None:
        """The compiled graph came from a cache of Inductor's: take down the plans that were made for it then."""
        found = self.cache.read() if self.cache is not None else ()
        self._own += found or (Plan(SCHEMA, self._device, "", (), (), (NOT_KEPT,)),)
        self._plans += self._own


NOT_KEPT = "the compiled graph came from Inductor's cache, and its plan is not in the cache folder"


def current_record() -> Record:
    """The record of the ``torch.compile`` call now running; a fresh one outside of any."""
    wrapper = _wrapper_on_stack()
    return Record() if wrapper is None else _record_of(wrapper)


def _record_of(wrapper: Any) -> Record:
    """The record of a call, made when there is none."""
    _records[:] = [record for record in _records if record.wrapper() is not None]
    found = next((record for record in _records if record.wrapper() is wrapper), None)
    if found is None:
        found = Record(wrapper)
        _records.append(found)
    return found


def plan_of(compiled: Any) -> tuple[Plan, ...]:
    """Plans of a model or function that ``torch.compile`` or :func:`fusioncc.optimize` returned.

    One for each graph that was compiled so far: graph breaks, recompiles and fallbacks each have their own, in order of
    compilation. Empty before the first call.
    """
    return tuple(plan for record in _records_of(compiled) for plan in record.plans)


def merged_of(compiled: Any) -> MergedWeights:
    """What a compiled model or function holds under ``schedule="merged"``: ``merged_bytes``, ``refresh()``,
    ``unmerge()``. Before the first call, or of a model that is not merged, it holds nothing.

    Raises:
        CaptureError: ``compiled`` is nothing that ``torch.compile`` or :func:`fusioncc.optimize` returned.
    """
    return _record_with_plans(compiled, "merged").merged


def packed_of(compiled: Any) -> PackedWeights:
    """What a compiled model or function packed under ``pack_weights=True``: ``packed_bytes``, ``reasons``,
    ``unpack()``, ``pack()``. Before the first call, or of a model of which nothing is packed, it holds nothing.

    Raises:
        CaptureError: ``compiled`` is nothing that ``torch.compile`` or :func:`fusioncc.optimize` returned.
    """
    return _record_with_plans(compiled, "packed").packed


def _record_with_plans(compiled: Any, what: str) -> Record:
    wrapper = _wrapper_of(compiled)
    if wrapper is None:
        raise CaptureError(f"a {type(compiled).__name__} that was not compiled here holds no {what} weights")
    return next((record for record in _records_of(compiled) if record.plans), _record_of(wrapper))


def _records_of(compiled: Any) -> list[Record]:
    """The record of the call that made ``compiled``, or else of the equal calls from whose code it is served."""
    wrapper = _wrapper_of(compiled)
    if wrapper is None:
        return []
    own = [record for record in _records if record.wrapper() is wrapper and record.plans]
    return own or [record for record in _records if record.wrapper() == wrapper]


def _wrapper_on_stack() -> Any:
    import torch

    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "__call__" else None
        if isinstance(owner, torch._TorchCompileWrapper):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _wrapper_of(compiled: Any) -> Any:
    """The wrapper inside a compiled module or function, found along Dynamo's own links."""
    import torch

    context = getattr(compiled, "dynamo_ctx", None)
    closure = getattr(compiled, "__closure__", None) or ()
    starts = [context.callback] if context is not None else [cell.cell_contents for cell in closure]
    for here in starts:
        while hasattr(here, "_torchdynamo_orig_backend"):
            here = here._torchdynamo_orig_backend
        if isinstance(here, torch._TorchCompileWrapper):
            return here
    return None
