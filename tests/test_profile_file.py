"""Profiles in files: what is read, what is refused with the field's name, and the doors that take one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fusioncc
from fusioncc.config import Options
from fusioncc.device import FIGURES, PROFILES, get_device
from fusioncc.errors import OptionError
from fusioncc.fusion_pass import FusionPass
from fusioncc.plan import Plan
from fusioncc.profile_file import OPTIONAL, read_profile, to_json
from tests.lora_models import Lora, rows

FULL = json.loads(to_json(replace(get_device("h200"), tile_tflops=(("128x256x64", 640.5),))))


def write(folder: Path, content: Any, name: str = "my.json") -> str:
    path = folder / name
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize("name", PROFILES)
def test_what_is_written_is_read_back_equal(tmp_path: Path, name: str) -> None:
    device = replace(PROFILES[name], tile_tflops=(("64x64x64", 1.5), ("128x256x64", 2.5)))
    back = get_device(write(tmp_path, to_json(device)))
    assert back == device and back.sources == {"tile_tflops": "given in my.json", **device.sources}


def test_a_complete_profile_of_plain_numbers(tmp_path: Path) -> None:
    numbers = {figure: getattr(PROFILES["l40s"], figure) for figure in FIGURES if figure not in OPTIONAL}
    device = get_device(write(tmp_path, numbers, "Bench.JSON"))
    assert device == replace(PROFILES["l40s"], name="Bench")
    assert set(device.sources.values()) == {"given in Bench.JSON"}


def test_like_takes_the_rest_from_a_profile_that_ships(tmp_path: Path) -> None:
    faster = {"value": 4800, "unit": "GB/s", "source": "a colleague"}
    device = get_device(write(tmp_path, {"like": "H200", "name": "ours", "dram_gbps": faster, "multiprocessors": 78}))
    assert device == replace(PROFILES["h200"], name="ours", dram_gbps=4800.0, multiprocessors=78)
    assert device.sources["dram_gbps"] == "a colleague"
    assert device.sources["multiprocessors"] == "given in my.json"
    assert device.sources["bf16_tflops"] == PROFILES["h200"].sources["bf16_tflops"]


REFUSED: tuple[tuple[Any, str], ...] = (
    ("", "not a device profile"),
    ("{", "not a device profile"),
    ("[1]", "not a device profile"),
    (b"\xff\xfe{}", "not a device profile"),
    ({}, "missing capability, multiprocessors, dram_gbps"),
    ({figure: value for figure, value in FULL.items() if figure != "l2_gbps"}, "missing l2_gbps; "),
    ({"like": "h300"}, "like is 'h300'; valid devices: a100-40"),
    ({"like": 7}, "like: Expected `str`"),
    ({"like": "h200", "name": None}, "name: Expected `str`"),
    ({"like": "h200", "name": " "}, "name is ' ', which is no name"),
    ({"like": "h200", "name": "two\nlines"}, "name is 'two\\nlines', which is no name"),
    ('{"like": "h200", "multiprocessors": 1' + 400 * "0" + "}", "multiprocessors"),
    ({"like": "h200", "dram_gpbs": 4000}, "unknown field 'dram_gpbs' (did you mean 'dram_gbps'?)"),
    ({"like": "h200", "dram_gbps": {"value": 1, "sorce": "x"}}, "dram_gbps: Object contains unknown field `sorce`"),
    ({"like": "h200", "dram_gbps": {"unit": "GB/s"}}, "dram_gbps: Object missing required field `value`"),
    ({"like": "h200", "dram_gbps": {"value": 4.8, "unit": "TB/s"}}, "dram_gbps is in 'TB/s'; it has to be in GB/s"),
    ({"like": "h200", "dram_gbps": 0}, "dram_gbps is 0 GB/s, and no card has that (10 to 1e+06 GB/s)"),
    ({"like": "h200", "dram_gbps": -4260}, "dram_gbps is -4260 GB/s"),
    ({"like": "h200", "dram_gbps": 4.26}, "dram_gbps is 4.26 GB/s"),
    ({"like": "h200", "dram_gbps": "4260"}, "dram_gbps: Expected"),
    ({"like": "h200", "dram_gbps": True}, "dram_gbps: Expected"),
    ({"like": "h200", "dram_gbps": None}, "dram_gbps: Expected"),
    ('{"like": "h200", "dram_gbps": 1e999}', "dram_gbps: "),
    ('{"like": "h200", "dram_gbps": NaN}', "not a device profile"),
    ({"like": "h200", "dram_gbps": 20000}, "l2_gbps is 11911.8, less than dram_gbps, which is 20000"),
    ({"like": "h200", "multiprocessors": 132.5}, "multiprocessors is 132.5, which is no whole number"),
    ({"like": "h200", "shared_bytes": 227}, "shared_bytes is 227 bytes"),
    ({"like": "h200", "shared_bytes": 400000}, "shared_bytes_sm is 233472, less than shared_bytes"),
    ({"like": "h200", "tf32_tflops": 900}, "bf16_tflops is 680.2, less than tf32_tflops"),
    ({"like": "h200", "capability": 9}, "capability is 9 tenths"),
    ({"like": "h200", "tile_tflops": 7}, "tile_tflops has to be an object of rates by tile"),
    ({"like": "h200", "dram_gbps": {"value": {"64x64x64": 4000}}}, "dram_gbps has to be a number"),
    ({"like": "h200", "tile_tflops": {"value": {"64x64x64": 0}}}, "tile_tflops[64x64x64] is 0 TFLOP/s"),
)


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_a_mistake_is_one_line_with_file_and_field(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(OptionError) as caught:
        get_device(path)
    assert str(caught.value).startswith(path) and message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(figure=st.sampled_from([figure for figure in FIGURES if figure not in OPTIONAL]), sign=st.sampled_from([0, -1]))
def test_no_figure_may_be_zero_or_negative(tmp_path_factory: pytest.TempPathFactory, figure: str, sign: int) -> None:
    path = write(tmp_path_factory.mktemp("profile"), {"like": "b200", figure: sign})
    with pytest.raises(OptionError, match=f"{figure} is {sign} "):
        get_device(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.json cannot be read: No such file"):
        get_device(str(tmp_path / "none.json"))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OptionError, match=r"folder\.json cannot be read"):
        read_profile(tmp_path / "folder.json")


@pytest.mark.exhaustive
def test_every_door_takes_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"like": "a100-80", "multiprocessors": 80}, "card.json")
    for device in (path, Path(path), get_device(path)):
        assert fusioncc.plan(Lora(), (rows(),), device=device).device == "card"
    assert Options.of({"device": path}).device == get_device(path) == Options(device=path).device  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not the name of a device profile"):
        Options.of(device=7)


def test_a_plan_for_a_file_comes_back_from_json_and_applies(tmp_path: Path) -> None:
    """Elsewhere the file is not needed: a plan names its profile and holds what was decided with it."""
    path = write(tmp_path, {"like": "a100-80", "dram_gbps": 1000}, "card.json")
    planned = fusioncc.plan(Lora(), (rows(),), device=path, schedule="split")
    assert planned.device == "card"
    assert Plan.from_json(planned.to_json()) == planned
    torch.compiler.reset()
    run = fusioncc.optimize(Lora(), (rows(),), plan=planned, device=path, on_error="raise")
    (applied,) = fusioncc.plan_of(run)
    assert (applied.device, applied.fingerprint) == ("card", planned.fingerprint)
    assert applied.groups[0].schedule == planned.groups[0].schedule
    Path(path).unlink()
    torch.compiler.reset()
    run = fusioncc.optimize(Lora(), (rows(),), plan=planned.to_json(), device="a100-80", on_error="raise")
    assert fusioncc.plan_of(run)[0].groups[0].schedule == planned.groups[0].schedule


def test_a_plan_that_is_too_new_for_the_card_in_a_file_is_refused(tmp_path: Path) -> None:
    planned = fusioncc.plan(Lora(), (rows(64),), device="h200", schedule="split")
    path = write(tmp_path, {"like": "a100-80"}, "card.json")
    run = fusioncc.optimize(Lora(), plan=planned, device=path, on_error="raise")
    torch.compiler.reset()
    with pytest.raises(Exception, match="needs compute capability 90, card has 80"), torch.no_grad():
        run(rows(64))


def test_the_figures_decide_and_are_part_of_cache_keys(tmp_path: Path) -> None:
    """A file that changes is another card: a compiled graph that was cached for the old figures is not served."""
    path = write(tmp_path, {"like": "h200"})
    before = Options.of(device=path)
    write(tmp_path, {"like": "h200", "dram_gbps": 1000})
    after = Options.of(device=path)
    assert before.device == replace(get_device("h200"), name="my")  # read once
    assert before != after and FusionPass(before).uuid() != FusionPass(after).uuid()
    slower = fusioncc.plan(Lora(), (rows(),), device=path).groups[0].candidates[0]
    faster = fusioncc.plan(Lora(), (rows(),), device="h200").groups[0].candidates[0]
    assert slower.predicted_us is not None and faster.predicted_us is not None
    assert slower.predicted_us > faster.predicted_us
