"""Pictures of a plan: one for each different group, the same text for the same plan, another for another schedule."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusioncc.api import Planned
from fusioncc.autotune import best, rank
from fusioncc.cli import app
from fusioncc.cost_models.roofline import points, roof
from fusioncc.cost_models.two_pool import persistent_launches
from fusioncc.device import get_device
from fusioncc.dump import write
from fusioncc.errors import MissingExtraError
from fusioncc.plan import GroupPlan
from fusioncc.plots import pictures
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.cost_models.groups import bundle, lora
from tests.plans import lora_group, lora_plan, planned

pytestmark = pytest.mark.exhaustive

H200 = get_device("h200")
MODEL = """
import torch
def factory():
    return torch.nn.Linear(8, 8), (torch.zeros(2, 8),)
"""


def two_pool(**changed: int | None) -> GroupPlan:
    """``g0`` as 224 main tiles and 4 down tiles on 132 workers, of which the four down workers are a turn late."""
    down = Pool("down", (1,), TileConfig(64, 16, 128, 4, 6), 0, workers=4, k_split=4, late=1)
    main = Pool("main", (0,), TileConfig(64, 128, 64, 4, 6, tma=True), 0, workers=132)
    main = replace(main, chunk=changed.pop("chunk", None))
    return replace(planned(lora_group()), schedule=Schedule("two_pool", (replace(down, **changed), main)))


def picture(group: GroupPlan) -> str:
    (text,) = pictures(lora_plan(group)).values()
    return text


def test_a_picture_has_the_lanes_and_the_roofline() -> None:
    text = picture(two_pool())
    (launch,) = persistent_launches(lora_group(), two_pool().schedule, H200)
    assert (launch.programs, launch.tiles, launch.down_tiles, launch.late) == (132, 224, 4, 1)
    for said in (
        "224 main and 4 down tiles",
        "down (4)",
        "main (224)",
        "tail, ",
        "roofline: 680.2 TFLOP/s bf16",
        "worker",
    ):
        assert said in text
    assert text.count("<path") > 132 + 224


def test_a_picture_depends_on_the_schedule_and_on_nothing_else() -> None:
    stripes = picture(two_pool())
    assert stripes == picture(two_pool())
    others = [picture(two_pool(**change)) for change in ({"late": 0}, {"late": 0, "chunk": 2}, {"workers": 2})]
    assert len({stripes, *others}) == 4


def test_other_persistent_pools_show_their_stripes_and_others_none() -> None:
    group = lora(2048, 4096, 4096, 16)
    found = best(group, H200, "split")
    assert found is not None
    (launch,) = persistent_launches(group, found[0], H200)
    assert launch.workers == 132 and launch.down_tiles == 0 and launch.tiles == 16 * 16
    assert persistent_launches(lora_group(), planned(lora_group()).schedule, H200) == ()
    assert "us, simulated" not in picture(planned(lora_group())) and "roofline" in picture(planned(lora_group()))


def test_equal_groups_share_a_picture() -> None:
    groups = (two_pool(), replace(two_pool(), name="g1"), replace(planned(lora_group("g2")), name="g2"))
    found = pictures(lora_plan(*groups))
    assert list(found) == ["g0", "g2"] and "g0, g1 on h200" in found["g0"]


def test_the_dump_holds_the_pictures_and_removes_old_ones(tmp_path: Path) -> None:
    data = Planned(lora_plan(two_pool(), planned(lora_group("g1"))), "", "", ())
    paths = write(data, tmp_path, plots=True)
    drawn = {tmp_path / "plots" / "g0.svg", tmp_path / "plots" / "g1.svg"}
    assert drawn <= set(paths) and all(path.read_text().startswith("<?xml") for path in drawn)
    (tmp_path / "plots" / "mine.svg").write_text("kept")
    write(data, tmp_path)
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["mine.svg"]


def test_without_matplotlib_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if re.match(r"matplotlib(\.|$)", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError):
        pictures(lora_plan())
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    ask: Callable[..., list[str]] = lambda *more: ["dump", "model.py:factory", "--out", "out", *more]
    refused = CliRunner().invoke(app, ask("--plots"))
    assert refused.exit_code == 2 and not (tmp_path / "out").exists()
    assert refused.stderr == "fusioncc: plots need matplotlib: pip install 'fusioncc[plots]'\n"
    assert CliRunner().invoke(app, ask()).exit_code == 0, "nothing else needs it"


def test_the_roof() -> None:
    found = roof(lora(64, 4096, 4096, 8), H200)
    assert found is not None and found.unit == "bf16"
    assert found.ridge == pytest.approx(680.2e12 / 4026.7e9)
    assert found.tflops(found.ridge / 2) == pytest.approx(340.1) and found.tflops(1e6) == 680.2
    assert roof(lora(64, 4096, 4096, 8, dtype="fp64"), H200) is None


def test_points_stand_where_the_estimates_are() -> None:
    group = lora(64, 4096, 4096, 8)
    candidates = rank(group, H200)
    found = {point.kind: point for point in points(candidates)}
    inline = next(each for each in candidates if each.kind == "inline")
    assert inline.estimate is not None
    assert found["inline"].tflops == pytest.approx(inline.estimate.flops / inline.estimate.us * 1e6 / 1e12)
    assert found["inline"].intensity == inline.estimate.flops / inline.estimate.bytes
    assert found["library"].intensity < found["inline"].intensity < 64, "64 rows: 64 FLOP for each byte of W alone"


def test_tiles_of_every_member_of_a_persistent_launch_are_shown() -> None:
    """Members with tiles of their own share the workers."""
    group = bundle(512, 4096, (4096, 0), (1024, 0))
    wide, narrow = TileConfig(128, 256, 64, 8, 3, tma=True), TileConfig(128, 128, 64, 8, 4, tma=True)
    pools = tuple(Pool("main", (at,), tile, 0, workers=132) for at, tile in enumerate((wide, narrow)))
    (launch,) = persistent_launches(group, Schedule("horizontal", pools), H200)
    assert [main.tiles for main in launch.mains] == [4 * 16, 4 * 8]
    assert launch.programs == 96 and launch.late == 0 and launch.chunk is None
