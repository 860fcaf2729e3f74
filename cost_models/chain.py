"""Traffic of elementwise kernels one after another, and of those that take their place."""

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncc.cost_models.launch import Launch
from fusioncc.cost_models.memory import moved_bytes


def fused(sequence: Sequence[Launch], kept: frozenset[str] = frozenset()) -> Launch:
    """One kernel for all of ``sequence``: each operand is read once, and what they write for one another is not moved.
    Intermediates named in ``kept`` have readers elsewhere and are written out."""
    made = {tensor.name: tensor for launch in sequence for tensor in launch.writes}
    reads = dict.fromkeys(tensor for launch in sequence for tensor in launch.reads if tensor.name not in made)
    writes = (tensor for tensor in made.values() if tensor.kind == "output" or tensor.name in kept)
    return Launch("pointwise", tuple(reads), tuple(writes))


@dataclass(frozen=True)
class Gains:
    """Bytes saved by fusing a kernel with readers of its result. ``kept``: with the first, and its result is written
    for the others, so that one read is saved and no write. ``repeated``: with each of them, which all make it again
    from its operands."""

    kept: int
    repeated: int


def gains(maker: Launch, readers: Sequence[Launch]) -> Gains:
    """What fusing ``maker`` with ``readers`` saves; with one reader both ways are the same."""
    apart = moved_bytes((maker, *readers))
    first, *others = readers
    names = frozenset(tensor.name for tensor in maker.writes) if others else frozenset()
    return Gains(
        kept=apart - moved_bytes((fused((maker, first), names), *others)),
        repeated=apart - moved_bytes([fused((maker, reader)) for reader in readers]),
    )
