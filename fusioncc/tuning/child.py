"""A process of our own that answers one request at a time, and may die or hang: then it is killed, and its error says
how it ended.

It is started as a program, not by ``multiprocessing``, which would import the user's script in it once more.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from fusioncc.errors import MeasuringError
from fusioncc.tuning.messages import Refused
from fusioncc.tuning.pipes import read, write

T = TypeVar("T")
REAPED_S = 10.0
"""How long a killed process may take to be gone: the driver first ends what it ran on the card."""
TAIL = 4096


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child: as it is now, with what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path), **changes}


class Child(Generic[T]):
    """``python -m module *arguments``, whose answers are of type ``answers``. It ends with this object, and with this
    process, however that ends.

    Raises:
        MeasuringError: no process can be started (``crash``).
    """

    def __init__(self, module: str, *arguments: str, answers: Any, environment: Mapping[str, str]) -> None:
        self.answers = answers
        try:
            handle, path = tempfile.mkstemp(prefix="fusioncc-")
            self._errors = os.fdopen(handle, "rb")
            Path(path).unlink()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,  # an interrupt from the terminal is for the parent
                bufsize=0,
            )
        except OSError as error:
            raise MeasuringError("crash", f"no process could be started: {error}") from error
        self._end = weakref.finalize(self, _end, self.process, os.getpid())

    @property
    def alive(self) -> bool:
        return self._end.alive and self.process.poll() is None

    def ask(self, request: object, seconds: float) -> T:
        """The answer to a request.

        Raises:
            MeasuringError: the request was refused; or (``hang``, ``crash``) there was no answer, and it was killed.
        """
        return self._exchange(request, seconds)

    def started(self, seconds: float) -> T:
        """What a new process says first.

        Raises:
            MeasuringError: as :meth:`ask`.
        """
        return self._exchange(None, seconds)

    def _exchange(self, request: object | None, seconds: float) -> T:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.ExitStack() as undo:
            undo.callback(self.kill)  # an interrupt leaves an answer behind for which nobody waits
            try:
                if request is not None:
                    write(self.process.stdin.fileno(), request)
                answer: T = read(self.process.stdout.fileno(), self.answers, seconds)
            except TimeoutError:
                raise MeasuringError("hang", f"no answer within {seconds:.1f} s") from None
            except (EOFError, OSError):
                raise self._crashed() from None
            undo.pop_all()
        if isinstance(answer, Refused):
            raise MeasuringError(answer.kind, answer.why)
        return answer

    def kill(self) -> None:
        """End it, and what it is running; no zombie is left."""
        self._end()

    def _crashed(self) -> MeasuringError:
        """How it ended, and the last that it printed; it is killed if it did not end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.poll()
        self.kill()
        ended = "it was lost" if code is None else _by_signal(-code) if code < 0 else f"it left with code {code}"
        said = _last_line(self._errors)
        return MeasuringError("crash", f"{ended}: {said}" if said else ended)


def _by_signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    return f"it died of {names.get(number, f'signal {number}')}"


def _last_line(errors: IO[bytes]) -> str:
    size = os.fstat(errors.fileno()).st_size
    lines = os.pread(errors.fileno(), TAIL, max(0, size - TAIL)).decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a process and its descendants, from the process that started it: a fork of that has no say. The pipes are
    left to whoever reads them, who may be another thread."""
    if os.getpid() != owner:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAPED_S)
