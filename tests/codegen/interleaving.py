"""Programs of an interpreted kernel in a random order, a random one going on at every atomic, some of them resident.

The interpreter runs programs one after another, so that a kernel whose programs wait for one another either works by
luck or hangs. Here each program is a thread, one of which runs at a time.
"""

import copy
import inspect
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import triton.language as tl  # noqa: F401  the interpreter patches the modules that it finds among a kernel's globals
from triton.runtime import interpreter

MOST_SWITCHES = 20_000
"""Atomics after which programs are taken to wait for ever."""


class NoProgress(RuntimeError):
    """Programs wait for one another."""


class Programs:
    """The programs of one launch."""

    def __init__(self, run: Callable[[], None], grid: tuple[int, ...], resident: int, seed: int) -> None:
        self.run, self.grid, self.random = run, grid, random.Random(seed)
        self.waiting = list(itertools.product(*map(range, grid)))
        self.random.shuffle(self.waiting)
        self.free = resident
        self.resident: dict[threading.Thread, tuple[int, ...]] = {}
        self.turn = threading.Condition()
        self.current: threading.Thread | None = None
        self.switches = 0
        self.failure: BaseException | None = None

    def finish(self) -> None:
        """Run all of them."""
        threads: list[threading.Thread] = []
        with self.turn:
            self._start(threads)
            self._pass_on()
            while self.resident and self.failure is None:
                self.turn.wait()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def switch(self) -> None:
        """Let a random resident program go on; return when it is the caller's turn again."""
        with self.turn:
            self.switches += 1
            if self.switches > MOST_SWITCHES and self.failure is None:
                self.failure = NoProgress(f"{len(self.resident)} resident programs, {len(self.waiting)} not started")
            self._pass_on()
            self._await_turn()

    def _start(self, threads: list[threading.Thread]) -> None:
        while self.waiting and self.free:
            thread = threading.Thread(target=self._program, args=(threads,), daemon=True)
            self.resident[thread] = self.waiting.pop()
            self.free -= 1
            threads.append(thread)
            thread.start()

    def _program(self, threads: list[threading.Thread]) -> None:
        try:
            with self.turn:
                self._await_turn()
            self.run()
        except BaseException as error:  # noqa: BLE001  raised again by ``finish``
            self.failure = self.failure or error
        with self.turn:
            del self.resident[threading.current_thread()]
            self.free += 1
            if self.failure is None:
                self._start(threads)
            self._pass_on()

    def _pass_on(self) -> None:
        self.current = self.random.choice(list(self.resident)) if self.resident else None
        self.turn.notify_all()

    def _await_turn(self) -> None:
        me = threading.current_thread()
        while self.current is not me and self.failure is None:
            self.turn.wait()
        if self.failure is not None:
            raise self.failure
        interpreter.interpreter_builder.set_grid_dim(*self.grid)
        interpreter.interpreter_builder.set_grid_idx(*self.resident[me])


@contextmanager
def interleaved(seed: int, resident: int) -> Iterator[None]:
    """Interpreted kernels run so inside, with at most ``resident`` programs at once."""
    execute, atomic = interpreter.GridExecutor.__call__, interpreter.InterpreterBuilder.create_atomic_rmw
    running: list[Programs] = []

    def execute_interleaved(self: Any, *args: Any, **kwargs: Any) -> None:
        kernel, grid = self.fn, (*self.grid, 1, 1)[:3]

        def every_program(**arguments: Any) -> None:
            running.append(Programs(lambda: kernel(**arguments), grid, resident, seed))
            try:
                running[-1].finish()
            finally:
                running.pop()

        every_program.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
        once = copy.copy(self)
        once.fn, once.grid = every_program, (1, 1, 1)
        execute(once, *args, **kwargs)

    def switching_atomic(self: Any, *args: Any) -> Any:
        if running:
            running[-1].switch()
        return atomic(self, *args)

    with (
        mock.patch.object(interpreter.GridExecutor, "__call__", execute_interleaved),
        mock.patch.object(interpreter.InterpreterBuilder, "create_atomic_rmw", switching_atomic),
    ):
        yield
