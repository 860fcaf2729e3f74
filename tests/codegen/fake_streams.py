"""A card that runs nothing: streams that know what happened before what, and tensors that know who was told of them.

``Card.run`` calls the ``launch`` of an emitted ``streams`` module and returns what is wrong with the order of its work,
on any machine: every launch must come behind the work that the current stream had before, and behind every launch that
used one of its buffers; the current stream must end behind all of it; a side stream's tensors must be recorded.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fusioncc.codegen import EmittedModule

BEFORE = "what the current stream had before"


@dataclass(eq=False)
class Stream:
    """A stream: what is certain to be done when its next work starts."""

    done: set[str] = field(default_factory=set)

    def record_event(self) -> "Stream":
        return Stream(set(self.done))

    def wait_event(self, event: "Stream") -> None:
        self.done |= event.done


@dataclass(eq=False)
class Tensor:
    """A tensor of the fake card, without elements."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = field(default_factory=lambda: torch.device("cuda", 0))
    recorded: set[Stream] = field(default_factory=set)
    used: list[str] = field(default_factory=list)

    def stride(self, dim: int) -> int:
        return 1

    def __getitem__(self, slice_of_k: int) -> "Tensor":
        return self

    def record_stream(self, stream: Stream) -> None:
        self.recorded.add(stream)


class Card:
    """A fake CUDA card with a current stream; patches ``torch.cuda`` while a module runs on it."""

    def __init__(self, patch: pytest.MonkeyPatch, capturing: bool = False) -> None:
        self.home = self.current = Stream({BEFORE})
        self.sides: list[Stream] = []
        self.buffers: list[Tensor] = []
        self.problems: list[str] = []
        self.launched: list[tuple[str, Stream]] = []
        self.fails_at: int | None = None
        """How many launches go well."""
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        self.capturing = capturing

    def run(self, emitted: EmittedModule, module: ModuleType) -> list[str]:
        """What is wrong with the module's ``launch``; empty if nothing."""
        for name in {launch.kernel for launch in emitted.launches}:
            setattr(module, name, _Kernel(name, self))
        module.multiply = lambda x, w, out, bias=None: self.launch(f"multiply {out.name}", x, w, out, bias)
        arguments = module.launch.__code__.co_varnames[: len(emitted.operands)]
        self.launched.clear()
        operands = [Tensor(name, each.shape) for name, each in zip(arguments, emitted.operands, strict=True)]
        try:
            module.launch(*operands, empty=self._empty)
        finally:
            self._require(self.home, {name for name, _ in self.launched}, "the end")
        return self.problems

    def launch(self, name: str, *tensors: Any) -> None:
        """Work on the current stream."""
        if len(self.launched) == self.fails_at:
            raise RuntimeError(f"{name} fails")
        self._require(self.current, {BEFORE}, name)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                continue
            if tensor in self.buffers:
                self._require(self.current, {*tensor.used}, name)
            if self.current is not self.home and (self.current in tensor.recorded) == self.capturing:
                self.problems.append(f"{name}: {tensor.name} is {'' if self.capturing else 'not '}recorded")
            tensor.used.append(name)
        self.current.done.add(name)
        self.launched.append((name, self.current))

    def _require(self, stream: Stream, before: set[str], what: str) -> None:
        self.problems += [f"{what} does not wait for {each}" for each in sorted(before - stream.done)]

    def _stream(self, device: torch.device) -> Stream:
        self.sides.append(Stream())
        return self.sides[-1]

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.launched or self.current is not self.home:
            self.problems.append("a buffer is allocated behind the fork")
        self.buffers.append(Tensor(f"buffer {len(self.buffers)}", shape, dtype))
        return self.buffers[-1]

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class _Kernel(SimpleNamespace):
    """In place of a Triton kernel: its launch is noted."""

    def __init__(self, name: str, card: Card) -> None:
        super().__init__(name=name, card=card)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **arguments: self.card.launch(self.name, *arguments.values())
