"""``fusioncc shapes``: one kernel for any number of rows, for each bucket or for each shape, by a histogram."""

import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fusioncc.autotune.layer_times import Layer, layer_us
from fusioncc.cost_models.break_even import (
    Crossover,
    PerStrategy,
    Range,
    cheapest,
    crossovers,
    ranges,
    strategies,
)
from fusioncc.cost_models.shapes import LEAST, MOST, MOST_ROWS, CallTime, Histogram, Strategy
from fusioncc.device import get_device
from fusioncc.errors import OptionError
from fusioncc.group import EMITTED_DTYPES
from fusioncc.histogram import read_histogram

KERNEL_MS = "1000"
"""Assumed time to prepare one kernel: about what Triton takes to compile one."""
FEW = 4
"""Strategies of which every pair has a line."""


def shapes_command(
    histogram: Annotated[Path, typer.Option(metavar="FILE", help="Rows and counts, .json or .csv.")],
    k: Annotated[int | None, typer.Option(min=1, max=MOST_ROWS, help="K of the layer: columns of X.")] = None,
    n: Annotated[
        list[int] | None, typer.Option(min=1, max=MOST_ROWS, help="N of the layer; again for each product of X.")
    ] = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the low-rank branch; 0: none.")] = 0,
    dtype: Annotated[str, typer.Option(help="Of X, weights and output: bf16, fp16 or fp32.")] = "bf16",
    device: Annotated[
        str, typer.Option(help="Card to predict for: 'fusioncc devices' lists them; or my.json.")
    ] = "h200",
    row_us: Annotated[
        str | None, typer.Option(metavar="G,B,S", help="In place of a layer: us a row, of each strategy or of all.")
    ] = None,
    prepare_ms: Annotated[
        str, typer.Option(metavar="G,B,S", help="ms to prepare one kernel, of each strategy or of all.")
    ] = KERNEL_MS,
    buckets: Annotated[int | None, typer.Option(min=1, help="Number of buckets; their edges are found.")] = None,
    edges: Annotated[str | None, typer.Option(metavar="ROWS,ROWS", help="Upper edges of buckets to compare.")] = None,
    calls: Annotated[float | None, typer.Option(help="Calls to expect: says what is cheapest for them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON, for programs.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Say whether one generic kernel, buckets or a kernel for each shape is cheapest, preparation counted."""
    if calls is not None and not LEAST <= calls <= MOST:
        raise OptionError(f"--calls {calls:g} is not a number above zero, up to {MOST:g}")
    if buckets is not None and edges is not None:
        raise OptionError("--buckets finds edges and --edges gives them; use one of the two")
    ends = _edges(edges) if edges is not None else ()
    kernel_ms = _per_strategy("--prepare-ms", prepare_ms)
    read = read_histogram(histogram)
    if row_us is None:
        call_us = layer_us(_layer(k, n, rank, dtype), read, get_device(device))
    elif k is None and not n:
        call_us = _linear_us(_per_strategy("--row-us", row_us))
    else:
        raise OptionError("--row-us stands in place of a layer; leave out --k and --n, or --row-us")
    compared = strategies(read, call_us, kernel_ms, buckets, ends)
    sets = None if calls is None else Fraction(calls) / Fraction(read.calls)
    if as_json:
        typer.echo(json.dumps(_data(read, compared, sets), indent=2))
    else:
        _print(read, compared, sets)


def _layer(k: int | None, n: list[int] | None, rank: int, dtype: str) -> Layer:
    if k is None or not n:
        raise OptionError("running times are missing: give --k and --n of a layer, or --row-us")
    if dtype not in EMITTED_DTYPES:
        raise OptionError(f"--dtype {dtype!r} is not valid; valid values: {', '.join(EMITTED_DTYPES)}")
    if rank >= min(k, *n):
        raise OptionError(f"--rank {rank} is not smaller than --k and every --n")
    return Layer(k, tuple(n), rank, dtype)


def _linear_us(row_us: PerStrategy[float]) -> PerStrategy[CallTime]:
    if min(row_us.generic, row_us.bucketed, row_us.specialised) < LEAST:
        raise OptionError("--row-us must be above zero")

    def of(us: float) -> CallTime:
        return lambda rows: us * rows

    return PerStrategy(of(row_us.generic), of(row_us.bucketed), of(row_us.specialised))


def _per_strategy(option: str, text: str) -> PerStrategy[float]:
    """Three numbers, or one for all three."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3) or not all(0 <= number <= MOST for number in numbers):
        raise OptionError(f"{option} {text!r} is neither one number nor three (generic, bucketed, specialised)")
    return PerStrategy(numbers[0], numbers[len(numbers) // 2], numbers[-1])


def _edges(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--edges {text!r} is not a list of whole numbers, such as 512,2048") from None


def _data(histogram: Histogram, compared: tuple[Strategy, ...], sets: Fraction | None) -> dict[str, Any]:
    """What ``--json`` prints. Times in ms, crossovers in sets and in calls."""
    calls = Fraction(histogram.calls)
    spans = {each.strategy.name: [_number(each.start), _number(each.end)] for each in ranges(compared)}
    return {
        "histogram": dict(histogram.shapes),
        "strategies": [asdict(each) | {"cheapest_for_sets": spans.get(each.name)} for each in compared],
        "crossovers": [
            asdict(each) | {"sets": _number(each.sets), "calls": _number(each.sets and each.sets * calls)}
            for each in crossovers(compared)
        ],
        "expected": sets
        and {
            "calls": float(sets * calls),
            "sets": float(sets),
            "cheapest": cheapest(compared, sets).name,
            "total_ms": {each.name: float(each.total_ms(sets)) for each in compared},
        },
    }


def _number(exact: Fraction | None) -> float | None:
    return None if exact is None else float(exact)


def _print(histogram: Histogram, compared: tuple[Strategy, ...], sets: Fraction | None) -> None:
    console = Console(width=max(Console().width, 100), highlight=False)
    count = len(histogram.shapes)
    calls, rows = _short(histogram.calls), _short(histogram.total_rows)
    console.print(f"{count} shape{'s' * (count != 1)}; a set is {calls} calls, {rows} rows in all.")
    spans = {each.strategy.name: _span(each) for each in ranges(compared)}
    table = Table("strategy", "kernels", "rows run", "padding", "preparation ms", "a set, ms", "cheapest")
    for each in compared:
        padding = each.rows / histogram.total_rows - 1
        figures = (str(each.kernels), _short(each.rows), f"{padding:+.0%}" if each.edges else "none")
        costs = (_short(each.preparation_ms), _short(each.running_ms))
        table.add_row(each.name, *figures, *costs, spans.get(each.name, "never"))
    console.print(table)
    lines = [
        f"{each.name} {'end' if each.kernels > 1 else 'ends'} at {', '.join(map(str, each.edges))} rows."
        for each in compared
        if each.edges
    ]
    if len(compared) <= FEW:
        lines += [_meeting_line(each, histogram.calls) for each in crossovers(compared)]
    else:
        lines.append("Of so many strategies, --json has where every two cross.")
    if sets is not None:
        totals = sorted((each.total_ms(sets), each.name) for each in compared)
        costs_of = ", ".join(f"{name} {_short(total)} ms" for total, name in totals)
        expected = f"{_short(sets * Fraction(histogram.calls))} calls ({_short(sets)} sets)"
        lines.append(f"For {expected} the cheapest is {cheapest(compared, sets).name}: {costs_of}.")
    for line in lines:
        console.print(line, soft_wrap=True)


def _span(found: Range) -> str:
    if found.end is None:
        return f"from {_short(found.start)} sets on" if found.start else "always"
    return f"{_short(found.start)} to {_short(found.end)} sets" if found.start else f"up to {_short(found.end)} sets"


def _meeting_line(found: Crossover, calls: float) -> str:
    if found.sets is not None:
        at = f"{_short(found.sets)} sets ({_short(found.sets * Fraction(calls))} calls)"
        return f"{found.before}: cheaper than {found.after} up to {at}."
    if not found.before:
        return f"{found.first} and {found.second}: the same costs."
    other = found.second if found.before == found.first else found.first
    return f"{found.before}: always cheaper than {other}."


def _short(exact: float | Fraction) -> str:
    """Three digits, or all of those before the point."""
    number = float(exact)
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
