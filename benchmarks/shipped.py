"""Measure the table of schedules that ships with fusioncc, for the card of this machine.

    python benchmarks/shipped.py --out fusioncc/tuned/h200.json --seconds 900

The table is written after each group. Groups that are in it already are skipped, so a run can be cut off and gone on
with. A search that had no time to end is made again with twice the time, ``TRIES`` times at most; what the last one
found is kept. What is searched, and in which order, is in ``projections.py``.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from projections import ADAPTERS, Case, cases, group

from fusioncc.config import Options
from fusioncc.device import Device, get_device
from fusioncc.runtime.executor import profile
from fusioncc.runtime.files import write_whole
from fusioncc.tuning import Entry, Key, key_of
from fusioncc.tuning.efforts import EFFORTS
from fusioncc.tuning.exchange import MAX_TABLE_BYTES, entries_of, exported
from fusioncc.tuning.form import from_bytes
from fusioncc.tuning.measuring import Meter
from fusioncc.tuning.meter import CardMeter
from fusioncc.tuning.outcome import Outcome
from fusioncc.tuning.place import place_of
from fusioncc.tuning.search import search

TRIES = 3
"""Searches of one group; what one has compiled the next finds in Triton's cache."""
Clock = Callable[[], float]


def key(case: Case, device: Device, card: str) -> Key:
    """The key of a group under the default options."""
    return key_of(group(case), Options(), device, card)


def read(path: Path) -> list[Entry]:
    """The entries of a table; of one that is not there none."""
    if not path.exists():
        return []
    return [from_bytes(bytes(raw)) for raw in entries_of(path.read_bytes()[: MAX_TABLE_BYTES + 1])]


def missing(wanted: list[Case], entries: list[Entry], device: Device, card: str) -> list[tuple[Case, Key]]:
    """The groups that no entry of this card serves, in order, each with its key."""
    known = {place_of(each.key) for each in entries if each.key.card.name == card}
    keys = [(case, key(case, device, card)) for case in wanted]
    return [(case, of) for case, of in keys if place_of(of) not in known]


def measure(
    wanted: list[tuple[Case, Key]],
    entries: list[Entry],
    device: Device,
    meter: Meter,
    path: Path,
    seconds: float,
    clock: Clock = time.monotonic,
) -> list[Entry]:
    """Search for each group in turn, and write the table after each, until the time is over. A search that this has cut
    short is not kept; the next run makes it again, as it does where nothing was found out."""
    deadline, nothing = clock() + seconds, 0
    for case, of in wanted:
        if clock() >= deadline:
            break
        outcome, late = searched(of, device, meter, deadline, clock)
        if outcome.entry is not None and not late:
            entries = [*entries, outcome.entry]
            write_whole(path, exported(entries).decode())
        nothing += outcome.entry is None
        said = outcome.entry.schedule.kind if outcome.entry is not None else outcome.why
        said += ", cut short by the end of this run" if late else ", of what there was time for" if outcome.cut else ""
        print(f"{label(case)}: {said}, {outcome.seconds:.1f} s, {dict(outcome.failures)}", flush=True)
    if nothing:
        print(f"Searches that found nothing out: {nothing}; the next run makes them again, first of all.")
    return entries


def searched(of: Key, device: Device, meter: Meter, deadline: float, clock: Clock) -> tuple[Outcome, bool]:
    """What comes of a group, with more time where a search had too little; and whether the deadline cut it short."""
    effort = EFFORTS["quick"]
    for at in range(TRIES):
        seconds, left = effort.seconds * 2**at, deadline - clock()
        outcome = search(of, device, meter, effort, min(seconds, left), clock=clock)
        if not outcome.cut or left < seconds:
            break
    return outcome, outcome.cut and left < seconds


def label(case: Case) -> str:
    """A group in a line of the output."""
    adapters = f"r={case.rank} {case.adapters}" if case.rank else "no adapters"
    return f"{case.model} {case.site}, M={case.m}, {adapters}{', ended' if case.ended else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=900.0, help="for everything")
    parser.add_argument("--adapters", default=",".join(ADAPTERS), help="dtypes of adapters, bf16 first")
    parser.add_argument("--dry-run", action="store_true", help="list what is missing for an H200, and measure nothing")
    arguments = parser.parse_args()
    path, adapters = Path(arguments.out), tuple(arguments.adapters.split(","))
    entries = read(path)
    device = get_device("h200") if arguments.dry_run else profile(torch.device("cuda"), None)
    card = "NVIDIA H200" if arguments.dry_run else torch.cuda.get_device_name()
    wanted = missing(cases(adapters), entries, device, card)
    if arguments.dry_run:
        print("\n".join(label(case) for case, _ in wanted))
    else:
        meter = CardMeter(device)
        try:
            entries = measure(wanted, entries, device, meter, path, arguments.seconds)
        finally:
            meter.close()
    print(f"{len(wanted)} groups were missing; the table has {len(entries)} entries.")


if __name__ == "__main__":
    main()
