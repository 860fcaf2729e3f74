"""Plans kept beside Inductor's caches: on a hit the compiled graph comes from there and no pass runs.

A file holds every plan that was made while one graph of Dynamo's was compiled, under a digest of all that decides
whether Inductor hits: the graph, its inputs, the options and the pass.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import fx

from fusioncc.plan import SCHEMA, Plan
from fusioncc.runtime.files import cache_folder, write_whole


@dataclass(frozen=True)
class PlanCache:
    """The plans of one graph, in one file."""

    path: Path

    @classmethod
    def of(cls, gm: fx.GraphModule, inputs: Sequence[Any], settings: Iterable[Any]) -> "PlanCache":
        """The cache entry of a graph with its inputs (real, fake or symbolic) and ``settings`` (compared by repr)."""
        return cls(cache_folder() / "plans" / f"{graph_digest(gm, inputs, settings)}.json")

    def read(self) -> tuple[Plan, ...]:
        """The plans, in order of compilation; none when there is no file, or none that this version can read."""
        try:
            plans = msgspec.json.decode(self.path.read_bytes(), type=tuple[Plan, ...])
        except (OSError, msgspec.DecodeError):
            return ()
        return plans if all(plan.schema == SCHEMA for plan in plans) else ()

    def write(self, plans: Sequence[Plan]) -> None:
        """Keep the plans; a folder that cannot be written costs a later process the answer, nothing else."""
        try:
            write_whole(self.path, msgspec.json.encode(plans).decode())
        except OSError:
            return


def graph_digest(gm: fx.GraphModule, inputs: Sequence[Any], settings: Iterable[Any]) -> str:
    """Names a graph with its inputs (real, fake or symbolic), ``settings`` (compared by repr) and the state of torch
    that it is compiled in."""
    graphs = [module.code for module in gm.modules() if isinstance(module, fx.GraphModule)]
    state = (
        torch.is_grad_enabled(),
        [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        torch.backends.cuda.matmul.fp32_precision,
    )
    facts = repr((graphs, [_described(value) for value in inputs], state, list(settings)))
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _described(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor):
        return (type(value).__name__, str(value))
    layout = (str(tuple(value.shape)), str(value.stride()), str(value.storage_offset()))
    return (*layout, value.dtype, value.device, value.requires_grad)
