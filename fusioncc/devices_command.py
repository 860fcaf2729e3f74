"""``fusioncc devices`` and ``fusioncc calibrate``: profiles with the source of every figure, and one of this card."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fusioncc.device import FIGURES, PROFILES, Device, get_device
from fusioncc.errors import TargetError
from fusioncc.profile_file import to_json

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def devices_command(
    name: Annotated[str | None, typer.Argument(help="A profile: its name, or my.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; that of one profile, --device reads.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the device profiles; with NAME, every figure of one with its unit and source."""
    chosen = [get_device(name)] if name else [device for _, device in sorted(PROFILES.items())]
    if as_json:
        text = [to_json(device).strip() for device in chosen]
        typer.echo(text[0] if name else f"[{', '.join(text)}]")
        return
    show(figures_of(*chosen) if name else profiles(chosen))
    if not name:
        typer.echo("'fusioncc devices NAME' says where every figure comes from.")


def calibrate_command(
    out: Annotated[str, typer.Option(metavar="FILE", help="Profile to write, my.json; --device reads it.")],
    debug: DebugOption = False,
) -> None:
    """Measure this machine's card, in under 90 seconds, and write its device profile."""
    path = Path(out)
    if path.suffix.lower() != ".json" or path.is_dir() or not path.parent.is_dir():
        raise TargetError(f"--out {out!r} is not a file x.json in a folder that is there")
    from fusioncc.runtime.calibrate import calibrate

    device = calibrate(path.stem)
    path.write_text(to_json(device), encoding="utf-8", newline="\n")
    show(figures_of(device))


def show(table: Table) -> None:
    """A table, wide enough to be read; brackets in it are no markup."""
    Console(width=max(Console().width, 100), markup=False).print(table)


def profiles(devices: list[Device]) -> Table:
    table = Table("name", "capability", "SMs", "DRAM GB/s", "L2 MiB", "bf16 TFLOP/s")
    for device in devices:
        figures = (device.capability / 10, device.multiprocessors, device.dram_gbps, device.l2_bytes / (1 << 20))
        table.add_row(device.name, *(f"{figure:g}" for figure in (*figures, device.bf16_tflops)))
    return table


def figures_of(device: Device) -> Table:
    table = Table("figure", "value", "unit", "source", title=device.name, title_justify="left")
    for name, (_, figure) in FIGURES.items():
        value = getattr(device, name)
        rows = [(f"{name} {tile}", rate) for tile, rate in value] if isinstance(value, tuple) else [(name, value)]
        for label, number in rows:
            table.add_row(label, f"{number:.10g}", figure.unit, device.sources.get(name, ""))
    return table
