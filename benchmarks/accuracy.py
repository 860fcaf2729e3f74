"""How well the cost model predicts what cost_model.py measured. Needs its result file, and no card.

    python benchmarks/accuracy.py benchmarks/results/cost_model.json

Of each part of the data: the rank correlation of predicted and measured times within a group, the regret (measured time
of the model's choice over the best measured) and the relative error of a prediction.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layers import FAMILIES, Layer

from fusioncc.packing import PACKED
from fusioncc.schedule import SCHEDULES

Row = dict[str, Any]
LEAST = 8
"""Measured candidates of a group from which its correlation counts."""
TUNED = "Llama-3-8B"
"""The family whose sizes the constants of the model were tuned on."""


def mean_ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1; equal values share the mean of theirs."""
    return [(sum(other < each for other in values) + sum(other <= each for other in values) + 1) / 2 for each in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; 0 where all values of a side are equal."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    return statistics.correlation(mean_ranks(one), mean_ranks(other))


@dataclass(frozen=True)
class Sample:
    """The measured candidates of a group, or of one kind in it, with the model's choice among them and the best of
    those that it may choose from."""

    label: str
    timed: tuple[Row, ...]
    choice: Row
    best: Row

    @property
    def correlation(self) -> float | None:
        """Rank correlation of predicted and measured times; None where there are too few."""
        if len(self.timed) < LEAST:
            return None
        return spearman([each["predicted"] for each in self.timed], [each["us"] for each in self.timed])

    @property
    def regret(self) -> float:
        """Measured time of the choice over that of the best."""
        regret: float = self.choice["us"] / self.best["us"]
        return regret

    @property
    def errors(self) -> list[float]:
        """Of each candidate, how far its prediction is from its time, relative to that."""
        return [abs(each["predicted"] / each["us"] - 1) for each in self.timed]


def sample(row: Row, kind: str = "") -> Sample | None:
    """A row of a result file, or the schedules of one kind in it; None where none was measured and predicted. Of a
    group the planner's choice counts, among kinds that move no weights; of a kind the least prediction."""
    kinds = (kind,) if kind else SCHEDULES
    right = (each for each in row["schedules"] if each["schedule"]["kind"] in kinds)
    timed = tuple(each for each in right if "us" in each and each["predicted"] is not None)
    if not timed:
        return None
    rivals = timed if kind else [each for each in timed if each["schedule"]["kind"] not in PACKED]
    choice = min(timed, key=lambda each: each["predicted"]) if kind else row["schedules"][row["chosen"]]
    best = min(rivals, key=lambda each: each["us"])
    return Sample(Layer(**row["layer"]).label, timed, choice, best)


def accuracy(samples: Sequence[Sample]) -> Row:
    """Counts of groups and candidates, correlation (median and worst, None where no group is large enough), regret
    (geometric mean, worst and where that is), median error."""
    correlations = [each.correlation for each in samples if each.correlation is not None]
    worst = max(samples, key=lambda each: each.regret)
    return {
        "groups": len(samples),
        "candidates": sum(len(each.timed) for each in samples),
        "correlation": statistics.median(correlations) if correlations else None,
        "worst_correlation": min(correlations, default=None),
        "regret": statistics.geometric_mean(each.regret for each in samples),
        "worst_regret": worst.regret,
        "worst_at": worst.label,
        "error": statistics.median(error for each in samples for error in each.errors),
    }


def by_group(body: Row) -> list[Row]:
    """The accuracy in each group, family by family, with what was chosen and what would have been best."""
    rows = sorted(body["rows"], key=lambda row: list(FAMILIES).index(row["layer"]["family"]))
    found = [each for row in rows if (each := sample(row)) is not None]
    return [
        {
            **accuracy([each]),
            "choice": each.choice["schedule"]["kind"],
            "choice_us": each.choice["us"],
            "best": each.best["schedule"]["kind"],
            "best_us": each.best["us"],
        }
        for each in found
    ]


def summary(body: Row) -> list[Row]:
    """The accuracy over all, over each family, over those that no constant was tuned on, and over each kind."""
    return [{"part": part, **accuracy(samples)} for part, samples in parts(body["rows"]) if samples]


def parts(rows: Sequence[Row]) -> Iterator[tuple[str, list[Sample]]]:
    """Each part of the data by name."""

    def of(families: Sequence[str], kind: str = "") -> list[Sample]:
        samples = [sample(row, kind) for row in rows if row["layer"]["family"] in families]
        return [each for each in samples if each is not None]

    held_out = [family for family in FAMILIES if family != TUNED]
    yield "all", of(list(FAMILIES))
    yield f"{TUNED}, tuned on", of([TUNED])
    yield "held out", of(held_out)
    yield from ((family, of([family])) for family in held_out)
    yield from ((kind, of(list(FAMILIES), kind)) for kind in SCHEDULES)


def line(found: Row) -> str:
    """One accuracy in words."""
    correlation = (
        "-" if found["correlation"] is None else f"{found['correlation']:.2f} ({found['worst_correlation']:.2f})"
    )
    return (
        f"groups {found['groups']}, schedules {found['candidates']}, correlation {correlation}, regret "
        f"{found['regret']:.3f} ({found['worst_regret']:.2f} at {found['worst_at']}), error {found['error']:.0%}"
    )


if __name__ == "__main__":
    for each in summary(json.loads(Path(sys.argv[1]).read_text())):
        print(f"{each['part']}: {line(each)}")
