"""Operand sets on a card that is full: fewer of them, one at least; and which card that is."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusioncc.errors import MeasuringError
from fusioncc.runtime import card
from fusioncc.runtime.replay import sets_needed
from fusioncc.runtime.room import drawn_sets, in_room
from fusioncc.runtime.samples import summary

MIB = 1 << 20


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A card with so many bytes free, by what its driver says."""

    def free(bytes_: int) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (bytes_, 141 << 30))

    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    return free


def drawn(size: int, fits: int) -> list[int]:
    """Seeds of the sets that are drawn on a card where ``fits`` calls run."""
    ran: list[int] = []

    def draw(seed: int) -> list[Any]:
        if seed == 0:
            ran.clear()
        return [seed]

    def call(seed: int) -> None:
        if len(ran) >= fits:
            raise torch.OutOfMemoryError("CUDA out of memory.\nMore.")
        ran.append(seed)

    return [int(each[0]) for each in drawn_sets(draw, call, size)]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("free", "fits", "count"),
    [
        (10_000, 99, 9),  # 160 MiB and one more, of 20 MiB each
        (100, 99, 2),  # half of what is free
        (30, 99, 1),
        (10_000, 5, 4),  # the driver was wrong: half of 9
        (10_000, 1, 1),
    ],
)
def test_as_many_sets_as_there_is_room_for(full: Any, free: int, fits: int, count: int) -> None:
    full(free * MIB)
    assert drawn(20 * MIB, fits) == list(range(count))


def test_no_room_for_one(full: Any) -> None:
    full(1000 * MIB)
    with pytest.raises(MeasuringError, match=r"^CUDA out of memory\.$") as caught:
        drawn(20 * MIB, 0)
    assert caught.value.kind == "memory"


def test_other_errors_are_not_of_memory() -> None:
    with pytest.raises(RuntimeError, match="illegal"), in_room():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_sets_exceed_the_l2() -> None:
    assert [sets_needed(size) for size in (1 << 40, 160 * MIB, MIB)] == [2, 2, 161]


def test_summary() -> None:
    assert summary([5.0]) == (5.0, 0.0)
    assert summary([9.0, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]) == (5.5, 1.5)


@pytest.mark.parametrize(("index", "uuid", "taken"), [(1, "b", 1), (0, "b", 1), (7, "a", 0)])
def test_the_card_of_the_parent_is_taken(index: int, uuid: str, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its UUID, wherever it stands here."""
    chosen: list[int] = []
    cards = SimpleNamespace(
        device_count=lambda: 2,
        current_device=lambda: 1,
        get_device_properties=lambda at: SimpleNamespace(uuid="ab"[at]),
        set_device=chosen.append,
        synchronize=lambda: None,
    )
    monkeypatch.setattr(card, "cuda", cards)
    assert card.identity(None) == (1, "b") and card.identity(0) == (0, "a")
    card.take(index, uuid)
    assert chosen == [taken]
    with pytest.raises(MeasuringError, match="none of the 2 cards seen here is c"):
        card.take(0, "c")
