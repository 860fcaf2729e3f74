"""The figures of the design documents that belong to a card, from their cards."""

import pytest

from fusioncc.cost_models import estimate
from fusioncc.cost_models.tiles import shares, tile_count, unit_tflops
from fusioncc.device import PROFILES
from fusioncc.figures import checked
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.cards import CARD_80, CARD_108, CARD_504
from tests.cost_models.groups import lora

CARDS = (CARD_80, CARD_108, CARD_504)
DOWN, MAIN = TileConfig(16, 16, 64), TileConfig(16, 128, 64)
FLOP_ROW = 2 * 3 * 12288 * 4096
"""Of one row: the three GEMMs of an FFN."""


@pytest.mark.parametrize("card", CARDS, ids=[card.name for card in CARDS])
def test_they_are_cards_but_not_ones_that_ship(card) -> None:
    assert card.name not in PROFILES and checked(card, card.name) is card


def test_a_spatial_split_leaves_76_of_80_multiprocessors_to_the_main_tiles() -> None:
    down = tile_count(64, 8, DOWN.block_m, DOWN.block_n)
    assert (down, CARD_80.multiprocessors - down) == (4, 76)
    assert 2 * CARD_80.multiprocessors == 160


def test_896_main_tiles_on_108_multiprocessors_are_nine_for_the_busiest() -> None:
    main = tile_count(64, 28672, MAIN.block_m, MAIN.block_n)
    assert main / CARD_108.multiprocessors == pytest.approx(8.3, abs=0.05)
    assert shares(main, CARD_108.multiprocessors) == {9: 32, 8: 76}


def test_the_lora_layer_has_900_tiles_on_either_in_waves_by_its_multiprocessors() -> None:
    schedule = Schedule("split", (Pool("down", (1,), DOWN, 0), Pool("main", (0,), MAIN, 1)))
    small, large = (estimate(lora(64, 4096, 28672, 8), schedule, card) for card in (CARD_80, CARD_108))
    assert small is not None and large is not None and small.tiles == large.tiles == 900
    assert small.waves / large.waves == pytest.approx(108 / 80)


@pytest.mark.parametrize(
    ("rows", "rate", "fraction", "ms"), [(5632, 100, 0.20, 17.0), (8192, 200, 0.40, 12.4), (5632, 250, 0.50, 6.8)]
)
def test_an_ffn_at_a_fraction_of_the_peak(rows: int, rate: float, fraction: float, ms: float) -> None:
    assert pytest.approx(302, abs=0.1) == FLOP_ROW / 1e6
    assert rate / unit_tflops("bf16", CARD_504) == pytest.approx(fraction, abs=0.005)
    assert rows * FLOP_ROW / (rate * 1e9) == pytest.approx(ms, abs=0.05)
