"""Tune groups: measure schedules of the planned groups that the database has none for, on the card they will run on."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

from fusioncc.decision import Rejected
from fusioncc.device import Device
from fusioncc.errors import FusionError
from fusioncc.group import Group
from fusioncc.passes.plan_groups import Setting, as_run
from fusioncc.passes.tuned_choice import key_for
from fusioncc.plan import GroupPlan
from fusioncc.runtime.torch_ranks import is_first_rank, torch_ranks
from fusioncc.schedule import Schedule
from fusioncc.seam import one_line, translated, warn
from fusioncc.tuning.candidates import measured_kinds
from fusioncc.tuning.database import database
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.key import Card, Key, key_of
from fusioncc.tuning.measuring import Job, Meter, Race
from fusioncc.tuning.outcome import Observer
from fusioncc.tuning.tune import Means, tuner


@dataclass(frozen=True)
class Tuning:
    """Who measures on a card (made when there is something to measure), and who is told of it."""

    meters: Callable[[Device], Meter]
    observers: tuple[Observer, ...] = ()


def card_tuning(*observers: Observer) -> Tuning:
    """Tuning on the current card, shown on a terminal."""
    from rich.console import Console

    from fusioncc.tuning.meter import CardMeter
    from fusioncc.tuning.progress import observer_for

    return Tuning(CardMeter, (observer_for(Console(stderr=True), is_first_rank()), *observers))


@dataclass(frozen=True)
class Lent:
    """A meter that somebody else closes."""

    meter: Meter

    def begin(self) -> None:
        self.meter.begin()

    def prepare(self, job: Job, schedules: tuple[Schedule, ...]) -> None:
        self.meter.prepare(job, schedules)

    def race(self, job: Job, schedules: tuple[Schedule, ...], seconds: float) -> Race:
        return self.meter.race(job, schedules, seconds)

    def close(self) -> None:
        pass


@contextmanager
def one_meter(setting: Setting, found: Collection[Group]) -> Iterator[Setting]:
    """The setting in which everything that is tuned inside has one meter, so that its processes start once; and now,
    where nothing was ever measured and something of what was ``found`` can be."""
    tuning, made = setting.tuning, list[Meter]()
    if tuning is None:
        yield setting
        return

    def lent(device: Device) -> Meter:
        if not made:
            made.append(tuning.meters(device))
        return Lent(made[0])

    try:
        if database().is_empty() and torch_ranks() is None and _measurable(found, setting):
            with suppress(FusionError):  # tuning will say so
                translated("no meter starts", lambda: lent(setting.device).begin(), FusionError)
        yield replace(setting, tuning=replace(tuning, meters=lent))
    finally:
        for meter in made:
            meter.close()


def _measurable(groups: Collection[Group], setting: Setting) -> bool:
    """Whether any of the groups has schedules that are measured under these options."""
    runs = (as_run(group, setting.options) for group in groups)
    return any(measured_kinds(key_of(group, setting.options, setting.device, setting.card)) for group in runs)


def tunes(setting: Setting) -> bool:
    """Whether groups are to be measured, and can be."""
    return setting.options.autotune != "none" and not why_untuned(setting)


def why_untuned(setting: Setting) -> str:
    """Why nothing is measured, whatever the effort; empty where something could be."""
    if setting.given is not None:
        return "a plan was given, which holds the schedules"
    if setting.options.deterministic:
        return "deterministic=True leaves the choice to the cost models"
    if setting.measured is None:
        return "the ranks have parted"
    if isinstance(setting.runnable, Rejected):
        return setting.runnable.reason
    return "" if setting.tuning is not None else "there is no card to measure on"


def deadline_of(setting: Setting) -> float | None:
    """Until when the groups of a graph are tuned that is begun now, of the monotonic clock; None: no time was named."""
    seconds = setting.options.autotune_seconds
    return None if seconds is None else monotonic() + seconds


def tune_groups(groups: tuple[GroupPlan, ...], setting: Setting, deadline: float | None = None) -> tuple[Setting, bool]:
    """The setting with what is measured of these groups until ``deadline``, and whether anything was searched, here or
    by another rank.

    Under ``torch.distributed`` every rank has to come here for each of its graphs, and all plan by the same entries. A
    rank that does not leaves the others with the choice of the models.
    """
    try:
        return translated("tuning failed", lambda: _tuned(groups, setting, deadline), FusionError)
    except FusionError as error:
        if setting.options.on_error == "raise":
            raise
        warn(f"{one_line(error)}; the cost models choose")
        return replace(setting, measured=None), False


def keys_of(groups: tuple[GroupPlan, ...], setting: Setting) -> list[Key]:
    """The keys of those groups for which a schedule can be measured; equal groups have equal keys."""
    keys = (key_for(as_run(each.group, setting.options), each.candidates, setting) for each in groups)
    return [key for key in keys if key is not None]


def _tuned(groups: tuple[GroupPlan, ...], setting: Setting, deadline: float | None) -> tuple[Setting, bool]:
    tuning, options = setting.tuning, setting.options
    assert tuning is not None
    means = Means(
        setting.device,
        Card.of(setting.device, setting.card),
        lambda: tuning.meters(setting.device),
        EFFORTS[options.autotune],
        None if deadline is None else max(0.0, deadline - monotonic()),
        tuning.observers,
    )
    tuned = tuner().tune(keys_of(groups, setting), means, torch_ranks())
    if tuned.failure is not None:
        if options.on_error == "raise":
            raise tuned.failure
        warn(f"{one_line(tuned.failure)}; the cost models choose where nothing was measured")
    return replace(setting, measured={**(setting.measured or {}), **tuned.entries}), tuned.searched
