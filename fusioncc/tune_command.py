"""``fusioncc tune``: measure schedules for the groups of a model on this machine's card, and keep the best."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fusioncc.errors import TargetError
from fusioncc.in_words import describe_group
from fusioncc.settings import (
    DebugOption,
    NumericsOption,
    ScheduleOption,
    SetOption,
    TargetArgument,
    TrustOption,
    settings_of,
)
from fusioncc.tune_others import other_cards, tuning_beside

if TYPE_CHECKING:
    from fusioncc.passes.plan_groups import Setting
    from fusioncc.tuning.entry import Entry
    from fusioncc.tuning.key import Key
    from fusioncc.tuning.outcome import Observer

INSTEAD = {
    "autotune": "--effort says how widely is searched",
    "autotune_seconds": "--seconds says for how long",
    "deterministic": "it would measure nothing",
}
"""Options that a command line must not set here, and what stands for them."""


def tune_command(
    target: TargetArgument,
    effort: Annotated[str, typer.Option(help="quick: 8 schedules a group; full: then their neighbours.")] = "quick",
    seconds: Annotated[
        float | None, typer.Option(help="Time for all groups; else 60 s for each, or 300 s in full.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="all", help="Measure on all cards of this machine; else on one.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Profile of this machine's card; else the one it has.")] = None,
    log: Annotated[str | None, typer.Option(metavar="FILE", help="Write all that is measured, tune.csv.")] = None,
    schedule: ScheduleOption = None,
    numerics: NumericsOption = None,
    settings: SetOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure schedules for the groups of TARGET on this machine's cards, and keep the best for later plans."""
    from fusioncc.tuning.efforts import MEASURING

    if effort not in MEASURING:
        raise TargetError(f"--effort {effort!r} is not valid; valid values: {', '.join(MEASURING)}")
    path = _log_path(log)
    given = settings_of(schedule, numerics, settings)
    for name, instead in INSTEAD.items():
        if name in given:
            raise TargetError(f"--set {name} has no place in tune: {instead}")
    if gpus not in (None, "all"):
        raise TargetError(f"--gpus {gpus!r} is not valid; valid values: all")
    given |= {"autotune": effort, "autotune_seconds": seconds}
    setting = setting_here(given, device)
    from fusioncc.targets import load
    from fusioncc.tuning.progress import CsvLog

    loaded = load(target, trust)

    def arguments(index: str) -> list[str]:
        """What a process for another card is told; its log is a file of its own."""
        numbered = None if path is None else path.with_name(f"{path.stem}.{index}{path.suffix}")
        named = {"effort": effort, "seconds": seconds, "device": device, "log": numbered}
        named |= {"schedule": schedule, "numerics": numerics}
        options = [(f"--{name}", str(value)) for name, value in named.items() if value is not None]
        options += [("--set", each) for each in settings or []]
        return [target, *(part for option in options for part in option), *(["--trust"] if trust else [])]

    with (
        CsvLog(path) if path is not None else nullcontext() as written,
        tuning_beside(other_cards() if gpus else {}, arguments) as others,
    ):
        observers = () if written is None else (written,)
        known, failed = tune_model(loaded.model, loaded.args, loaded.kwargs, setting, observers, others)
    for why in failed:
        typer.echo(why, err=True)
    Console(width=max(Console().width, 120), markup=False).print(_table(known))
    for each in known:
        if each.entry is None:
            typer.echo(f"{', '.join(each.groups)}: {each.why}; the cost models choose")


def setting_here(options: dict[str, Any], device: str | None) -> "Setting":
    """What is planned and measured here, for the card that torch uses.

    Raises:
        TargetError: there is none that runs emitted kernels.
        OptionError: an option has no such value, or there is no such profile.
    """
    from fusioncc.config import Options, interpreter_requested

    chosen = Options.of(options, **({"device": device} if device else {}))
    import torch

    from fusioncc.decision import Rejected
    from fusioncc.passes.plan_groups import Setting
    from fusioncc.passes.tune_groups import card_tuning
    from fusioncc.runtime.executor import profile, runnable

    if not torch.cuda.is_available():
        raise TargetError("tune measures on the CUDA card of this machine, and torch finds none")
    if interpreter_requested():
        raise TargetError("tune times compiled kernels; unset TRITON_INTERPRET")
    card = torch.device("cuda", torch.cuda.current_device())
    decision = runnable(card)
    if isinstance(decision, Rejected):
        raise TargetError(f"tune cannot measure this card: {decision.reason}")
    name = torch.cuda.get_device_name(card)
    return Setting(chosen, profile(card, chosen.device), decision, card=name, tuning=card_tuning())


@dataclass(frozen=True)
class Known:
    """Groups of one key, the entry for it now, and why there is none."""

    groups: tuple[str, ...]
    key: "Key"
    entry: "Entry | None"
    why: str


def tune_model(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setting: "Setting",
    observers: "tuple[Observer, ...]" = (),
    others: Callable[[], list[str]] = list,
) -> tuple[list[Known], list[str]]:
    """Tune the groups of a model with ``setting.tuning``, and wait for ``others`` who do: what is known of each group
    then, and what the others say.

    Raises:
        CaptureError: the model cannot be captured.
    """
    from fusioncc.capture import capture
    from fusioncc.passes.tune_groups import keys_of
    from fusioncc.pipeline import draft
    from fusioncc.tuning.database import database
    from fusioncc.tuning.outcome import Observer, Outcome

    class Reasons(Observer):
        """Why each search ended as it did, by digest."""

        def __init__(self) -> None:
            self.of: dict[str, str] = {}

        def done(self, outcome: Outcome) -> None:
            self.of[outcome.key.digest()] = outcome.why

    reasons = Reasons()
    if setting.tuning is not None:
        tuning = replace(setting.tuning, observers=(*setting.tuning.observers, *observers, reasons))
        setting = replace(setting, tuning=tuning)
    groups = draft(capture(model, args, kwargs).graph, setting).plan.groups
    said = others()
    named: dict[Key, list[str]] = {}
    for group in groups:
        for key in keys_of((group,), setting):
            named.setdefault(key, []).append(group.name)
    kept = database()

    def why(key: "Key") -> str:
        return reasons.of.get(key.digest(), "it was not searched")

    return [Known(tuple(names), key, kept.find(key, setting.device), why(key)) for key, names in named.items()], said


def _log_path(log: str | None) -> Path | None:
    if log is None:
        return None
    path = Path(log)
    if not log.strip() or path.is_dir() or not path.parent.is_dir():
        raise TargetError(f"--log {log!r} is not a file in a folder that is there")
    return path


def _table(known: list[Known]) -> Table:
    table = Table("groups", "products", "schedule", "us", "library us", "effort")
    for each in known:
        if each.entry is not None:
            times = (f"{time.us:.4g} ± {time.spread_us:.2g}" for time in (each.entry.time, each.entry.library))
            what = (", ".join(each.groups), describe_group(each.key.group), each.entry.schedule.kind)
            table.add_row(*what, *times, each.entry.effort)
    return table
