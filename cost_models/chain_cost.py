"""What a chain costs as eager runs it, a kernel for each op of the program, and as one kernel."""

from dataclasses import dataclass

from fusioncc.chain import CONSTANT, Chain
from fusioncc.cost_models.chain import fused
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.cost_models.memory import moved_bytes, peak_bytes
from fusioncc.cost_models.traffic import warm_names
from fusioncc.cost_models.vendor import pointwise_cost
from fusioncc.device import Device
from fusioncc.group import DTYPE_BYTES
from fusioncc.schedule import Footprint


@dataclass(frozen=True)
class ChainCost:
    """Predicted time, us, and footprint. ``kept_bytes`` is the peak of what lives where the caller keeps the inputs;
    in ``footprint`` each dies at its last use."""

    us: float
    footprint: Footprint
    kept_bytes: int


def chain_costs(chain: Chain, device: Device) -> tuple[ChainCost, ChainCost]:
    """Before, as eager runs the ops, and after."""
    apart = chain_launches(chain)
    return _cost(apart, device), _cost((_one(chain, apart),), device)


def chain_launches(chain: Chain) -> tuple[Launch, ...]:
    """The kernels of eager: one for each op of the program (several ops here where it was decomposed), which reads and
    writes whole tensors."""
    origins: dict[str, list[int]] = {}
    for at, op in enumerate(chain.ops):
        if op.target != CONSTANT:
            origins.setdefault(op.origin or op.node, []).append(at + len(chain.inputs))
    results = {result.value for result in chain.results}
    readers: dict[int, set[str]] = {}
    for op in chain.ops:
        for value in op.values:
            readers.setdefault(value, set()).add(op.origin or op.node)
    tensors = {value: _tensor(chain, value, value in results) for value in _values(chain)}
    launches = []
    for origin, made in origins.items():
        ops = [chain.ops[value - len(chain.inputs)] for value in made]
        read = dict.fromkeys(value for op in ops for value in op.values if value in tensors and value not in made)
        written = [value for value in made if value in results or readers.get(value, set()) - {origin}]
        launches.append(
            Launch("pointwise", tuple(tensors[value] for value in read), tuple(tensors[value] for value in written))
        )
    return tuple(launches)


def _one(chain: Chain, apart: tuple[Launch, ...]) -> Launch:
    kept = frozenset(f"v{result.value}" for result in chain.results)
    return fused(apart, kept)


def _cost(launches: tuple[Launch, ...], device: Device) -> ChainCost:
    times = (
        pointwise_cost(each, warm, device).us for each, warm in zip(launches, warm_names(launches, device), strict=True)
    )
    peak, kept = peak_bytes(launches), peak_bytes(launches, keep_inputs=True)
    return ChainCost(sum(times), Footprint(len(launches), moved_bytes(launches), peak), kept)


def _values(chain: Chain) -> list[int]:
    """Numbers of the values that lie in memory in eager: all but constants."""
    made = [at + len(chain.inputs) for at, op in enumerate(chain.ops) if op.target != CONSTANT]
    return [*range(len(chain.inputs)), *made]


def _tensor(chain: Chain, value: int, is_result: bool) -> Tensor:
    kind = "input" if value < len(chain.inputs) else "output" if is_result else "intermediate"
    return Tensor(f"v{value}", chain.bytes_of(value), kind, DTYPE_BYTES[chain.dtype_of(value)])  # type: ignore[arg-type]
