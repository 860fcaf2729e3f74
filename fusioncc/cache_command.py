"""``fusioncc cache``: what the database of tuned schedules holds, and what is to be done with it. None of it loads
torch."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fusioncc.errors import TargetError

if TYPE_CHECKING:
    from fusioncc.tuning.database import Database, Listing

SHORT = 12
"""Digits of a key that are shown, and enough to name it."""
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A table of tuned schedules, JSON.")]


def cache_app(one_line: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """The commands, each with its errors in ``one_line``."""
    app = typer.Typer(help="Look after the tuned schedules that are kept.", no_args_is_help=True)
    commands = (list_command, show_command, prune_command, export_command, import_command)
    for command in commands:
        app.command(command.__name__.removesuffix("_command"))(one_line(command))
    return app


def list_command(debug: DebugOption = False) -> None:
    """List what is kept, and what of it is damaged."""
    database = _database()
    listing = database.listed()
    if listing.entries:
        Console(width=max(Console().width, 120), markup=False).print(_table(listing))
    for name, error in listing.refused:
        typer.echo(f"{_printable(name)}: {error}")
    typer.echo(
        f"{len(listing.entries)} tuned schedules in {database.folder.path}, {len(listing.refused)} damaged files."
    )


def show_command(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its first digits, as 'list' shows them.")],
    debug: DebugOption = False,
) -> None:
    """Print one entry as JSON: its whole key, the schedule, the times."""
    if not re.fullmatch(r"[0-9a-f]{4,64}", key):
        raise TargetError(f"KEY {key!r} is not 4 to 64 hexadecimal digits")
    found = [entry for digest, entry in _database().listed().entries if digest.startswith(key)]
    if len(found) != 1:
        raise TargetError(f"{len(found)} tuned schedules have a key that begins with {key}")
    typer.echo(msgspec.json.format(msgspec.json.encode(found[0], order="sorted"), indent=2).decode())


def prune_command(
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", help="Also what was measured before.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also what other versions of torch, triton or this left.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Remove damaged files, and what the options name."""
    if older_than is not None and not 0 <= older_than <= 1e6:
        raise TargetError(f"--older-than {older_than:g} is not a number of days")
    age = None if older_than is None else timedelta(days=older_than)
    gone = _database().prune(datetime.now(UTC), age, stale=stale, everything=everything)
    typer.echo(f"{len(gone)} files removed.")


def export_command(file: FileArgument, debug: DebugOption = False) -> None:
    """Write every entry into one FILE, for 'import' elsewhere."""
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        raise TargetError(f"{file!r} is not a file in a folder that is there")
    from fusioncc.runtime.files import write_whole
    from fusioncc.tuning.exchange import exported

    entries = [entry for _, entry in _database().listed().entries]
    write_whole(path, exported(entries).decode())
    typer.echo(f"{len(entries)} tuned schedules in {path}.")


def import_command(file: FileArgument, debug: DebugOption = False) -> None:
    """Take the entries of FILE that are whole; what is there stays."""
    from fusioncc.tuning.exchange import MAX_TABLE_BYTES, imported

    path = Path(file)
    if not path.is_file():
        raise TargetError(f"{file}: no such file")
    with path.open("rb") as opened:
        done = imported(_database(), opened.read(MAX_TABLE_BYTES + 1))
    reasons = ", ".join(f"{count} {rule}" for rule, count in done.refused.items())
    refused = f"{sum(done.refused.values())} refused{f' ({reasons})' if reasons else ''}"
    typer.echo(f"{done.taken} taken, {done.there} already there, {refused}.")


def _database() -> "Database":
    """The import is made here: help and other commands answer without it."""
    from fusioncc.tuning.database import database

    return database()


def _table(listing: "Listing") -> Table:
    from fusioncc.in_words import describe_group
    from fusioncc.tuning.key import Versions

    table = Table("key", "group", "card", "schedule", "us", "library us", "effort", "date", "versions")
    for digest, entry in listing.entries:
        card, now = entry.key.card, entry.key.versions == Versions.now()
        times = (f"{time.us:.4g} ± {time.spread_us:.2g}" for time in (entry.time, entry.library))
        cells: tuple[Any, ...] = (
            digest[:SHORT],
            describe_group(entry.key.group),
            card.name or card.profile,
            entry.schedule.kind,
        )
        table.add_row(*cells, *times, entry.effort, f"{entry.date:%Y-%m-%d}", "as now" if now else "others")
    return table


def _printable(name: str) -> str:
    """A file's name, which may be anything, on one line."""
    return name if name.isprintable() else ascii(name)
