"""Keys: everything that could make another schedule the best changes the file, names do not."""

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusioncc.autotune.layer_times import Layer
from fusioncc.chain import Argument, Chain, Op, Result
from fusioncc.config import Options
from fusioncc.device import get_device
from fusioncc.group import Epilogue, Group, Norm
from fusioncc.operand import Operand
from fusioncc.tuning.database import Database
from fusioncc.tuning.key import Key, Versions, key_of
from tests.tuning.entries import DEVICE, GROUP, entry, key

RELU = Chain(
    "relu",
    (64, 512),
    (Operand("y", (64, 512), (512, 1), "bf16"),),
    (Op("r", "aten.maximum.default", (Argument(0), Argument(None, "0.5")), "bf16", (64, 512)),),
    (Result(1, "r", (512, 1)),),
)
ENDED = replace(GROUP, epilogues=(Epilogue((0,), RELU),))
NORMED = replace(GROUP, norm=Norm(GROUP.lhs, 1e-6, Operand("", (GROUP.k,), (1,), "bf16")))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in pairs:
        if isinstance(each, dict | list | tuple):
            yield from leaves(each, (*path, name))
        else:
            yield (*path, name), each


OTHER = {"main": "down", "down": "up", "up": "main", "ieee": "tf32"}


def changed(value: Any) -> Any:
    if isinstance(value, str):
        return OTHER.get(value, value + "x")
    return not value if isinstance(value, bool) else (value or 0) + 7


def with_leaf(builtins: Any, path: tuple[Any, ...], value: Any) -> Any:
    head, *rest = path
    inner = with_leaf(builtins[head], tuple(rest), value) if rest else value
    if isinstance(builtins, dict):
        return {**builtins, head: inner}
    return [inner if at == head else each for at, each in enumerate(builtins)]


def test_every_leaf_of_a_key_is_in_its_digest() -> None:
    """Sizes, strides, dtypes, biases, scales, norm, ends, tier, card, versions and options, all there is of them."""
    biased = [replace(member, bias=Operand("", (member.n,), (1,), "fp32")) for member in ENDED.members]
    whole = key(replace(ENDED, members=tuple(biased), norm=NORMED.norm), max_peak_increase=5)
    builtins = msgspec.to_builtins(whole)
    found = dict(leaves(builtins))
    assert len(found) > 100
    others = [msgspec.convert(with_leaf(builtins, path, changed(value)), type=Key) for path, value in found.items()]
    assert len({each.digest() for each in (whole, *others)}) == len(others) + 1
    assert msgspec.convert(builtins, type=Key) == whole


@pytest.mark.parametrize(
    "other",
    [
        key(Layer(256, (512,), 8).group(65)),
        key(Layer(256, (512,), 8).group(64, any_rows=True)),
        key(Layer(256, (512,), 8, "fp16").group(64)),
        key(Layer(256, (512, 512), 8).group(64)),
        key(replace(GROUP, lhs=replace(GROUP.lhs, strides=(512, 1)))),
        key(replace(GROUP, lhs=replace(GROUP.lhs, aligned=False))),
        key(ENDED),
        key(NORMED),
        key(numerics="relaxed"),
        key(card="NVIDIA H200 NVL"),
        key(card=""),
        key(rest="eager"),
        key(pack_weights=True),
        key(max_peak_increase=0),
        key(trace=True),
        key(schedule="inline"),
        key_of(GROUP, Options(), replace(DEVICE, multiprocessors=66), "NVIDIA H200"),
        key_of(GROUP, Options(), replace(DEVICE, name="mine"), "NVIDIA H200"),
        key_of(GROUP, Options(), get_device("h100"), "NVIDIA H200"),
        replace(key(), versions=replace(Versions.now(), torch="2.12.0")),
        replace(key(), versions=replace(Versions.now(), triton="3.6.0")),
        replace(key(), versions=replace(Versions.now(), emitter="0" * 16)),
    ],
)
def test_another_key_is_another_file_and_a_miss(tmp_path: Path, other: Key, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(tmp_path / "tuned")
    assert database.store(entry(), DEVICE) == "stored"
    assert database.find(key(), DEVICE) == entry()
    assert database.find(other, DEVICE) is None
    assert caplog.records == []


def test_names_rates_and_spellings_are_no_part_of_it() -> None:
    def named(group: Group) -> Group:
        members = tuple(replace(member, node="other", source="mlp.up_proj") for member in group.members)
        return replace(group, name="g7", members=members, lhs=replace(group.lhs, node="view_3"))

    def scaled(scale: float) -> Group:
        return replace(GROUP, branches=(replace(GROUP.branches[0], scale=scale),))

    assert key(named(GROUP)).digest() == key().digest()
    assert key(scaled(2)).digest() == key(scaled(2.0)).digest() != key().digest()
    slower = replace(DEVICE, dram_gbps=4000.0)
    assert key_of(GROUP, Options(on_error="raise"), slower, "NVIDIA H200").digest() == key().digest()


def test_versions_are_those_that_the_packages_give() -> None:
    """Read, not imported."""
    given = []
    for package, file in (("torch", "version.py"), ("triton", "__init__.py")):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        source = (Path(spec.origin).parent / file).read_text(encoding="utf-8")
        given += re.findall(r"^__version__ = ['\"](.+)['\"]$", source, re.MULTILINE)
    assert given == [Versions.now().torch, Versions.now().triton]
