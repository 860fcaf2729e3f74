"""Tables that ship: which groups an entry serves, with which workers, and what a table may not do."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fusioncc.autotune.choose import best
from fusioncc.autotune.layer_times import Layer
from fusioncc.autotune.two_pool import undivided
from fusioncc.device import get_device
from fusioncc.schedule import Schedule
from fusioncc.tuning import shipped as tables
from fusioncc.tuning.entry import Entry, Measured
from fusioncc.tuning.exchange import entries_of, exported
from fusioncc.tuning.form import from_bytes, to_bytes
from fusioncc.tuning.key import Key, Versions
from fusioncc.tuning.place import BUCKETS, bucket_of, place_of
from fusioncc.tuning.shipped import Served, shipped, table
from fusioncc.tuning.space import is_selectable
from tests.tuning.entries import DEVICE, GROUP, entry, key, lines_of, schedule

LAYER = Layer(4096, (4096, 1024), 16)
Ship = Callable[[Iterable[Entry] | bytes], None]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Ships a table in the place of the package's own."""
    monkeypatch.setattr(tables, "FOLDER", tmp_path)

    def written(what: Iterable[Entry] | bytes) -> None:
        table.cache_clear()
        (tmp_path / "h200.json").write_bytes(what if isinstance(what, bytes) else exported(what))

    return written


def at(rows: int, card: str = "NVIDIA H200", layer: Layer = LAYER) -> Key:
    return key(layer.group(rows), card)


def served(of: Key) -> Served:
    found = shipped(of, DEVICE)
    assert found is not None
    return found


PACKAGE = Path(__file__).parents[2] / "fusioncc" / "tuned"


def test_what_ships_is_whole_and_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "FOLDER", PACKAGE)
    for path in PACKAGE.iterdir():
        for each in map(from_bytes, map(bytes, entries_of(path.read_bytes()))):
            assert each.key.card.profile == path.stem and each.key.group.m in BUCKETS
            served = Served(each, each.schedule)
            assert shipped(each.key, get_device(path.stem)) == served, "each has a place of its own"


def test_other_tests_plan_as_if_nothing_shipped() -> None:
    """So that a table can be filled without a change of theirs."""
    assert tables.FOLDER != PACKAGE and not [*tables.FOLDER.iterdir()] and not tables.ships("h200")


def test_an_entry_is_read_when_its_shapes_are_asked_for(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once, with all others of these shapes."""
    read: list[bytes] = []

    def noted(data: bytes) -> Entry:
        read.append(data)
        return from_bytes(data)

    monkeypatch.setattr("fusioncc.tuning.table.from_bytes", noted)
    mine = entry(key=at(64), schedule=schedule("split", 3, LAYER.group(64)))
    other = entry(key=at(64, "NVIDIA H200 NVL"), schedule=schedule("split", 3, LAYER.group(64)))
    ship([entry(), mine, other])
    assert tables.ships("h200") and shipped(at(32), DEVICE) is None and read == []
    assert served(at(64)).entry == served(at(50)).entry == mine and served(at(64, "NVIDIA H200 NVL")).entry == other
    assert read == [to_bytes(mine), to_bytes(other)]


@pytest.mark.parametrize("rows", [33, 40, 64])
def test_an_entry_serves_the_rows_of_its_bucket(ship: Ship, rows: int) -> None:
    mine = entry(key=at(64), schedule=schedule("split", 3, LAYER.group(64)))
    ship([mine])
    found = served(at(rows))
    assert found.entry == mine and [pool.tile for pool in found.schedule.pools] == [p.tile for p in mine.schedule.pools]
    assert shipped(at(32), DEVICE) is None and shipped(at(65), DEVICE) is None


def test_cards_of_one_profile_have_entries_of_their_own(ship: Ship) -> None:
    wide = entry(key=at(64, "NVIDIA H200 NVL"), schedule=schedule("split", 3, LAYER.group(64)))
    mine = entry(key=at(64), schedule=schedule("split", 2, LAYER.group(64)))
    ship([wide, mine])
    assert served(at(64)).entry == mine and served(at(64, "NVIDIA H200 NVL")).entry == wide
    assert served(at(64, "")).entry == wide


def test_workers_are_those_of_the_rows_that_there_are(ship: Ship) -> None:
    """Fewer main tiles leave room for fewer workers."""
    rows, fewer = 512, 257
    found = best(LAYER.group(rows), DEVICE, "two_pool")
    assert found is not None
    ship([entry(key=at(rows), schedule=found[0])])
    many, few = served(at(rows)).schedule, served(at(fewer)).schedule
    assert many == found[0] and few != many and undivided(few.pools) == undivided(many.pools)
    assert not is_selectable(many, at(fewer), DEVICE) and is_selectable(few, at(fewer), DEVICE)


def test_a_schedule_that_is_not_enumerated_for_these_rows_is_not_taken(ship: Ship) -> None:
    mine = entry(key=at(2), schedule=schedule("split", 0, LAYER.group(2)))
    other = schedule("inline", 0, Layer(4096, (4096,), 16).group(2))
    ship([replace(mine, schedule=other)])
    assert shipped(at(2), DEVICE) is None


def test_library_is_a_result(ship: Ship) -> None:
    ship([entry(key=at(64), schedule=Schedule("library"), time=Measured(16.0, 0.2))])
    assert served(at(50)).schedule == Schedule("library")


def test_it_is_for_the_card_that_was_measured(ship: Ship) -> None:
    mine = entry()
    ship([mine])
    assert served(key()).entry == mine and served(key(card="")).entry == mine, "no card: the profile is meant"
    assert shipped(key(card="NVIDIA H100 80GB HBM3"), DEVICE) is None
    h100 = get_device("h100")
    assert shipped(replace(key(), card=replace(key().card, profile="h100")), h100) is None
    assert shipped(replace(key(), card=replace(key().card, multiprocessors=16)), DEVICE) is None


def test_other_versions_are_served_too(ship: Ship) -> None:
    old = entry(key=replace(key(), versions=Versions("2.11.0", "3.6.0", "before")))
    ship([old])
    assert served(key()).entry == old


@pytest.mark.parametrize("options", [{"schedule": "split"}, {"numerics": "relaxed"}, {"max_peak_increase": 10**9}])
def test_other_wishes_are_not_served(ship: Ship, options: dict[str, object]) -> None:
    ship([entry()])
    assert shipped(key(**options), DEVICE) is None


def test_scales_and_names_do_not_matter_and_all_else_does(ship: Ship) -> None:
    ship([entry()])
    (branch,) = GROUP.branches
    assert served(key(replace(GROUP, branches=(replace(branch, scale=0.5),)))).entry == entry()
    saved = replace(GROUP, branches=(replace(branch, saved=True),))
    unaligned = replace(GROUP, lhs=replace(GROUP.lhs, aligned=False))
    anything = replace(GROUP, m_symbol="s0")
    for other in (saved, unaligned, anything, Layer(256, (512,), 16).group(64)):
        assert shipped(key(other), DEVICE) is None


def test_buckets() -> None:
    assert [bucket_of(rows) for rows in (1, 2, 3, 5, 4097, 8192, 8193)] == [1, 2, 4, 8, 8192, 8192, None]
    assert place_of(at(8193)) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a table"),
        (b"\xff\xfe", "not a table"),
        (b'{"schema": "fusioncc.tuned-table/2", "entries": []}', "has schema"),
        (b'{"schema": "fusioncc.tuned-table/1", "entries": [], "code": "import os"}', "not a table"),
        (b"[" * 100_000, "not a table"),
    ],
)
def test_a_table_that_is_none_is_one_line(ship: Ship, data: bytes, said: str, caplog: pytest.LogCaptureFixture) -> None:
    ship(data)
    assert shipped(key(), DEVICE) is None and shipped(at(64), DEVICE) is None
    (line,) = lines_of(caplog)
    assert "h200.json is not used" in line and said in line


def test_damaged_entries_are_left_out_in_one_line(ship: Ship, caplog: pytest.LogCaptureFixture) -> None:
    good = exported([entry()]).decode()
    (line,) = [each for each in good.splitlines() if "sha256" in each]
    bad = [line.replace("fp32", "exec"), line.replace('"candidates":8', '"candidates":1e999'), line.replace("/1", "/x")]
    more = exported([entry(key=at(64))]).decode().splitlines()[1].replace("fp32", "exec")
    ship(good.replace(line, ",\n".join([*bad, more, line])).encode())
    assert served(key()).entry == entry() and shipped(at(64), DEVICE) is None
    (said,) = lines_of(caplog)
    assert "some entries are not used (" in said and "checksum" in said and "schema" in said


@pytest.mark.parametrize("bad", ["{}", "7", '{"entry":{"key":{"group":{"lhs":{"shape":[64]},"members":[]}}}}'])
def test_what_has_no_shapes_is_left_out_when_a_table_is_opened(
    ship: Ship, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    ship(exported([entry()]).replace(b"[\n", f"[\n{bad},\n".encode()))
    assert served(key()).entry == entry()
    (said,) = lines_of(caplog)
    assert "some entries are not used (1 form)" in said


def test_a_profile_s_name_leads_to_no_other_file(ship: Ship, tmp_path: Path) -> None:
    ship([entry()])
    (tmp_path / "sub").mkdir()
    for name in ("../h200", "sub/../h200", str(tmp_path / "h200"), "*", "", "H200"):
        assert table(tmp_path, name) is None
