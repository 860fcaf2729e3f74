"""Entries that were written by hand, with a checksum that is right: they select an enumerated schedule or nothing."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusioncc.autotune.layer_times import Layer
from fusioncc.device import get_device
from fusioncc.errors import TuningError
from fusioncc.group import Epilogue
from fusioncc.schedule import Pool, Schedule
from fusioncc.tuning.check import require_sane
from fusioncc.tuning.database import Database
from fusioncc.tuning.entry import Measured
from fusioncc.tuning.form import SCHEMA, to_bytes
from fusioncc.tuning.space import require_selectable
from tests.tuning.entries import DEVICE, GROUP, entry, key, lines_of, schedule
from tests.tuning.test_key import ENDED, NORMED, RELU, leaves

CODE = "__import__('os').system('id')"
PATHS = ("../../../../etc/passwd", "/etc/passwd", "x\0.json", "..\\..\\x", "a\nb", "\x1b[2J")


def forged(change: Callable[[Any], None]) -> bytes:
    """An entry, changed as the JSON that it is, under a checksum of what it is now."""
    fields = msgspec.json.decode(msgspec.json.encode(entry()))
    change(fields)
    return sealed(msgspec.json.encode(fields, order="sorted"))


def sealed(payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).hexdigest()
    return b'{"schema":"%s","sha256":"%s","entry":%s}' % (SCHEMA.encode(), digest.encode(), payload)


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(fields: Any) -> None:
        for name in path[:-1]:
            fields = fields[name]
        fields[path[-1]] = value

    return change


def replaced(old: bytes, new: bytes) -> bytes:
    """The entry with other bytes, which no encoder would write."""
    payload = msgspec.json.encode(entry(), order="sorted")
    assert old in payload
    return sealed(payload.replace(old, new, 1))


POOL, TILE = ("schedule", "pools", 0), ("schedule", "pools", 0, "tile")
HOSTILE: dict[str, bytes] = {
    **{f"{name}": replaced(b'"us":10.0', b'"us":%s' % name.encode()) for name in ("NaN", "Infinity", "-Infinity")},
    **{f"us {us}": forged(put("time", "us", value=us)) for us in (0, -1.0, 1e300, 1e8, 1e-9, "10", None, True, [])},
    **{f"spread {us}": forged(put("time", "spread_us", value=us)) for us in (-0.1, 11.0, None)},
    "library 0": forged(put("library", "us", value=0.0)),
    "slower than library": forged(put("time", "us", value=17.0)),
    "1e999": replaced(b'"us":10.0', b'"us":1e999'),
    "a number of 5000 digits": replaced(b'"candidates":8', b'"candidates":' + b"9" * 5000),
    "a number of 100 digits": replaced(b'"candidates":8', b'"candidates":' + b"9" * 100),
    "candidates": forged(put("candidates", value=-8)),
    "an integer for a time": replaced(b'"us":10.0', b'"us":10'),
    "another spelling": replaced(b'"us":10.0', b'"us":1e1'),
    "a name twice": replaced(b'"us":10.0', b'"us":9.0,"us":10.0'),
    "a space": replaced(b'"us":10.0', b'"us": 10.0'),
    "an escape": replaced(b'"kind":"inline"', b'"kind":"\\u0069nline"'),
    "effort": forged(put("effort", value="heroic")),
    "date": forged(put("date", value="yesterday")),
    "no time zone": forged(put("date", value="2026-11-30T12:00:00")),
    "another century": forged(put("date", value="2999-01-01T00:00:00Z")),
    "an unknown field": forged(put("source", value=CODE)),
    "an unknown field of a tile": forged(put(*TILE, "setup", value=CODE)),
    "an unknown field of the key": forged(put("key", "kernel", value=CODE)),
    "a field less": forged(lambda fields: fields["schedule"].pop("pools")),
    "an unknown kind": forged(put("schedule", "kind", value="fast")),
    "code as kind": forged(put("schedule", "kind", value=CODE)),
    "code as role": forged(put(*POOL, "role", value=CODE)),
    "code as ordering": forged(put(*POOL, "ordering", value=CODE)),
    "code as block": forged(put(*TILE, "block_m", value=CODE)),
    "code as card": forged(put("key", "card", "name", value=CODE)),
    "code as emitter": forged(put("key", "versions", "emitter", value=CODE)),
    "code as node": forged(put("key", "group", "lhs", "node", value=CODE)),
    "code as symbol": forged(put("key", "group", "m_symbol", value=CODE)),
    **{f"path {path!r} as kind": forged(put("schedule", "kind", value=path)) for path in PATHS},
    **{f"path {path!r} as card": forged(put("key", "card", "profile", value=path)) for path in PATHS},
    "a long text": forged(put("key", "tier", value="x" * 1000)),
    "no pools": forged(put("schedule", "pools", value=[])),
    "a pool twice": forged(lambda fields: fields["schedule"]["pools"].append(fields["schedule"]["pools"][0])),
    "members": forged(put(*POOL, "members", value=[-1])),
    "too many members": forged(put(*POOL, "members", value=[0, 99])),
    "no members": forged(put(*POOL, "members", value=[])),
    "launch": forged(put(*POOL, "launch", value=3)),
    **{
        f"block_m {size}": forged(put(*TILE, "block_m", value=size)) for size in (0, -16, 48, 2**31, 2**62, 2**80, 16.5)
    },
    "warps": forged(put(*TILE, "num_warps", value=64)),
    "stages": forged(put(*TILE, "num_stages", value=6)),
    "workers": forged(put(*POOL, "workers", value=132)),
    "group_m": forged(put(*POOL, "group_m", value=9)),
    "slices": forged(put(*POOL, "k_split", value=64)),
    "tma": forged(put(*TILE, "tma", value=True)),
    "a cap": forged(put("schedule", "vendor_multiprocessors", value=8)),
    "another group": forged(put("key", "group", "members", 0, "n", value=1024)),
    "a group without members": forged(put("key", "group", "members", value=[])),
    "a scalar X": forged(put("key", "group", "lhs", "shape", value=[])),
    "a branch of nothing": forged(put("key", "group", "branches", 0, "main", value=99)),
    "a huge size": forged(put("key", "group", "lhs", "shape", value=[2**62, 256])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_entry_is_refused(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = Database(tmp_path / "tuned")
    with kept.folder.locked():
        kept.folder.write(key().digest() + ".json", HOSTILE[name])
    assert kept.find(key(), DEVICE) is None
    (line,) = lines_of(caplog)
    assert line.isprintable() and len(line) < 1000
    listed = kept.listed()  # nothing that can be listed breaks what is said of it
    assert len(listed.entries) + len(listed.refused) == 1
    assert all(str(error).isprintable() for _, error in listed.refused)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        CODE,
        *(pytest.param(value, marks=pytest.mark.exhaustive) for value in (None, True, -1, 1e308, 0.5, "", [], {})),
    ],
    ids=repr,
)
def test_no_value_at_any_place_brings_anything(tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands wherever in an entry: a miss, or a schedule that was enumerated for this key."""
    kept = Database(tmp_path / "tuned")
    assert kept.store(entry(), DEVICE) == "stored"
    places = [path for path, _ in leaves(msgspec.to_builtins(entry()))]
    for path in places:
        (kept.folder.path / f"{key().digest()}.json").write_bytes(forged(put(*path, value=value)))
        found = kept.find(key(), DEVICE)
        if found is not None:
            assert (found.schedule, found.key) == (entry().schedule, key())
    assert len(places) > 80 and len(lines_of(caplog)) == 1


def test_an_entry_that_nothing_was_done_to_is_found(tmp_path: Path) -> None:
    """Forging alone refuses nothing."""
    kept = Database(tmp_path / "tuned")
    with kept.folder.locked():
        kept.folder.write(key().digest() + ".json", forged(lambda fields: None))
    assert kept.find(key(), DEVICE) == entry()


def refusal(chosen: Schedule, **options: Any) -> str:
    with pytest.raises(TuningError) as caught:
        require_selectable(chosen, key(**options), DEVICE)
    assert caught.value.rule in ("space", "emission")
    return str(caught.value)


@pytest.mark.parametrize("kind", ["inline", "split", "concat", "horizontal", "two_pool"])
def test_every_choice_of_a_launch_is_selectable_and_no_other(kind: str) -> None:
    for place in range(4):
        require_selectable(schedule(kind, place), key(), DEVICE)
    chosen = schedule(kind)
    for change in ({"group_m": 4}, {"k_split": 5}, {"members": ()}, {"ordering": "striped"}):
        first = replace(chosen.pools[0], **change)
        assert "not enumerated" in refusal(replace(chosen, pools=(first, *chosen.pools[1:])), max_peak_increase=0)
    wide = replace(chosen.pools[0].tile, block_n=512)
    assert "not enumerated" in refusal(replace(chosen, pools=(replace(chosen.pools[0], tile=wide), *chosen.pools[1:])))
    assert "not enumerated" in refusal(replace(chosen, pools=(*chosen.pools, replace(chosen.pools[0], launch=9))))
    assert "as no" in refusal(replace(chosen, pools=()))


def test_the_workers_of_two_pool_are_settled_later() -> None:
    """As many as are resident of the compiled kernel, in stripes or from a queue; what no division has is refused."""
    down, main = schedule("two_pool").pools

    def divided(workers: int, downs: int, late: int = 0, chunk: int | None = None) -> Schedule:
        pools = (replace(down, workers=downs, late=late), replace(main, workers=workers, chunk=chunk))
        return Schedule("two_pool", pools)

    most = down.k_split * math.ceil(64 / down.tile.block_m)
    for good in (divided(132, most), divided(132, most, 1), divided(132, most, chunk=4)):
        require_selectable(good, key(), DEVICE)
    require_selectable(divided(132, math.ceil(most / 4), 2), key(), DEVICE)
    bad = (divided(131, most), divided(132, most + 1), divided(0, 0), divided(132 * 33, most), divided(132, most, 0, 3))
    for each in (*bad, divided(132, most, -1), divided(132, most, 65), divided(132, most, 1, 2)):
        refusal(each)


def test_options_say_which_kinds_may_run() -> None:
    require_selectable(schedule("split"), key(schedule="split"), DEVICE)
    require_selectable(schedule("streams"), key(schedule="streams"), DEVICE)
    require_selectable(Schedule("merged"), key(schedule="merged", numerics="relaxed"), DEVICE)
    assert "only where it is asked for" in refusal(schedule("streams"))
    assert "only where it is asked for" in refusal(Schedule("merged"))
    assert "only where it is asked for" in refusal(Schedule("packed"))
    assert "is illegal for the group" in refusal(Schedule("packed"), pack_weights=True)
    assert "not 'split'" in refusal(schedule("inline"), schedule="split")
    assert "has no emitted form" in refusal(schedule("inline"), numerics="eager")
    plain = key(Layer(4096, (1024, 512)).group(64), pack_weights=True)
    require_selectable(Schedule("packed"), plain, DEVICE)
    with pytest.raises(TuningError, match="illegal for the group"):
        require_selectable(schedule("split"), plain, DEVICE)


def test_memory_that_is_not_allowed_is_refused() -> None:
    chosen = schedule("concat")
    require_selectable(chosen, key(max_peak_increase=1 << 20), DEVICE)
    assert "raises the peak of the group by" in refusal(chosen, max_peak_increase=0)
    require_selectable(Schedule("library"), key(max_peak_increase=0), DEVICE)


def test_a_key_of_another_device_is_refused() -> None:
    """Of one that differs in what decides which tiles are legal."""
    require_selectable(schedule(), key(), replace(DEVICE, dram_gbps=4000.0))
    for other in (replace(DEVICE, name="mine"), replace(DEVICE, multiprocessors=66), get_device("h100")):
        with pytest.raises(TuningError, match="made of another device"):
            require_selectable(schedule(), key(), other)


@pytest.mark.parametrize("constant", ["0.5", "float('inf')", "True", "None", "'floor'", "[1, -2]", "1e-05"])
def test_constants_of_an_epilogue(constant: str) -> None:
    require_sane(entry(key=key(ending(constant))))


@pytest.mark.parametrize("constant", [CODE, "f()", "x := 1", "a\n", "float('1')", "x" * 1000, '"quoted"'])
def test_what_is_no_constant_is_refused(constant: str) -> None:
    with pytest.raises(TuningError):
        require_sane(entry(key=key(ending(constant))))


def test_a_group_behind_a_norm_has_a_weight_that_is_a_vector() -> None:
    require_sane(entry(key=key(NORMED)))
    require_sane(entry(key=key(replace(NORMED, norm=replace(NORMED.norm, weight=None)))))
    matrix = replace(NORMED.norm.weight, shape=(1, NORMED.k), strides=(NORMED.k, 1))
    for norm in (replace(NORMED.norm, weight=matrix), replace(NORMED.norm, epsilon=math.inf)):
        with pytest.raises(TuningError):
            require_sane(entry(key=key(replace(NORMED, norm=norm))))


def ending(constant: str) -> Any:
    (op,) = RELU.ops
    chain = replace(RELU, ops=(replace(op, args=(op.args[0], replace(op.args[1], constant=constant))),))
    return replace(ENDED, epilogues=(Epilogue((0,), chain),))


@pytest.mark.parametrize(
    "wrong",
    [
        entry(time=Measured(math.nan, 0.1)),
        entry(math.inf),
        entry(key=key(replace(GROUP, branches=(replace(GROUP.branches[0], scale=math.inf),)))),
        entry(key=key(replace(GROUP, branches=(replace(GROUP.branches[0], scale=math.nan),)))),
        entry(date=datetime(2026, 11, 30)),
        entry(schedule=Schedule("inline", (Pool("main", (0,), schedule().pools[0].tile, 1),))),
        entry(17.0),
    ],
)
def test_what_would_not_be_found_is_not_stored(tmp_path: Path, wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    kept = Database(tmp_path / "tuned")
    assert kept.store(wrong, DEVICE) == "refused"
    assert len(lines_of(caplog)) == 1 and not kept.folder.path.exists()


def test_a_schedule_that_was_forced_need_not_beat_library() -> None:
    require_sane(entry(17.0, key=key(schedule="inline")))
    require_sane(entry(16.0, schedule=Schedule("library"), library=Measured(16.0, 0.2)))
    assert to_bytes(entry()) == to_bytes(entry())
