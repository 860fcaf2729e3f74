"""Every exception that fusioncc raises on purpose.

All derive from :class:`FusionError`, so that one ``except`` clause (and the one fallback seam) can tell a
decision of ours from a bug.
"""

from typing import Literal


class FusionError(Exception):
    """Base of all errors raised by fusioncc; the message is one line a user understands."""


class OptionError(FusionError, ValueError):
    """An option, its value, or a device name is unknown; the message lists the valid ones."""


class ShapesError(FusionError, ValueError):
    """A histogram of shapes, or what is asked of it, makes no sense; the message names the field."""


class CaptureError(FusionError):
    """The model could not be captured as an FX graph."""


class TargetError(FusionError):
    """A command-line TARGET, archive or output folder cannot be used."""


class PlanError(FusionError):
    """A plan cannot be read, or does not belong to the graph it is applied to."""


class IllegalScheduleError(FusionError):
    """A schedule forced by name is illegal for a group and ``on_error="raise"`` is set."""


class TraceError(FusionError):
    """A trace was asked for, and nothing was recorded."""


class CalibrationError(FusionError):
    """The card cannot be measured: there is none, or a measurement came out as nothing a card can have."""


class TuningError(FusionError):
    """A tuned schedule that was kept cannot be taken, or the folder that keeps them not be used; ``rule`` names what it
    breaks in a word (``checksum``, ``owner``, ``space``)."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class MeasuringError(FusionError):
    """A schedule, or what runs without one, has no time; ``kind`` is that of
    :class:`~fusioncc.tuning.measuring.Failed`."""

    def __init__(self, kind: Literal["build", "wrong", "hang", "crash", "memory"], reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class MissingExtraError(FusionError):
    """A package of an optional extra is needed and not installed; the message names the extra."""


class EmissionError(FusionError):
    """A schedule has no emitted form for a group."""


class KernelBuildError(FusionError):
    """An emitted kernel does not compile for, or does not fit on, the device; ``launch`` is its place in the module,
    and ``spilled`` says that its registers do not suffice."""

    def __init__(self, message: str, launch: int = 0, *, spilled: bool = False) -> None:
        super().__init__(message)
        self.launch = launch
        self.spilled = spilled


class UntrustedArchiveError(TargetError):
    """Loading an archive can run code from it, and the user has not said that it is trusted."""
