"""The other cards of this machine that tune too: for each a process of ``fusioncc tune`` that sees no other card.

They share the groups as any processes of a machine do: one searches for a key, the others go on to the next, and all
results are in one database.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

PROGRAM = (sys.executable, "-m", "fusioncc")
ENDED_S = 10.0
"""How long an interrupted process may take to be gone."""


def other_cards() -> dict[str, str]:
    """The cards that torch sees beside the current one: what the driver calls each, by its index here."""
    import torch

    from fusioncc.runtime.card import identity

    current, _ = identity(None)
    return {str(at): f"GPU-{identity(at)[1]}" for at in range(torch.cuda.device_count()) if at != current}


@dataclass(frozen=True)
class _Other:
    index: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def ended(self) -> str:
        """Wait for it; what went wrong, if anything did."""
        code = self.process.wait()
        if code == 0:
            return ""
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"card {self.index}: {said[-1].removeprefix('fusioncc: ') if said else f'its process ended with {code}'}"

    def interrupt(self) -> None:
        """Have it end if it still runs, as Ctrl-C does: what it found is kept."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Wait until it has ended, not for long."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDED_S)
        self.process.kill()
        self.process.wait()
        self.errors.close()


@contextmanager
def _interruptible() -> Iterator[None]:
    """What is started inside can be interrupted, even if this process cannot: a background job of a shell ignores that
    signal, and so does what it starts."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def tuning_beside(
    cards: Mapping[str, str], arguments: Callable[[str], Sequence[str]]
) -> Iterator[Callable[[], list[str]]]:
    """Have the other ``cards`` tune while inside, each with the ``arguments`` for its index. What is given waits for
    all of them, and says of each that failed why."""
    others: list[_Other] = []
    try:
        for index, card in cards.items():
            errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
            with _interruptible():
                process = subprocess.Popen(
                    [*PROGRAM, "tune", *arguments(index)],
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": card},
                    start_new_session=True,  # an interrupt from the terminal is for this process, which passes it on
                )
            others.append(_Other(index, process, errors))
        yield lambda: [why for each in others if (why := each.ended())]
    finally:
        for each in others:
            each.interrupt()
        for each in others:
            each.close()
