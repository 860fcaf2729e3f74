"""``fusioncc shapes``: what it reads, what it says, and every mistake in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fusioncc.autotune import pick, rank
from fusioncc.autotune.layer_times import KINDS, Layer, layer_us
from fusioncc.cli import app
from fusioncc.cost_models import estimate
from fusioncc.cost_models.shapes import Histogram
from fusioncc.device import get_device
from fusioncc.errors import ShapesError
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.cost_models.groups import bundle

H200 = get_device("h200")
FFN = {"256": 8, "1536": 1, "2048": 1}
RATES = ("--row-us", "3.0199,1.50995,1.20796", "--prepare-ms", "100,200,300")
"""The rates and preparation times of the design documents' table: 302 MFLOP a row at 100, 200 and 250 TFLOP/s."""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command in a folder with ``ffn.json``."""
    monkeypatch.chdir(tmp_path)
    Path("ffn.json").write_text(json.dumps(FFN))
    return lambda *arguments, histogram="ffn.json": CliRunner().invoke(
        app, ["shapes", "--histogram", histogram, *arguments]
    )


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_it_says_what_is_cheapest_and_from_where(shapes: Callable[..., Result]) -> None:
    result = shapes(*RATES, "--edges", "512,2048", "--calls", "1000")
    assert result.exit_code == 0, result.stderr
    first, *table = result.stdout.splitlines()
    assert first == "3 shapes; a set is 10 calls, 5632 rows in all."
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table if line.startswith("│")]
    assert cells == [
        ["generic", "1", "5632", "none", "100", "17", "up to 64.7 sets"],
        ["2 buckets", "2", "8192", "+45%", "400", "12.4", "64.7 to 89.8 sets"],
        ["specialised", "3", "5632", "none", "900", "6.8", "from 89.8 sets on"],
    ]
    assert table[-5:] == [
        "2 buckets end at 512, 2048 rows.",
        "generic: cheaper than 2 buckets up to 64.7 sets (647 calls).",
        "generic: cheaper than specialised up to 78.4 sets (784 calls).",
        "2 buckets: cheaper than specialised up to 89.8 sets (898 calls).",
        "For 1000 calls (100 sets) the cheapest is specialised: specialised 1580 ms, 2 buckets 1637 ms, "
        "generic 1801 ms.",
    ]


def test_json_has_the_same_figures(shapes: Callable[..., Result]) -> None:
    found = data(shapes(*RATES, "--edges", "512,2048", "--calls", "700", "--json"))
    assert found["histogram"] == FFN
    assert [each["rows"] for each in found["strategies"]] == [5632, 8192, 5632]
    assert [each["edges"] for each in found["strategies"]] == [[], [512, 2048], []]
    starts = [each["cheapest_for_sets"][0] for each in found["strategies"]]
    assert starts == pytest.approx([0, 64.7, 89.8], abs=0.05)
    assert [each["calls"] for each in found["crossovers"]] == pytest.approx([646.8, 784, 898.4], abs=0.5)
    assert [each["sets"] * 10 for each in found["crossovers"]] == [each["calls"] for each in found["crossovers"]]
    assert found["expected"]["cheapest"] == "2 buckets"
    assert found["expected"]["total_ms"]["2 buckets"] == pytest.approx(400 + 70 * 12.37, abs=0.1)


def test_it_answers_without_torch(shapes: Callable[..., Result]) -> None:
    Path("torch.py").write_text("raise RuntimeError('torch was imported')")
    command = [sys.executable, "-m", "fusioncc", "shapes", "--histogram", "ffn.json", "--k", "256", "--n", "256"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "specialised" in result.stdout


def test_nothing_is_expected_unless_told(shapes: Callable[..., Result]) -> None:
    assert data(shapes(*RATES, "--json"))["expected"] is None


def test_lines_that_never_cross_and_lines_that_are_the_same(shapes: Callable[..., Result]) -> None:
    slower = shapes("--row-us", "1,2,1", "--buckets", "2").stdout
    assert "generic: always cheaper than specialised." in slower
    assert "│ always" in slower and "│ never" in slower
    Path("one.json").write_text('{"64": 1}')
    assert "generic and specialised: the same costs." in shapes("--row-us", "1", histogram="one.json").stdout


def test_many_strategies_leave_their_crossovers_to_json(shapes: Callable[..., Result]) -> None:
    Path("many.json").write_text(json.dumps({str(rows): 1 for rows in (1, 10, 100, 1000, 10000, 100000)}))
    prices = ("--row-us", "8,1,1", "--prepare-ms", "10,11,1000")
    text, found = shapes(*prices, histogram="many.json"), data(shapes(*prices, "--json", histogram="many.json"))
    count = len(found["strategies"])
    assert count > 4 and len(found["crossovers"]) == count * (count - 1) // 2
    assert "--json has where every two cross" in text.stdout and "cheaper than" not in text.stdout


def test_edges_are_found_for_a_number_of_buckets(shapes: Callable[..., Result]) -> None:
    found = data(shapes(*RATES, "--buckets", "2", "--json"))
    assert [each["edges"] for each in found["strategies"]] == [[], [256, 2048], []]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ffn.csv", "rows,count\n256,8\n1536,1\n2048,1\n"),
        ("ffn.CSV", "\ufeffrows, count\r\n1536,1\r\n\r\n 2048 , 1 \r\n256,8"),
        ("bare.csv", "256,8\n1536,1\n2048,1\n"),
        ("ffn.json", '{"2048": 1, "256": 8.0, "1536": 1}'),
    ],
)
def test_files_it_reads(shapes: Callable[..., Result], name: str, text: str) -> None:
    expected = data(shapes(*RATES, "--json"))
    Path(name).write_text(text, encoding="utf-8")
    assert data(shapes(*RATES, "--json", histogram=name)) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "a.json: the histogram is empty"),
        ("a.csv", "rows,count\n", "a.csv: the histogram is empty"),
        ("a.csv", "", "a.csv: the histogram is empty"),
        ("a.json", '{"0": 1}', "a.json: rows 0 of the histogram is not a whole number from 1"),
        ("a.csv", "-3,1", "a.csv: rows -3 of the histogram is not a whole number from 1"),
        ("a.csv", "1.5,1", "a.csv: rows '1.5' of the histogram is not a whole number"),
        ("a.json", '{"many": 1}', "a.json: rows 'many' of the histogram is not a whole number"),
        ("a.json", '{"64": 0}', "a.json: count 0 of 64 rows is not a number above zero"),
        ("a.csv", "64,-1", "a.csv: count -1.0 of 64 rows is not a number above zero"),
        ("a.csv", "64,nan", "a.csv: count nan of 64 rows is not a number above zero"),
        ("a.csv", "64,1\n65,lots", "a.csv: line 2: count 'lots' is not a number"),
        ("a.json", '{"64": Infinity}', "a.json: count inf of 64 rows is not a number above zero"),
        ("a.json", '{"64": "8"}', "a.json: count '8' of 64 rows is not a number above zero"),
        ("a.json", '{"64": null}', "a.json: count None of 64 rows is not a number above zero"),
        ("a.json", '{"64": true}', "a.json: count True of 64 rows is not a number above zero"),
        ("a.json", '{"64": 9e14, "65": 9e14}', "a.json: counts of the histogram add up to more than 1e+15"),
        ("a.json", '{"64": 1, "64": 2}', "a.json: rows 64 of the histogram is given twice"),
        ("a.csv", "64,1\n064,2", "a.csv: rows 64 of the histogram is given twice"),
        ("a.json", "[64, 65]", "a.json: not a JSON object of rows and counts"),
        ("a.json", '{"64": 1', "a.json: not JSON: Expecting"),
        ("a.json", "[" * 100_000, "a.json: not JSON"),
        ("a.csv", "64", "a.csv: line 1 is not of the form rows,count: '64'"),
        ("a.csv", "count,rows\n1,64", "a.csv: line 1: count 'rows' is not a number"),
        ("a.txt", "64,1", "a.txt is neither .json nor .csv"),
    ],
)
def test_a_bad_histogram_is_one_line(shapes: Callable[..., Result], name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    refused(shapes(*RATES, histogram=name), message)


def test_a_file_that_cannot_be_read_is_one_line(shapes: Callable[..., Result]) -> None:
    refused(shapes(*RATES, histogram="missing.json"), "missing.json cannot be read: No such file or directory")
    Path("folder.json").mkdir()
    refused(shapes(*RATES, histogram="folder.json"), "folder.json cannot be read: Is a directory")
    Path("binary.csv").write_bytes(b"\xff\xfe\x00")
    refused(shapes(*RATES, histogram="binary.csv"), "binary.csv cannot be read: not UTF-8 text")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --k and --n of a layer, or --row-us"),
        (("--k", "64"), "give --k and --n of a layer, or --row-us"),
        (("--n", "64"), "give --k and --n of a layer, or --row-us"),
        (("--row-us", "1", "--k", "64"), "leave out --k and --n, or --row-us"),
        (("--row-us", "1", "--n", "64"), "leave out --k and --n, or --row-us"),
        (("--row-us", "0"), "--row-us must be above zero"),
        (("--row-us", "1,0,1"), "--row-us must be above zero"),
        (("--row-us", "-1"), "--row-us '-1' is neither one number nor three"),
        (("--row-us", "1,2"), "--row-us '1,2' is neither one number nor three"),
        (("--row-us", "nan"), "--row-us 'nan' is neither one number nor three"),
        (("--row-us", "fast"), "--row-us 'fast' is neither one number nor three"),
        (("--row-us", "1", "--prepare-ms", "1e300"), "--prepare-ms '1e300' is neither one number nor three"),
        (("--row-us", "1", "--buckets", "4"), "buckets=4 is not between 1 and the number of shapes, 3"),
        (("--row-us", "1", "--buckets", "0"), "Invalid value for '--buckets'"),
        (("--row-us", "1", "--buckets", "2", "--edges", "2048"), "use one of the two"),
        (("--row-us", "1", "--edges", "512"), "edges 512 leave out calls of 2048 rows"),
        (("--row-us", "1", "--edges", "300,512,2048"), "no shape falls into the bucket that ends at 512 rows"),
        (("--row-us", "1", "--edges", ""), "--edges '' is not a list of whole numbers"),
        (("--row-us", "1", "--edges", "1e3"), "--edges '1e3' is not a list of whole numbers"),
        (("--row-us", "1", "--edges", f"2048,{1 << 31}"), "no shape falls into the bucket"),
        (("--row-us", "1", "--edges", f"{1 << 31}"), "rows 2147483648 of the histogram"),
        (("--row-us", "1", "--calls", "0"), "--calls 0 is not a number above zero"),
        (("--row-us", "1", "--calls", "inf"), "--calls inf is not a number above zero"),
        (("--k", "0", "--n", "64"), "Invalid value for '--k'"),
        (("--k", "64", "--n", "0"), "Invalid value for '--n'"),
        (("--k", "64", "--n", "64", "--n", "8", "--rank", "8"), "--rank 8 is not smaller than --k and every --n"),
        (("--k", "64", "--n", "64", "--dtype", "int8"), "--dtype 'int8' is not valid; valid values: bf16, fp16, fp32"),
        (("--k", "64", "--n", "64", "--device", "h300"), "valid devices:"),
    ],
)
def test_a_mistake_is_one_line(shapes: Callable[..., Result], arguments: tuple[str, ...], message: str) -> None:
    refused(shapes(*arguments), message)


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("fusioncc: ") and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_debug_shows_where(shapes: Callable[..., Result]) -> None:
    assert isinstance(shapes(*RATES, "--buckets", "4", "--debug").exception, ShapesError)


def test_a_layer_is_the_group_that_the_planner_sees() -> None:
    layer = Layer(256, (512, 128), 8)
    expected = bundle(64, 256, (512, 8), (128, 8))
    expected = replace(expected, branches=tuple(replace(branch, scale=1.0) for branch in expected.branches))
    assert layer.group(64).signature() == expected.signature()
    assert layer.group(64, any_rows=True).signature() == replace(expected, m_symbol="M").signature()
    assert Layer(256, (512,), dtype="fp32").group(1).signature() == bundle(1, 256, (512, 0), dtype="fp32").signature()


def test_times_of_a_layer_are_the_planners(shapes: Callable[..., Result]) -> None:
    layer, histogram = Layer(4096, (4096,), 16), Histogram.of({1: 40, 64: 8, 700: 1})

    def chosen(group: Group) -> Schedule:
        found = pick(rank(group, H200, KINDS), group).schedule
        assert found is not None
        return found

    def us(group: Group, schedule: Schedule) -> float:
        predicted = estimate(group, schedule, H200)
        assert predicted is not None
        return predicted.us

    def under(schedule: Schedule) -> list[float]:
        return [us(layer.group(rows, any_rows=True), schedule) for rows in histogram.rows]

    hinted = [under(chosen(layer.group(rows, any_rows=True))) for rows in histogram.rows]
    weights = [count for _, count in histogram.shapes]
    one = min(hinted, key=lambda times: sum(count * us for count, us in zip(weights, times, strict=True)))
    own = [us(layer.group(rows), chosen(layer.group(rows))) for rows in histogram.rows]
    times = layer_us(layer, histogram, H200)
    assert [times.generic(rows) for rows in histogram.rows] == one
    assert [times.specialised(rows) for rows in histogram.rows] == list(map(min, own, one))
    assert times.bucketed(700) == times.specialised(700)
    Path("rows.json").write_text(json.dumps(dict(histogram.shapes)))
    found = data(shapes("--k", "4096", "--n", "4096", "--rank", "16", "--json", histogram="rows.json"))
    assert found["strategies"][0]["running_ms"] == histogram.running_ms(times.generic)
    assert found["strategies"][-1]["running_ms"] == histogram.running_ms(times.specialised)


def test_a_layer_that_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ShapesError, match="cannot be estimated on h200"):
        layer_us(Layer(256, (512,), dtype="int8"), Histogram.of({64: 1}), H200)


def test_other_cards_and_bundles_have_other_times(shapes: Callable[..., Result]) -> None:
    def running(*arguments: str) -> float:
        asked = ("--k", "512", "--n", "512", *arguments, "--json")
        found: float = data(shapes(*asked, histogram="one.json"))["strategies"][0]["running_ms"]
        return found

    Path("one.json").write_text('{"64": 1}')
    plain = running()
    assert running("--device", "a100-40") > plain
    assert running("--n", "512", "--n", "512") > plain
    assert running("--rank", "8") > plain
    assert running("--dtype", "fp32") > plain
