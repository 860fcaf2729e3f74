"""The plan: every decision for one graph, as a value that is printed, written as JSON and read back equal."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from fusioncc.chain import Chain, ChainTile
from fusioncc.decision import Rejected
from fusioncc.errors import PlanError
from fusioncc.group import Group
from fusioncc.schedule import Candidate, Footprint, Schedule

SCHEMA = "fusioncc.plan/5"


@dataclass(frozen=True, kw_only=True)
class GroupPlan(Group):
    """A group with its decision: the schedule chosen and why, and every candidate ranked by predicted time."""

    schedule: Schedule
    why: str
    tier: str
    candidates: tuple[Candidate, ...]
    before: Footprint
    after: Footprint
    kernel: str = ""
    """Name of the emitted module (``k0_inline_...``); empty for ``library``."""
    insertion: str = ""
    """How the kernel entered the graph: ``visible`` (Inductor sees a Triton kernel), ``opaque`` (one op, which Inductor
    does not look into), ``call``, or empty (not run)."""

    @property
    def group(self) -> Group:
        """The group alone, without the decision."""
        return Group(**{field.name: getattr(self, field.name) for field in fields(Group)})


@dataclass(frozen=True, kw_only=True)
class ChainPlan(Chain):
    """A chain with its decision: whether it becomes a kernel of its own (``claimed``) and why. Times in us; the peaks
    of ``before`` and ``after`` have each input die at its last use, the ``kept`` ones have the caller keep them."""

    tile: ChainTile
    tier: str
    claimed: bool
    why: str
    before: Footprint
    after: Footprint
    before_us: float
    after_us: float
    before_kept_bytes: int
    after_kept_bytes: int
    kernel: str
    """Name of the emitted module (``c0_silu_mul_...``)."""
    insertion: str = ""
    """How the kernel entered the graph, as of a group; empty: not claimed, or not run."""

    @property
    def chain(self) -> Chain:
        """The chain alone, without the decision."""
        return Chain(**{field.name: getattr(self, field.name) for field in fields(Chain)})


@dataclass(frozen=True)
class Memory:
    """What lives at once while a graph runs: at its peak, of what the graph computes; and what is held throughout, its
    inputs and parameters and the copies beside them that a schedule keeps."""

    peak_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class Plan:
    """The decisions for one graph.

    ``fingerprint`` identifies the groups of the graph (shapes, dtypes, layouts, order; no names): a plan applies to a
    graph with the same fingerprint only. ``fallback`` is the cause when the original graph was kept as a whole.
    ``before`` and ``after`` are the memory of the graph without and with the groups; None where that depends on data,
    or the graph was kept.
    """

    schema: str
    device: str
    fingerprint: str
    groups: tuple[GroupPlan, ...]
    rejections: tuple[Rejected, ...]
    notes: tuple[str, ...] = ()
    fallback: str = ""
    before: Memory | None = None
    after: Memory | None = None
    chains: tuple[ChainPlan, ...] = ()

    def __str__(self) -> str:
        """The decisions in words: groups, schedules, estimates, and what was rejected and why."""
        from fusioncc.report import render

        return render(self)

    def to_json(self) -> str:
        """The plan as indented JSON, the same bytes for an equal plan."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> "Plan":
        """Read a plan back; equal to the one written.

        Raises:
            PlanError: not JSON, a field is missing, unknown or of the wrong type (named), or another schema version.
        """
        try:
            read = msgspec.json.decode(text)
            plan = msgspec.convert(read, type=Plan)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise PlanError(f"not a plan: {error}") from error
        if plan.schema != SCHEMA:
            raise PlanError(f"plan has schema {plan.schema!r}; this version reads {SCHEMA!r}")
        unknown = next(_unknown(read, msgspec.to_builtins(plan), "$"), None)
        if unknown is not None:
            raise PlanError(f"not a plan: unknown field {unknown}")
        return plan


def _unknown(read: Any, known: Any, path: str) -> Iterator[str]:
    """Paths of the fields that were read and are none of a plan."""
    if isinstance(read, dict):
        for name, value in read.items():
            if name in known:
                yield from _unknown(value, known[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(read, list):
        for at, (value, of) in enumerate(zip(read, known, strict=True)):
            yield from _unknown(value, of, f"{path}[{at}]")
