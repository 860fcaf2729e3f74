"""Packed weights: parameters that lie in one buffer, so that one vendor GEMM multiplies by all of them.

For ``packed`` each W ``[N, K]`` lies below the one before. For ``k_concat`` the product is with ``[X | s X A]``, and
the B of its branches lie beside each W: rows of the buffer are K and the ranks long.

The parameters stay the objects that they are; only their memory moves, in the first call that multiplies them. So what
is written into one is written into the buffer. Every call compares where each parameter lies with where it was put;
when one was replaced or given other memory, they are packed anew, or the products run one by one, with the reason kept.

Each parameter has a storage of its own, a slice of the buffer's, which it keeps alive. To everything that asks a
parameter for its storage (saving, aliasing, copies) it is alone. It is exactly as large as itself, unless others lie
beside it: then it reaches over their parts of its rows.
"""

import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fusioncc.runtime.weights import Holder, define, holder_of, is_captured, place_of, product
from fusioncc.seam import warn

NAME = "fusioncc::packed"
MOST_MOVES = 8
"""Times that a parameter is packed. More means that something moves it between any two calls, or that two graphs want
it packed with different ones."""

_Weights = tuple[torch.Tensor, ...]
_Biases = Sequence[torch.Tensor | None]
_Key = tuple[Any, ...]
"""A layout, and the identities of the parameters in it."""


@dataclass(frozen=True, eq=False)
class _Seen:
    """Parameters, and where each lay."""

    weights: _Weights
    places: tuple[tuple[Any, ...], ...]

    def unmoved(self) -> bool:
        """Whether every parameter lies where it lay."""
        return self.places == tuple(map(place_of, self.weights))

    def holds(self, weight: torch.Tensor) -> bool:
        """Whether it is one of these parameters."""
        return any(own is weight for own in self.weights)

    def keeps(self, weight: torch.Tensor) -> bool:
        """Whether it is one of these parameters, and lies where it lay."""
        return self.holds(weight) and self.place(weight) == place_of(weight)

    def place(self, weight: torch.Tensor) -> tuple[Any, ...]:
        """Where one of these parameters lay."""
        return next(place for own, place in zip(self.weights, self.places, strict=True) if own is weight)

    def forgotten(self) -> bool:
        """Whether nothing else holds the parameters: this tuple does, the name here, and the argument."""
        return all(sys.getrefcount(weight) <= 3 for weight in self.weights)


@dataclass(frozen=True)
class Layout:
    """Where the parameters lie in the buffer, each as ``[N, K]``: row and column of its first element, and whether it
    is held ``turned``, ``[K, N]``. What lies between them is zero."""

    places: tuple[tuple[int, int], ...]
    turned: tuple[bool, ...]
    shape: tuple[int, int]

    @property
    def spread(self) -> bool:
        """Whether some lie beside others, so that the rows of each lie apart."""
        return any(column for _, column in self.places)

    def parts(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The parameters as they lie in the buffer."""
        return [weight.t() if turned else weight for weight, turned in zip(weights, self.turned, strict=True)]

    def apart(self, weights: Sequence[torch.Tensor], biases: _Biases, x: torch.Tensor) -> torch.Tensor:
        """``x`` times the parameters one by one: those of the first column, to which the others of a row are added."""
        columns: dict[int, torch.Tensor] = {}
        for part, (row, column) in zip(self.parts(weights), self.places, strict=True):
            mine = x[:, column : column + part.shape[1]]
            before = columns.get(row)
            bias = biases[len(columns)] if before is None else None
            columns[row] = product(mine, part.t(), bias) if before is None else torch.addmm(before, mine, part.t())
        return torch.cat(tuple(columns.values()), dim=1)


@dataclass(frozen=True, eq=False)
class _Pack(_Seen):
    """Parameters that were packed into a buffer, where at least one of them was ``moves`` times."""

    buffer: torch.Tensor
    moves: int


class PackedWeights(Holder):
    """The packed weights of one compiled model, all its graphs together: one buffer for each group of parameters.

    ``reasons`` says, in order, what was not packed or packed anew, and why.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reasons: tuple[str, ...] = ()
        self._pack = True
        self._packs: dict[_Key, _Pack] = {}
        self._refused: dict[_Key, _Seen] = {}
        self._lock = threading.Lock()

    @property
    def packed_bytes(self) -> int:
        """Bytes of the buffers now; they hold the weights themselves, not copies."""
        return sum(pack.buffer.nbytes for pack in tuple(self._packs.values()))

    def unpack(self) -> None:
        """Give every parameter memory of its own again, now; later calls run the products one by one."""
        with self._lock:
            self._pack = False
            _release(self._packs.values())
            self._packs = {}

    def pack(self) -> None:
        """Pack in the next call, after ``unpack``; what was refused is tried again."""
        with self._lock:
            self._pack = True
            self._packs = {key: replace(pack, moves=0) for key, pack in self._packs.items()}
            self._refused = {}

    def buffer(self, weights: Sequence[torch.Tensor], layout: Layout) -> torch.Tensor | None:
        """The buffer in which these weights lie; None: to be multiplied one by one."""
        key = (layout, *map(id, weights))
        pack = self._packs.get(key)
        if pack is not None and pack.unmoved():
            return pack.buffer
        refused = self._refused.get(key)
        if not self._pack or is_captured(weights[0]) or (refused is not None and refused.unmoved()):
            return None
        with self._lock:
            return self._packed_anew(key, tuple(weights), layout)

    def _packed_anew(self, key: _Key, weights: _Weights, layout: Layout) -> torch.Tensor | None:
        self._packs = {at: pack for at, pack in self._packs.items() if not pack.forgotten()}
        self._refused = {at: seen for at, seen in self._refused.items() if not seen.forgotten()}
        before = [pack for pack in self._packs.values() if any(map(pack.holds, weights))]
        moves = 1 + max((pack.moves for pack in before), default=0)
        refusal = _refusal(weights, layout, before)
        if not refusal and moves > MOST_MOVES:
            refusal = f"they were packed {MOST_MOVES} times: something moves them between calls, or other graphs do"
        if refusal:
            self._say(f"weights are not packed: {refusal}")
            if all(type(weight) is nn.Parameter for weight in weights):  # others are new in every call
                self._refused[key] = _Seen(weights, _places(weights))
            return None
        if before:
            self._say(f"weights are packed anew: {_change(before, weights)}")
        self._packs = {at: pack for at, pack in self._packs.items() if pack not in before}
        buffer = _packed(weights, layout)
        self._packs[key] = _Pack(weights, _places(weights), buffer, moves)
        _release(before)
        return buffer

    def _say(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons += (reason,)
            warn(reason)


def _places(weights: _Weights) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(place_of, weights))


def _change(before: Sequence[_Pack], weights: _Weights) -> str:
    """What is not as it was."""
    for weight in weights:
        what = f"a parameter {list(weight.shape)}"
        pack = next((pack for pack in before if pack.holds(weight)), None)
        if pack is None:
            return f"{what} was replaced, or is multiplied beside other ones in another graph"
        if not pack.keeps(weight):
            return f"{what} was given other memory"
    return "another graph multiplies the same parameters beside other ones"


def _refusal(weights: _Weights, layout: Layout, before: Sequence[_Pack]) -> str:
    """What only the tensors themselves show; the rules of the plan see the rest. Those that still lie where one of the
    packs ``before`` put them may lie apart."""
    if layout.spread and any(weight.requires_grad for weight in weights):
        return "one is trainable, and a fused optimizer takes a parameter for dense"
    for weight in weights:
        what, storage = f"one {list(weight.shape)}", weight.untyped_storage()
        if type(weight) is not nn.Parameter:
            return f"{what} is no plain Parameter, but of class {type(weight).__name__} (as inside a DTensor)"
        if weight.is_inference():
            return f"{what} was made in inference mode"
        whole = storage.nbytes() == weight.nbytes and (weight.is_contiguous() or weight.t().is_contiguous())
        if not whole and not any(pack.keeps(weight) for pack in before):
            return f"{what} is a view of other memory, or was packed by another model: unpack() there"
        if not weight.is_cuda and weight.is_shared():  # type: ignore[no-untyped-call]
            return f"{what} lies in memory that processes share"
        if torch._C._storage_Use_Count(storage._cdata) > 2:  # the parameter, and the name here
            return f"{what} is aliased: another tensor lies in its memory"
    if len({(weight.dtype, weight.device) for weight in weights}) > 1:
        return "they are not of one dtype and device"
    return "one is there twice" if len(set(map(id, weights))) < len(weights) else ""


def _packed(weights: _Weights, layout: Layout) -> torch.Tensor:
    """A buffer, into which the parameters were moved."""
    with torch.inference_mode(False), torch.no_grad():
        buffer = weights[0].new_zeros(layout.shape)
        memory, size, pitch = buffer.untyped_storage(), buffer.element_size(), layout.shape[1]
        moved = []
        for part, (row, column), turned in zip(layout.parts(weights), layout.places, layout.turned, strict=True):
            rows, columns = part.shape
            buffer[row : row + rows, column : column + columns].copy_(part)
            begin = row * pitch + column
            end = begin + (rows - 1) * pitch + columns
            place = buffer.new_empty(0).set_(memory[begin * size : end * size], 0, part.shape, (pitch, 1))
            moved.append(place.t() if turned else place)
    _move(zip(weights, moved, strict=True))
    return buffer


def _release(packs: Iterable[_Pack]) -> None:
    """Give the parameters that still lie where these packs put them memory of their own."""
    for pack in packs:
        there = zip(pack.weights, pack.places, strict=True)
        still = [weight for weight, place in there if place == place_of(weight)]
        _move((weight, weight.detach().clone(memory_format=torch.contiguous_format)) for weight in still)


def _move(places: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give parameters new memory, which holds their values already.

    Whatever stream works on the old or the new memory is waited for: it happens once, and the old one is freed.
    """
    made = list(places)
    if made and made[0][0].is_cuda:
        torch.cuda.synchronize(made[0][0].device)
    with torch.inference_mode(False), torch.no_grad():
        for weight, place in made:
            weight.data = place


def _run(
    weights: list[torch.Tensor],
    biases: list[torch.Tensor | None],
    places: list[int],
    turned: list[bool],
    shape: list[int],
    x: torch.Tensor,
    held_by: int,
) -> torch.Tensor:
    layout = Layout(tuple(zip(places[::2], places[1::2], strict=True)), tuple(turned), (shape[0], shape[1]))
    holder = holder_of(held_by)
    buffer = holder.buffer(weights, layout) if isinstance(holder, PackedWeights) else None
    if buffer is None:
        return layout.apart(weights, biases, x)
    mains = layout.parts(weights)[: len(biases)]
    return product(x, buffer.t(), _joined(mains, biases))


def _joined(mains: Sequence[torch.Tensor], biases: _Biases) -> torch.Tensor | None:
    """The biases in one row, zeros for a member without one; None where none has one."""
    if all(bias is None for bias in biases):
        return None
    rows = zip(mains, biases, strict=True)
    return torch.cat([w.new_zeros(len(w)) if bias is None else bias.reshape(-1) for w, bias in rows])


def _shape(
    weights: Any, biases: Any, places: Any, turned: Any, shape: list[int], x: torch.Tensor, held_by: int
) -> torch.Tensor:
    return x.new_empty((x.shape[0], shape[0]))


define(
    # X is the last tensor: when AOTAutograd looks at the first call of an operator, it holds an alias of that one.
    "packed(Tensor[] weights, Tensor?[] biases, int[] places, bool[] turned, int[] shape, Tensor x, int held_by)"
    " -> Tensor",
    _run,
    _shape,
)
