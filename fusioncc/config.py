"""Options: one frozen value for every front door, and the one place that reads the environment."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from fusioncc.device import Device, get_device
from fusioncc.errors import OptionError
from fusioncc.schedule import SCHEDULES

CAPS = ("emitted_multiprocessors", "vendor_multiprocessors")
"""Options that hold a side of ``streams`` to some multiprocessors."""

MOST_SECONDS = 7 * 24 * 3600.0
"""Longest time for tuning a graph."""


@dataclass(frozen=True)
class Options:
    """Everything a user can set, the same through every door.

    Raises:
        OptionError: a value is not valid; the message lists the valid ones.
    """

    schedule: str = "auto"
    """A kind of schedule to force on every group, or ``auto``."""
    numerics: Literal["eager", "fp32", "relaxed"] = "fp32"
    """Ceiling for the rounding tier: as eager does, fp32 kept inside, or adapters also rounded to the base's dtype."""
    on_error: Literal["fallback", "raise"] = "fallback"
    """Keep the original graph and warn once, or raise."""
    rest: Literal["inductor", "eager"] = "inductor"
    """What runs the rest of the graph on CUDA."""
    chains: Literal["auto", "always", "never"] = "auto"
    """Whether chains of elementwise ops become kernels of their own: where the model says that it pays, all, none."""
    epilogues: Literal["auto", "always", "never"] = "auto"
    """Whether the tiles of a group end with the chain behind its products: where the model says that it pays, wherever
    an emitted schedule is chosen, nowhere."""
    norms: Literal["auto", "always", "never"] = "auto"
    """Whether the tiles of a group carry out the RMSNorm that makes its X: as of ``epilogues``."""
    max_rank_fraction: float = 0.25
    """A GEMM is a low-rank branch when its rank is at most this fraction of N and of K."""
    max_peak_increase: int | None = None
    """Bytes by which a schedule may raise the peak of what lives while its group runs; None: no limit."""
    emitted_multiprocessors: int | None = None
    """Of ``streams``: multiprocessors for the emitted kernel beside the vendor's products; None: no cap."""
    vendor_multiprocessors: int | None = None
    """Of ``streams``: multiprocessors for the vendor's products, through torch's green contexts; None: no cap."""
    trace: bool = False
    """Persistent kernels record when each worker ran which tile; :func:`fusioncc.trace_of` reads it."""
    device: Device | None = None
    """Profile to plan for, given as its name, as the path of a JSON file (read once, here) or as it is; None: the card
    the model runs on."""
    pack_weights: bool = False
    """Move parameters behind each other into one buffer, where that makes one product of several."""
    autotune: Literal["none", "quick", "full"] = "none"
    """Measure schedules of the groups on the card in use, where the database of tuned schedules has none: a few of each
    group, those and then their neighbours, or none. What is in the database is taken whatever stands here."""
    autotune_seconds: float | None = None
    """Seconds in which all groups of a graph are tuned; None: as many for each as the effort has."""
    deterministic: bool = False
    """The cost models alone choose: nothing is measured, and the database is not read."""
    inductor: tuple[tuple[str, Any], ...] = ()
    """Options for Inductor, which compiles the rest (given as a mapping)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if get_origin(field.type) is Literal and getattr(self, field.name) not in get_args(field.type):
                valid = ", ".join(map(repr, get_args(field.type)))
                raise OptionError(f"{field.name}={getattr(self, field.name)!r} is not valid; valid values: {valid}")
        if self.schedule not in ("auto", *SCHEDULES):
            raise OptionError(
                f"schedule={self.schedule!r} is not valid; valid values: {', '.join(('auto', *SCHEDULES))}"
            )
        if not isinstance(self.pack_weights, bool):
            raise OptionError(f"pack_weights={self.pack_weights!r} is not valid; valid values: True, False")
        if isinstance(self.max_rank_fraction, bool) or not isinstance(self.max_rank_fraction, int | float):
            raise OptionError(f"max_rank_fraction={self.max_rank_fraction!r} is not a number")
        if not 0.0 < self.max_rank_fraction <= 1.0:
            raise OptionError(f"max_rank_fraction={self.max_rank_fraction!r} is not in (0, 1]")
        limit = self.max_peak_increase
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise OptionError(f"max_peak_increase={limit!r} is not a number of bytes")
        for name in CAPS:
            cap = getattr(self, name)
            if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
                raise OptionError(f"{name}={cap!r} is not a number of multiprocessors")
            if cap is not None and self.schedule != "streams":
                raise OptionError(f"{name} is a cap of schedule='streams', which has to be asked for")
        for name in ("trace", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} is not valid; valid values: True, False")
        seconds = self.autotune_seconds
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
            raise OptionError(f"autotune_seconds={seconds!r} is not a number of seconds")
        if seconds is not None and not 0.0 < seconds <= MOST_SECONDS:
            raise OptionError(f"autotune_seconds={seconds!r} is not in (0, {MOST_SECONDS:g}]")
        if self.device is not None:
            object.__setattr__(self, "device", get_device(self.device))
        if not isinstance(self.inductor, tuple):
            raise OptionError(f"inductor={self.inductor!r} is not a mapping of Inductor's options")

    @classmethod
    def of(cls, values: "Mapping[str, Any] | Options | None" = None, **more: Any) -> "Options":
        """Options from keyword arguments or a mapping.

        Raises:
            OptionError: an unknown name (with the nearest and all valid ones) or an invalid value.
        """
        if values is not None and not isinstance(values, Mapping | Options):
            raise OptionError(f"options={values!r} is not a mapping of options")
        base = values if isinstance(values, Options) else cls()
        given = {**(values if isinstance(values, Mapping) else {}), **more}
        valid = [field.name for field in fields(cls)]
        for name in given:
            if name not in valid:
                near = difflib.get_close_matches(str(name), valid, n=1)
                guess = f" (did you mean {near[0]!r}?)" if near else ""
                raise OptionError(f"unknown option {name!r}{guess}; valid options: {', '.join(valid)}")
        if isinstance(given.get("inductor"), Mapping):
            given["inductor"] = tuple(sorted(given["inductor"].items()))
        return replace(base, **given)


def interpreter_requested() -> bool:
    """Whether ``TRITON_INTERPRET=1`` asks for Triton's interpreter (emitted kernels then run on the CPU)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def cache_folder_override() -> str | None:
    """The user's choice of cache folder, ``FUSIONCC_CACHE_DIR``."""
    return os.environ.get("FUSIONCC_CACHE_DIR") or None
