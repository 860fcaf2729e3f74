"""Claims: of all processes of a machine one searches for a key, and the others wait for what it finds.

A claim is a lock of the kernel's on a file beside the entries, so it ends with its process, however that ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from fusioncc.errors import TuningError
from fusioncc.tuning.folder import Folder

CLAIM = ".claim"
POLL_S = 0.1


@contextmanager
def claimed(folder: Folder, digest: str, wait_s: float = 0.0) -> Iterator[bool]:
    """Whether this process alone may search for the key of that digest now, while inside; others hold the claim for
    longer than ``wait_s`` where it may not. Where no claim can be made, nobody is waited for."""
    lock = FileLock(folder.path / f"{digest}{CLAIM}", mode=0o600)
    try:
        with folder.locked():  # makes it, and judges whose it is
            pass
        lock.acquire(timeout=wait_s, poll_interval=POLL_S)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError, TuningError):
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
