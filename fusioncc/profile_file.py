"""Device profiles as JSON files: ``--device my.json`` reads what ``fusioncc devices NAME --json`` prints.

A file gives every figure, or ``like`` (a profile that ships) and the figures that differ. A figure is a number, or an
object with its ``value`` and, optionally, its ``unit`` and ``source``.
"""

import difflib
from pathlib import Path
from typing import Any

import msgspec

from fusioncc.datasheets import PROFILES
from fusioncc.errors import OptionError
from fusioncc.figures import FIGURES, Device, checked

OPTIONAL = {"tile_tflops": ()}
"""Figures that a profile may lack, and what stands for them."""


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """One figure in a file; rates by tile shape are an object."""

    value: float | dict[str, float]
    unit: str = ""
    source: str = ""


def read_profile(path: Path) -> Device:
    """The profile in a file. Its name is the file's, less ``.json``, unless it gives one.

    Raises:
        OptionError: the file cannot be read, is no JSON object, or a field is unknown, missing, of another type or
            unit, or out of its range. One line that names file and field.
    """
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise OptionError(f"{path} is not a device profile: {error}") from error
    _refuse_unknown(path, fields)
    name = _read(path, "name", fields["name"], str) if "name" in fields else path.stem
    if not name.strip() or not name.isprintable():
        raise OptionError(f"{path}: name is {name!r}, which is no name")
    base = _base(path, _read(path, "like", fields["like"], str)) if "like" in fields else None
    given = {figure: _figure(path, figure, fields[figure]) for figure in FIGURES if figure in fields}
    values = OPTIONAL | ({figure: getattr(base, figure) for figure in FIGURES} if base else {})
    values |= {figure: value for figure, (value, _) in given.items()}
    missing = [figure for figure in FIGURES if figure not in values]
    if missing:
        names, like = ", ".join(missing), '"like": "h200" takes from a profile what is not given'
        raise OptionError(f"{path}: missing {names}; {like}")
    sources = {**(base.sources if base else {}), **{figure: source for figure, (_, source) in given.items()}}
    return checked(Device(name=name, **values, sources=sources), str(path))


def to_json(device: Device) -> str:
    """A profile as indented JSON, every figure with value, unit and source; read back equal."""
    figures: dict[str, Any] = {}
    for figure, (_, meaning) in FIGURES.items():
        value = getattr(device, figure)
        if figure not in OPTIONAL or value:
            value = dict(value) if isinstance(value, tuple) else value
            figures[figure] = Given(value, meaning.unit, device.sources.get(figure, ""))
    return msgspec.json.format(msgspec.json.encode({"name": device.name, **figures}), indent=2).decode() + "\n"


def _refuse_unknown(path: Path, fields: dict[str, msgspec.Raw]) -> None:
    valid = ("name", "like", *FIGURES)
    for field in fields:
        if field not in valid:
            near = difflib.get_close_matches(field, valid, n=1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(f"{path}: unknown field {field!r}{guess}; valid fields: {', '.join(valid)}")


def _base(path: Path, like: str) -> Device:
    if like.lower() not in PROFILES:
        raise OptionError(f"{path}: like is {like!r}; valid devices: {', '.join(sorted(PROFILES))}")
    return PROFILES[like.lower()]


def _read(path: Path, field: str, raw: msgspec.Raw, wanted: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.DecodeError as error:
        raise OptionError(f"{path}: {field}: {error}") from error


def _figure(path: Path, name: str, raw: msgspec.Raw) -> tuple[Any, str]:
    """Value and source of one figure."""
    kind, figure = FIGURES[name]
    read = _read(path, name, raw, Given | float)
    given = read if isinstance(read, Given) else Given(read)
    if given.unit not in ("", figure.unit):
        raise OptionError(f"{path}: {name} is in {given.unit!r}; it has to be in {figure.unit}")
    source = given.source or f"given in {path.name}"
    by_tile = kind not in (int, float)
    if isinstance(given.value, dict) != by_tile:
        raise OptionError(f"{path}: {name} has to be {'an object of rates by tile' if by_tile else 'a number'}")
    if isinstance(given.value, dict):
        return tuple(given.value.items()), source
    if kind is int and not given.value.is_integer():
        raise OptionError(f"{path}: {name} is {given.value:g}, which is no whole number")
    return kind(given.value), source
