"""Messages between processes: JSON in frames of four bytes of length. What arrives is decoded as what is expected, and
nothing of it is executed."""

import os
import queue
import select
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
LENGTH = struct.Struct("<I")
MAX_FRAME = 16 << 20


def write(handle: int, message: object) -> None:
    """Write a message whole.

    Raises:
        OSError: nobody reads any more.
    """
    payload = msgspec.json.encode(message)
    rest = memoryview(LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(handle, rest) :]


def read(handle: int, expected: Any, seconds: float | None = None) -> Any:
    """The next message, of one of the types ``expected``.

    Raises:
        EOFError: the other side is gone, or what it sent is no such message.
        TimeoutError: no whole message arrived within so many seconds.
    """
    until = None if seconds is None else time.monotonic() + seconds
    (length,) = LENGTH.unpack(_exactly(handle, LENGTH.size, until))
    if length > MAX_FRAME:
        raise EOFError(f"a message of {length} bytes")
    try:
        return msgspec.json.decode(_exactly(handle, length, until), type=expected)
    except msgspec.DecodeError as error:
        raise EOFError(f"no message: {error}") from error


def _exactly(handle: int, count: int, until: float | None) -> bytes:
    data = b""
    while len(data) < count:
        if until is not None:
            _wait(handle, max(0.0, until - time.monotonic()))
        part = os.read(handle, count - len(data))
        if not part:
            raise EOFError("the process is gone")
        data += part
    return data


def _wait(handle: int, seconds: float) -> None:
    """Until there is something to read. By ``poll``: ``select`` knows no handle above 1023."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(1000 * seconds):
        raise TimeoutError


class Parent(Generic[T]):
    """The other end, in a process that was started for it: requests come from its input, answers go to its output.

    What anything else in the process prints goes to the errors. When the parent is gone the process ends at once,
    whatever it is doing.
    """

    def __init__(self, expected: Any) -> None:
        self._requests: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._answers = os.dup(1)
        os.dup2(2, 1)
        requests = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        threading.Thread(target=self._listen, args=(requests, expected), daemon=True).start()

    def requests(self) -> Iterator[T]:
        """Each request, for as long as there is a parent."""
        while True:
            yield self._requests.get()

    def answer(self, message: object) -> None:
        write(self._answers, message)

    def _listen(self, handle: int, expected: Any) -> None:
        try:
            while True:
                self._requests.put(read(handle, expected))
        except EOFError:
            os._exit(0)
