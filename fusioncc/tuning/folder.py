"""A folder that nobody but its owner can have written: what is read from it is this user's own.

Files are opened below the open folder and never through a symbolic link, and judged once they are open. Each is written
to a temporary file, synced and renamed, under a lock that the kernel releases when its process ends, however it ends;
who reads needs none.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fusioncc.errors import TuningError

LOCK, TEMPORARY = ".lock", ".tmp"
WAIT_S, POLL_S = 30.0, 0.01
"""How long a writer waits for others, each of which holds the lock for some milliseconds."""
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Folder:
    """The folder at ``path``, which need not be there."""

    path: Path

    def is_there(self) -> bool:
        """Whether there is anything at the path, as far as this user can see."""
        try:
            return self.path.exists()
        except OSError:
            return False

    def read(self, name: str, limit: int) -> bytes:
        """What a file holds.

        Raises:
            FileNotFoundError: there is none, or no folder.
            TuningError: the file belongs to somebody else or may be written by others (``owner``), is no regular file
                (``link``), cannot be read (``unreadable``), or has more than ``limit`` bytes (``size``); or one of the
                first three is so of the folder (``folder``).
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO would wait for a writer
        with self._opened() as folder, _explained():
            handle = os.open(name, flags, dir_fd=folder)
            try:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    raise TuningError("link", "is no regular file")
                _require_own(found)
                if found.st_size > limit:
                    raise TuningError("size", f"has more than {limit} bytes")
                with os.fdopen(handle, "rb", closefd=False) as file:
                    return file.read(limit)
            finally:
                os.close(handle)

    def names(self, suffix: str) -> tuple[str, ...]:
        """Names of its files that end so, in order; none where there is no folder.

        Raises:
            TuningError: as :meth:`read`, of the folder.
        """
        try:
            with self._opened() as folder, _explained(), os.scandir(folder) as found:
                return tuple(sorted(each.name for each in found if each.name.endswith(suffix)))
        except FileNotFoundError:
            return ()

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, on the disk when this returns; under :meth:`locked`.

        Raises:
            OSError: it cannot be written.
            TuningError: as :meth:`read`, of the folder.
        """
        temporary = f".{secrets.token_hex(16)}{TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._opened() as folder:
            handle = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)

    def remove(self, name: str) -> bool:
        """Remove a file, or the link of that name, but no folder; under :meth:`locked`. Whether it is gone.

        Raises:
            OSError: it cannot be removed.
            TuningError: as :meth:`read`, of the folder.
        """
        with self._opened() as folder:
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                return False
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes; the folder is made, for this user only, when it is missing.

        Raises:
            OSError: the folder cannot be made or written.
            TuningError: as :meth:`read`, of the folder; or others held the lock for too long (``locked``).
        """
        with suppress(FileExistsError):  # what is in its place, opening it says
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opened():
            pass
        lock = FileLock(self.path / LOCK, mode=0o600)
        try:
            lock.acquire(timeout=WAIT_S, poll_interval=POLL_S)
        except Timeout as error:
            raise TuningError("locked", f"{self.path} was locked for {WAIT_S:g} s") from error
        except NotImplementedError as error:
            raise TuningError("locked", f"{self.path} has no locks") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder, which is this user's own."""
        try:
            with _explained():
                folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except TuningError as error:
            reason = "is no folder, but a file or a symbolic link" if error.rule == "link" else error
            raise TuningError("folder", f"{self.path} {reason}") from error
        try:
            _require_own(os.fstat(folder), "folder", f"{self.path} ")
            yield folder
        finally:
            os.close(folder)


def _require_own(found: os.stat_result, rule: str = "owner", what: str = "") -> None:
    if found.st_uid != os.geteuid():
        raise TuningError(rule, f"{what}belongs to another user ({found.st_uid})")
    if found.st_mode & WRITABLE:
        raise TuningError(rule, f"{what}may be written by others (mode {stat.S_IMODE(found.st_mode):o})")


@contextmanager
def _explained() -> Iterator[None]:
    """What the system says of a file, but for that there is none, in our words."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "is a symbolic link, or no file of its kind" if link else f"cannot be read: {error.strerror or error}"
        raise TuningError("link" if link else "unreadable", reason) from error
