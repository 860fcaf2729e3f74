"""Predicted running times of a layer for any number of rows, as :mod:`fusioncc.cost_models.shapes` asks for them."""

from dataclasses import dataclass
from functools import cache

from fusioncc.autotune.choose import rank
from fusioncc.autotune.pick import ON_REQUEST, pick
from fusioncc.cost_models.break_even import PerStrategy
from fusioncc.cost_models.estimate import estimate
from fusioncc.cost_models.shapes import CallTime, Histogram
from fusioncc.device import Device
from fusioncc.errors import ShapesError
from fusioncc.group import Branch, Group, Member, Operand, Output, Role
from fusioncc.packing import PACKED
from fusioncc.schedule import SCHEDULES, Schedule

KINDS = tuple(kind for kind in SCHEDULES if kind not in (*ON_REQUEST, *PACKED))
"""Kinds that the planner chooses from unless something is asked for."""


@dataclass(frozen=True)
class Layer:
    """Products ``X [M, k] @ W [k, n]`` that share X, one for each of ``n``, with weights as ``nn.Linear`` has them.

    ``rank`` is that of the low-rank branch beside each; 0: there is none. ``dtype``: of everything.
    """

    k: int
    n: tuple[int, ...]
    rank: int = 0
    dtype: str = "bf16"

    def group(self, m: int, *, any_rows: bool = False) -> Group:
        """The layer for ``m`` rows, which are but a hint where a kernel must serve ``any_rows``."""
        members: list[Member] = []
        branches: list[Branch] = []
        outputs: list[Output] = []
        for n in self.n:
            main = len(members)
            outputs.append(Output(main, f"y{main}", self.dtype))
            members.append(self._member("main", m, n, self.k, main))
            if self.rank:
                members.append(self._member("down", m, self.rank, self.k, main + 1))
                members.append(self._member("up", m, n, self.rank, main + 2))
                branches.append(Branch(main, main + 1, main + 2))
        lhs = Operand("x", (m, self.k), (self.k, 1), self.dtype)
        return Group("layer", lhs, tuple(members), tuple(branches), tuple(outputs), "M" if any_rows else "")

    def _member(self, role: Role, m: int, n: int, k: int, number: int) -> Member:
        return Member(role, f"mm{number}", m, n, k, Operand(f"w{number}", (k, n), (1, k), self.dtype), self.dtype)


def layer_us(layer: Layer, histogram: Histogram, device: Device) -> PerStrategy[CallTime]:
    """The time of a call, as the cost models predict it, cached.

    A generic kernel has one schedule: of those that the planner chooses for any number of rows with one of the shapes
    as its hint, the one with the least running time of a set. A kernel of one shape or bucket has the schedule that
    the planner chooses for its rows, or the generic one where that is predicted faster.

    Raises:
        ShapesError: also on a later call, where the cost models cannot estimate it.
    """
    schedules = dict.fromkeys(_chosen(layer.group(rows, any_rows=True), device) for rows in histogram.rows)

    def under(schedule: Schedule) -> CallTime:
        return cache(lambda rows: _us(layer.group(rows, any_rows=True), schedule, device))

    generic = min(map(under, schedules), key=histogram.running_ms)

    @cache
    def own(rows: int) -> float:
        group = layer.group(rows)
        return min(generic(rows), _us(group, _chosen(group, device), device))

    return PerStrategy(generic, own, own)


def _chosen(group: Group, device: Device) -> Schedule:
    return pick(rank(group, device, KINDS), group).schedule or Schedule("library")


def _us(group: Group, schedule: Schedule, device: Device) -> float:
    predicted = estimate(group, schedule, device)
    if predicted is None:
        raise ShapesError(f"{schedule.kind} for {group.m} rows cannot be estimated on {device.name}")
    return predicted.us
