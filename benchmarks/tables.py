"""The tables of the README and docs, written from benchmarks/results/*.json.

    python benchmarks/tables.py             # rewrite what stands between the markers
    python benchmarks/tables.py --check     # exit code 1 when a text differs from its results

A text asks for a table with the lines ``<!-- table: NAME -->`` and ``<!-- end of table -->``; NAME is that of a result
file, which holds ``card``, ``driver``, ``torch``, ``triton``, ``date``, ``command``, ``unit``, ``rows``, and a ``note``
where there is more to say, as that its rows are not of one run. A measured value of a row may have its spread beside it
as ``VALUE_spread``.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accuracy

ROOT = Path(__file__).parents[1]
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
SEARCHES = ("model", "quick", "full")
Row = dict[str, Any]


def measured(name: str) -> Callable[[Row], str]:
    """A column of measured values with their spread."""

    def cell(row: Row) -> str:
        if name not in row:
            return "refused" if f"{name}_refused" in row else "-"
        spread = row.get(f"{name}_spread")
        return f"{row[name]:g}" + (f" ± {spread:g}" if spread is not None else "")

    return cell


def ratio(value: str, base: str) -> Callable[[Row], str]:
    """How many times ``base`` a value is: ``1.02x``."""
    return lambda row: f"{row[value] / row[base]:.2f}x" if value in row and base in row else "-"


def change(value: str, base: str) -> Callable[[Row], str]:
    """By how many percent a value differs from ``base``: ``-17.1 %``."""
    return lambda row: f"{100 * (row[value] / row[base] - 1):+.1f} %"


def of_the_best(value: str, *others: str) -> Callable[[Row], str]:
    """How many times the least of some other values a value is."""
    return lambda row: f"{row[value] / min(row[other] for other in others if other in row):.2f}x"


def best_of(kind: str) -> Callable[[Row], str]:
    """A column of the fastest schedule of a kind among those that were timed."""

    def cell(row: Row) -> str:
        timed = [each for each in row["schedules"] if each["kind"] == kind and "us" in each]
        return measured("us")(min(timed, key=lambda each: each["us"])) if timed else "-"

    return cell


def rounded(name: str, form: str, unit: str = "") -> Callable[[Row], str]:
    """A column of numbers, formatted, with their unit."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]:{form}}{unit}"


def plain(name: str, joiner: str = ", ") -> Callable[[Row], str]:
    """A column of texts; lists are joined."""

    def cell(row: Row) -> str:
        value = row.get(name, "-")
        return joiner.join(map(str, value)) if isinstance(value, list) else str(value)

    return cell


def each_of(fact: str, form: str, *names: str) -> Callable[[Row], str]:
    """A column of one fact about several columns: ``3 / 1 / -``."""
    return lambda row: " / ".join(rounded(f"{name}_{fact}", form)(row) for name in names)


CHAIN_COLUMNS = ("eager", "compile", "fusioncc", "fusioncc_eager")
COLUMNS: dict[str, dict[str, Callable[[Row], str]]] = {
    "lora_linear": {
        "M, K, N, r": plain("shape"),
        "GEMM alone": measured("gemm_alone"),
        "eager": measured("eager"),
        "torch.compile": measured("compile"),
        "max-autotune": measured("max_autotune"),
        "fusioncc": measured("fusioncc"),
        "schedule": plain("schedule"),
        "of the GEMM alone": ratio("fusioncc", "gemm_alone"),
        "to torch.compile": change("fusioncc", "compile"),
    },
    "llama_lora": {
        "input": plain("input"),
        "base, compiled": measured("base_compile"),
        "LoRA, eager": measured("lora_eager"),
        "LoRA, compiled": measured("lora_compile"),
        "LoRA, fusioncc": measured("lora_fusioncc"),
        "overhead compiled": change("lora_compile", "base_compile"),
        "overhead fusioncc": change("lora_fusioncc", "base_compile"),
        "error eager / compiled / fusioncc": each_of("error", ".1e", "eager", "compile", "fusioncc"),
    },
}
COLUMNS["bundles"] = {
    "bundle": plain("bundle"),
    "M": plain("m"),
    "rank": plain("rank"),
    "one GEMM, no adapters": measured("concatenated"),
    "eager": measured("eager"),
    "torch.compile": measured("compile"),
    "max-autotune": measured("max_autotune"),
    "fusioncc": measured("fusioncc"),
    "schedule": plain("schedule"),
    "of the one GEMM": ratio("fusioncc", "concatenated"),
    "of the best of eager and the two": of_the_best("fusioncc", "eager", "compile", "max_autotune"),
}
COLUMNS["compile_time"] = {
    "column": plain("column"),
    "until the first result": measured("seconds"),
    "groups measured": lambda row: f"{row['measured']} of {len(row['kinds'])}" if "kinds" in row else "-",
}
COLUMNS["cost_model"] = {
    "part": plain("part"),
    "groups": plain("groups"),
    "schedules": plain("candidates"),
    "rank correlation in a group, median": rounded("correlation", ".2f"),
    "worst": rounded("worst_correlation", ".2f"),
    "regret, geometric mean": rounded("regret", ".3f", "x"),
    "worst regret": rounded("worst_regret", ".2f", "x"),
    "at": plain("worst_at"),
    "error, median": rounded("error", ".0%"),
}
COLUMNS["cost_model_groups"] = {
    "group": plain("worst_at"),
    "schedules": plain("candidates"),
    "rank correlation": rounded("correlation", ".2f"),
    "chosen": plain("choice"),
    "us": measured("choice_us"),
    "best": plain("best"),
    "its us": measured("best_us"),
    "regret": rounded("regret", ".2f", "x"),
    "error, median": rounded("error", ".0%"),
}
COLUMNS["schedules"] = {
    "M, K, N of each, r": lambda row: "{}, {}, {}, {}".format(
        *row["layer"][:2], "+".join(map(str, row["layer"][2])), row["layer"][3]
    ),
    "one GEMM, no adapters": measured("alone"),
    "split": best_of("split"),
    "inline": best_of("inline"),
}
COLUMNS["chains"] = {
    "chain": plain("label"),
    "inputs from": plain("inputs"),
    "MiB op by op": rounded("before_mib", ".0f"),
    "MiB in one": rounded("after_mib", ".0f"),
    "kernels eager / compiled / fusioncc": each_of("kernels", "d", "eager", "compile", "fusioncc"),
    "copy": measured("copy"),
    "GB/s": rounded("copy_gbs", ".0f"),
    "eager": measured("eager"),
    "torch.compile": measured("compile"),
    "fusioncc, fp32": measured("fusioncc"),
    "fusioncc, as eager rounds": measured("fusioncc_eager"),
    "% of the copy's rate eager / compiled / fp32 / as eager": each_of("of_copy_percent", ".0f", *CHAIN_COLUMNS),
    "fp32 of eager": ratio("fusioncc", "eager"),
    "fp32 of torch.compile": ratio("fusioncc", "compile"),
    "error eager / compiled / fp32 / as eager": each_of("error", ".1e", *CHAIN_COLUMNS),
}
COLUMNS["gate_up"] = {
    "M": plain("m"),
    "N of each": plain("n"),
    "r": plain("rank"),
    "one GEMM, no adapters": measured("one_gemm"),
    "eager": measured("eager"),
    "torch.compile": measured("compile"),
    "fusioncc, apart": measured("apart"),
    "fusioncc": measured("fusioncc"),
    "chosen": plain("fusioncc_schedule"),
    "ended, forced": measured("ended"),
    "fusioncc of the one GEMM": ratio("fusioncc", "one_gemm"),
    "of torch.compile": ratio("fusioncc", "compile"),
    "ended of the one GEMM": ratio("ended", "one_gemm"),
    "error eager / compiled / ended": each_of("error", ".1e", "eager", "compile", "ended"),
}
COLUMNS["norms"] = {
    "projections": lambda row: {"qkv": "q/k/v", "gate_up": "gate/up, SiLU·mul"}[row["site"]],
    "M": plain("m"),
    "r": plain("rank"),
    "torch.compile": measured("compile"),
    "fusioncc, norm apart": measured("apart"),
    "fusioncc": measured("auto"),
    "chosen": plain("auto_schedule"),
    "fusioncc of torch.compile": ratio("auto", "compile"),
    "normed, forced": measured("normed"),
    "its schedule": plain("normed_schedule"),
    "error compiled / apart / normed": each_of("error", ".1e", "compile", "apart", "normed"),
}
COLUMNS["autotune"] = {
    "group": plain("group"),
    "M": plain("m"),
    "rank": plain("rank"),
    "torch.compile": measured("compile"),
    "max-autotune": measured("max_autotune"),
    "model only": measured("model"),
    "quick": measured("quick"),
    "full": measured("full"),
    "best of all": measured("exhaustive"),
    "of so many": plain("legal"),
    "chosen, model / quick / full": lambda row: " / ".join(row[f"{name}_schedule"] for name in SEARCHES),
    "measured, quick / full": each_of("measured", "d", "quick", "full"),
    "s, quick / full": each_of("s", "g", "quick", "full"),
    "full of model only": ratio("full", "model"),
}
COLUMNS["llama_lora_fp32"] = COLUMNS["llama_lora"]
COLUMNS["lora_schedules"] = {
    "M, K, N, r": plain("shape"),
    "GEMM alone": measured("gemm_alone"),
    **{kind: measured(kind) for kind in ("split", "inline", "two_pool", "streams", "horizontal", "concat", "k_concat")},
    "chosen": plain("schedule"),
}
FILES = {"lora_schedules": "lora_linear", "cost_model_groups": "cost_model"}
"""Tables that read the results of another name."""
ROWS: dict[str, Callable[[Row], list[Row]]] = {
    "cost_model": accuracy.summary,
    "cost_model_groups": accuracy.by_group,
}
"""Tables whose rows are made from a whole result."""


def table(name: str, result: dict[str, Any]) -> str:
    """One result as a Markdown table with the facts of its run below."""
    columns = COLUMNS[name]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    rows = ROWS[name](result) if name in ROWS else result["rows"]
    lines += ["| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in rows]
    facts = f"{result['card']}, driver {result['driver']}, torch {result['torch']}, triton {result['triton']}"
    begin = "Of times in" if name in ROWS else "In"
    lines += ["", f"{begin} {result['unit']}; {facts}, {result['date']}: `{result['command']}`."]
    lines += [result["note"]] if "note" in result else []
    return "\n".join(lines) + "\n"


def filled(text: str, folder: Path) -> str:
    """``text`` with every marked table made anew from the results in ``folder``."""

    def fill(match: re.Match[str]) -> str:
        path = folder / f"{FILES.get(match[2], match[2])}.json"
        body = table(match[2], json.loads(path.read_text(encoding="utf-8"))) if path.exists() else "Not measured yet.\n"
        return f"{match[1]}{body}{match[3]}"

    return MARKED.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 when a text is out of date")
    check = parser.parse_args().check
    stale = []
    for path in TEXTS:
        before = path.read_text(encoding="utf-8")
        after = filled(before, ROOT / "benchmarks" / "results")
        if before != after:
            stale.append(path.name)
            if not check:
                path.write_text(after, encoding="utf-8")
    print(f"{'out of date' if check else 'rewritten'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
