"""Arguments that several commands have, and the options that a command line sets."""

from dataclasses import fields
from typing import Annotated, Any

import typer

from fusioncc.config import Options
from fusioncc.errors import OptionError

SWITCH = {"true": True, "false": False}
READ: dict[Any, Any] = {float: float, float | None: float, int | None: int, bool: SWITCH.__getitem__}
"""How a value on the command line is read, by the type of its option; as it stands where none is listed."""
TargetArgument = Annotated[str, typer.Argument(help="x.pt2, file.py:factory or package.module:factory.")]
DeviceOption = Annotated[str, typer.Option(help="Card to plan for: 'fusioncc devices' lists them; or my.json.")]
ScheduleOption = Annotated[str | None, typer.Option(help="Force one kind of schedule on every group.")]
NumericsOption = Annotated[str | None, typer.Option(help="Ceiling for rounding: eager, fp32 or relaxed.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option.")]
TrustOption = Annotated[bool, typer.Option("--trust", help="Load a .pt2 archive although it can run code.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and torch's own output.")]


def settings_of(schedule: str | None, numerics: str | None, settings: list[str] | None) -> dict[str, Any]:
    """The options that a command line sets, checked.

    Raises:
        OptionError: not of the form NAME=VALUE, an unknown name or value, or one name with two values.
    """
    named = {"schedule": schedule, "numerics": numerics}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    kinds = {field.name: field.type for field in fields(Options)}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"--set {setting!r} is not of the form NAME=VALUE")
        if name in ("device", "inductor"):
            raise OptionError(f"--set cannot give {name!r}: --device names the device, Inductor is not part of a plan")
        if kinds.get(name) is bool and value not in SWITCH:
            raise OptionError(f"{name}={value!r} is not valid; valid values: {', '.join(SWITCH)}")
        try:
            wanted = READ[kinds[name]](value) if kinds.get(name) in READ else value
        except ValueError:
            raise OptionError(f"{name}={value!r} is not a number") from None
        if given.setdefault(name, wanted) is not wanted and given[name] != wanted:
            raise OptionError(f"{name} is given twice, as {given[name]!r} and as {wanted!r}")
    Options.of(given)
    return given
