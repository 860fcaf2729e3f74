"""What a dump writes, what it removes, and what it leaves alone."""

from pathlib import Path

import pytest

from fusioncc.api import Planned
from fusioncc.codegen.launch import EmittedModule
from fusioncc.dump import without_folders, write
from fusioncc.errors import TargetError
from fusioncc.plan import Plan
from tests.plans import lora_group, lora_plan, planned


def planned_with(*kernels: str) -> Planned:
    groups = [planned(lora_group(f"g{i}"), kernel) for i, kernel in enumerate(kernels)]
    modules = tuple(EmittedModule(kernel, f"# {kernel}\n", (), (), ()) for kernel in kernels)
    return Planned(lora_plan(*groups), "before\n", "after\n", modules)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_written_and_returned(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    paths = write(planned_with("k0", "k1"), out)
    found = contents(out)
    assert sorted(found) == ["after.txt", "before.txt", "decisions.md", "kernels/k0.py", "kernels/k1.py", "plan.json"]
    assert sorted(path.relative_to(out).as_posix() for path in paths) == sorted(found)
    assert found["kernels/k1.py"] == b"# k1\n"
    assert found["before.txt"] == b"before\n"
    assert Plan.from_json(found["plan.json"]) == planned_with("k0", "k1").plan


def test_kernels_of_an_earlier_dump_go_and_other_files_stay(tmp_path: Path) -> None:
    write(planned_with("k0", "k1"), tmp_path)
    (tmp_path / "kernels" / "mine.py").write_text("kept")
    write(planned_with("k1", "k2"), tmp_path)
    assert sorted(path.name for path in (tmp_path / "kernels").iterdir()) == ["k1.py", "k2.py", "mine.py"]


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    write(planned_with("k0"), tmp_path / "a")
    write(planned_with("k0", "k1"), tmp_path / "b")
    write(planned_with("k0"), tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_kernel_name_in_a_plan_cannot_point_outside(tmp_path: Path) -> None:
    victim = tmp_path / "victim.py"
    victim.write_text("kept")
    out = tmp_path / "out"
    write(planned_with("k0"), out)
    plan = lora_plan(planned(lora_group(), "../../victim"))
    (out / "plan.json").write_text(plan.to_json())
    write(planned_with("k1"), out)
    assert victim.read_text() == "kept"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(TargetError, match="is not a folder"):
        write(planned_with("k0"), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_plan_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"name": "holiday"}')
    with pytest.raises(TargetError, match="was not written by this version of fusioncc"):
        write(planned_with("k0"), tmp_path)
    assert contents(tmp_path) == {"plan.json": b'{"name": "holiday"}'}


def test_graphs_do_not_tell_the_folder() -> None:
    line = "    # File: {}model.py:12 in forward, code: x = y / z\n    div = aten.div(y, z)\n"
    plain = line.format("")
    assert without_folders(line.format("/home/a b/")) == without_folders(line.format("C:\\x\\")) == plain
    assert without_folders(plain) == plain
