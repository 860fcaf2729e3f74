"""The key of a tuned schedule: everything that could make another one the best."""

import hashlib
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version

import msgspec

from fusioncc.codegen.version import emitter_version
from fusioncc.config import Options
from fusioncc.device import Device
from fusioncc.group import Group


@dataclass(frozen=True)
class Card:
    """The card: its profile's name, its own as the driver has it (empty where none is present), and the figures that
    decide which tiles are legal, as of :class:`~fusioncc.device.Device`. Its rates are not part of it: they only rank
    what is measured."""

    profile: str
    name: str
    capability: int
    multiprocessors: int
    l2_bytes: int
    shared_bytes: int
    shared_bytes_sm: int
    registers_sm: int

    @classmethod
    def of(cls, device: Device, name: str) -> "Card":
        figures = {field.name: getattr(device, field.name) for field in fields(cls)[2:]}
        return cls(device.name, name, **figures)


@dataclass(frozen=True)
class Versions:
    """What compiles the kernels. ``emitter`` is :func:`~fusioncc.codegen.version.emitter_version`."""

    torch: str
    triton: str
    emitter: str

    @staticmethod
    @cache
    def now() -> "Versions":
        """Those that are installed, asked without loading them; empty where one is not."""
        return Versions(_installed("torch"), _installed("triton"), emitter_version())


@dataclass(frozen=True)
class Wishes:
    """The options that change which schedules there are to choose from, or what a kernel does, as of
    :class:`~fusioncc.config.Options`. Others change the group, which the key holds, or nothing of it."""

    schedule: str
    rest: str
    pack_weights: bool
    max_peak_increase: int | None
    emitted_multiprocessors: int | None
    vendor_multiprocessors: int | None
    trace: bool

    @classmethod
    def of(cls, options: Options) -> "Wishes":
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Key:
    """``group`` has no names, and its number of rows or a hint for it; ``tier`` is the ceiling that it was planned
    under."""

    group: Group
    tier: str
    card: Card
    versions: Versions
    wishes: Wishes

    def canonical(self) -> bytes:
        """The key as JSON, the same bytes for an equal key."""
        return msgspec.json.encode(self, order="sorted")

    def digest(self) -> str:
        """The name of its file: 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()


def key_of(group: Group, options: Options, device: Device, card: str = "") -> Key:
    """The key of a group here and now.

    Args:
        group: as its kernels find it (``rest="eager"`` does not align X).
        card: the name of the card as the driver has it; empty where none is present.
    """
    return key_with(group.signature(), options.numerics, Card.of(device, card), Wishes.of(options))


@lru_cache(maxsize=1024)
def key_with(group: Group, tier: str, card: Card, wishes: Wishes) -> Key:
    """The key of these parts and of what is installed; equal layers have one."""
    key = Key(group, tier, card, Versions.now(), wishes)
    return msgspec.convert(msgspec.to_builtins(key), type=Key)  # a scale of 2 is one of 2.0


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
