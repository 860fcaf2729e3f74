"""Reads a histogram of shapes: JSON ``{"256": 8, "1536": 1}``, or CSV with a line ``rows,count`` for each shape.

Rows and counts are numbers above zero, a count may be a rate. A CSV file may begin with the header ``rows,count``.
"""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fusioncc.cost_models.shapes import Histogram
from fusioncc.errors import ShapesError

Pair = tuple[str, Any]
HEADER = ["rows", "count"]


def read_histogram(path: Path) -> Histogram:
    """The histogram in a ``.json`` or ``.csv`` file.

    Raises:
        ShapesError: not such a file, or a figure in it is not what it must be; the message names file and field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ShapesError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
    readers = {".json": _json_pairs, ".csv": _csv_pairs}
    if path.suffix.lower() not in readers:
        raise ShapesError(f"{path} is neither .json nor .csv")
    try:
        return _histogram(readers[path.suffix.lower()](text))
    except ShapesError as error:
        raise ShapesError(f"{path}: {error}") from error


def _histogram(pairs: Iterable[Pair]) -> Histogram:
    counts: dict[int, float] = {}
    for rows, count in pairs:
        try:
            number = int(rows)
        except ValueError:
            raise ShapesError(f"rows {rows!r} of the histogram is not a whole number") from None
        if number in counts:
            raise ShapesError(f"rows {number} of the histogram is given twice")
        counts[number] = count
    return Histogram.of(counts)


def _json_pairs(text: str) -> list[Pair]:
    try:
        read = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise ShapesError(f"not JSON: {error}") from error
    if not isinstance(read, _Pairs):
        raise ShapesError('not a JSON object of rows and counts, such as {"256": 8, "1536": 1}')
    return read


class _Pairs(list[Pair]):
    """A JSON object with all its members, also those given twice."""


def _csv_pairs(text: str) -> list[Pair]:
    try:
        lines = [[field.strip() for field in line] for line in csv.reader(text.splitlines())]
    except csv.Error as error:
        raise ShapesError(f"not CSV: {error}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not any(line) or (number == 1 and line == HEADER):
            continue
        if len(line) != len(HEADER):
            raise ShapesError(f"line {number} is not of the form rows,count: {','.join(line)!r}")
        rows, count = line
        try:
            pairs.append((rows, float(count)))
        except ValueError:
            raise ShapesError(f"line {number}: count {count!r} is not a number") from None
    return pairs
