"""The ``fusioncc`` command. A user's mistake is one line on stderr and exit code 2; ``--debug`` shows the traceback."""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

import fusioncc
from fusioncc.cache_command import cache_app
from fusioncc.device import Device, get_device
from fusioncc.devices_command import calibrate_command, devices_command
from fusioncc.errors import FusionError, TargetError
from fusioncc.report import render, summary
from fusioncc.settings import (
    DebugOption,
    DeviceOption,
    NumericsOption,
    ScheduleOption,
    SetOption,
    TargetArgument,
    TrustOption,
    settings_of,
)
from fusioncc.shapes_command import shapes_command
from fusioncc.tune_command import tune_command

if TYPE_CHECKING:
    from fusioncc.api import Planned

UsageError: Any = typer.BadParameter.__base__
"""What the parser raises for a wrong command line; typer names only the subclass, and newer ones do not use click."""


class OneLineGroup(typer.core.TyperGroup):
    """The commands; a wrong command line is one line as well. Without arguments the help is shown, as typer does it."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        if not args:
            return super().make_context(info_name, args, *rest, **more)
        with one_line_usage():
            return super().make_context(info_name, args, *rest, **more)

    def invoke(self, ctx: Any) -> Any:
        with one_line_usage():
            return super().invoke(ctx)


app = typer.Typer(
    cls=OneLineGroup,
    help="Find GEMMs that share an input, decide how to fuse them, and say why. Needs no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("plan")
def plan_command(
    target: TargetArgument,
    device: DeviceOption = "h200",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, for programs.")] = False,
    schedule: ScheduleOption = None,
    numerics: NumericsOption = None,
    settings: SetOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the decisions for TARGET: groups, schedules, estimates, and what was rejected and why."""
    with one_line_errors(debug):
        card = get_device(device)
        planned = plan_target(target, card, settings_of(schedule, numerics, settings), trust, debug)
        text = planned.plan.to_json() if as_json else render(planned.plan)
        typer.echo(text, nl=False)
        if not as_json:
            say(f"captured in {planned.capture_s:.2f} s, planned in {planned.planning_s:.2f} s")


@app.command("dump")
def dump_command(
    target: TargetArgument,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder to write into; made when it is missing.")],
    device: DeviceOption = "h200",
    schedule: ScheduleOption = None,
    numerics: NumericsOption = None,
    settings: SetOption = None,
    plots: Annotated[bool, typer.Option("--plots", help="Also draw each group; needs fusioncc[plots].")] = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Write graphs, plan, decisions and the emitted kernels of TARGET into a folder."""
    with one_line_errors(debug):
        if not out.strip():
            raise TargetError("--out is empty; give the folder to write into ('.' for this one)")
        from fusioncc.dump import write

        if plots:
            from fusioncc.plots import require_matplotlib

            require_matplotlib()
        card = get_device(device)
        planned = plan_target(target, card, settings_of(schedule, numerics, settings), trust, debug)
        for path in write(planned, Path(out), plots=plots):
            typer.echo(path)
        typer.echo(summary(planned.plan))


@app.command("traffic")
def traffic_command(
    target: TargetArgument,
    device: DeviceOption = "h200",
    schedule: ScheduleOption = None,
    numerics: NumericsOption = None,
    settings: SetOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Print what TARGET moves through memory and L2 in closed form, in M, N, K and r, and where schedules cross."""
    with one_line_errors(debug):
        card = get_device(device)
        planned = plan_target(target, card, settings_of(schedule, numerics, settings), trust, debug)
        from fusioncc.traffic_report import traffic_report

        typer.echo(traffic_report(planned.plan, card), nl=False)


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda given: print_version(given), help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


def print_version(given: bool) -> None:
    if given:
        typer.echo(f"fusioncc {fusioncc.__version__}")
        raise typer.Exit


def plan_target(target: str, device: Device, settings: dict[str, Any], trust: bool, debug: bool) -> "Planned":
    """Load TARGET and plan it. torch is imported here, so that help and errors in options answer at once."""
    from fusioncc.targets import load

    loaded = load(target, trust)
    from fusioncc.api import dump_data

    with quiet_failure(debug):
        return dump_data(loaded.model, loaded.args, device, loaded.kwargs, **settings)


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Errors that a user can mend become one line on stderr and exit code 2, unless ``debug`` is set."""
    try:
        yield
    except (FusionError, OSError) as error:
        if debug:
            raise
        say(str(error))
        raise typer.Exit(2) from error


def one_line(command: Callable[..., None]) -> Callable[..., None]:
    """A command of another file, its errors in one line unless its option ``debug`` is set."""

    @wraps(command)
    def run(debug: bool, **options: Any) -> None:
        with one_line_errors(debug):
            command(debug=debug, **options)

    return run


@contextmanager
def one_line_usage() -> Iterator[None]:
    """A command line that the parser refuses becomes one line on stderr and exit code 2."""
    try:
        yield
    except UsageError as error:
        say(f"{error.format_message().rstrip('.')} (--help shows what is valid)")
        raise typer.Exit(2) from error


@contextmanager
def quiet_failure(debug: bool) -> Iterator[None]:
    """What is written to stderr inside is kept for the end, and dropped when one of our errors says what failed.

    torch prints half a graph before it raises; a model's own messages come through when all is well, or on ``debug``.
    """
    if debug:
        yield
        return
    written, failed = io.StringIO(), False
    try:
        with redirect_stderr(written):
            yield
    except FusionError:
        failed = True
        raise
    finally:
        if not failed:
            sys.stderr.write(written.getvalue())


def say(message: str) -> None:
    """One line on stderr."""
    typer.echo(f"fusioncc: {' '.join(message.split())}", err=True)


def report_bug(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """Anything else is our bug: one line and exit code 1."""
    first_line = next(iter(str(error).splitlines()), "")
    print(f"fusioncc: internal error, {kind.__name__}: {first_line} (--debug shows where)", file=sys.stderr)


for command in (devices_command, calibrate_command, shapes_command, tune_command):
    app.command(command.__name__.removesuffix("_command"))(one_line(command))
app.add_typer(cache_app(one_line), name="cache")


def main() -> None:
    """Entry point of the command."""
    if "--debug" not in sys.argv:
        sys.excepthook = report_bug
        logging.disable()  # torch logs tracebacks of errors that are reported here in one line
        warnings.simplefilter("ignore", FutureWarning)  # of the libraries that models are made with
    typer.main.get_command(app)()  # app() itself would replace the hook
