"""The one place where any exception is caught: between us and code that may fail in ways we cannot list.

``attempt`` guards our own work on a user's model: on failure the user gets what they had without fusioncc, and one
warning. ``translated`` guards a user's own code that we have to call (a model under capture, a factory): its failure
becomes one of our errors, with the original chained.
"""

import warnings
from collections.abc import Callable
from typing import TypeVar

from fusioncc.errors import FusionError

T = TypeVar("T")


class FusionWarning(UserWarning):
    """Something was left as it was; the message names what and why."""


def attempt(
    what: str,
    action: Callable[[], T],
    otherwise: Callable[[str], T],
    on_error: str,
    let_through: tuple[type[Exception], ...] = (),
) -> T:
    """``action()``; when it fails, ``otherwise(cause)`` and one warning; under ``on_error="raise"`` the error itself.

    Exceptions of ``let_through`` are signals to a caller, not failures.
    """
    try:
        return action()
    except let_through:
        raise
    except Exception as error:
        if on_error == "raise":
            raise
        cause = one_line(error)
        warn(f"{what}: {cause}; the original graph is kept")
        return otherwise(cause)


def translated(what: str, action: Callable[[], T], kind: type[FusionError]) -> T:
    """``action()``; any failure but our own is raised again as ``kind`` with a one-line message.

    So is an attempt to leave the process (``sys.exit``): a user's code is a guest here.

    Raises:
        FusionError: of class ``kind``, chained to the original.
    """
    try:
        return action()
    except FusionError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{what}: {one_line(error)}") from error


def warn(message: str) -> None:
    """One :class:`FusionWarning`."""
    warnings.warn(f"fusioncc: {message}", FusionWarning, stacklevel=2)


def one_line(error: BaseException) -> str:
    """Class and first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
