"""Ranks under ``torch.distributed``: groups are dealt, every rank ends with the same choice, and nobody waits for the
dead."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def answers(folder: Path, size: int, dead: int = -1) -> list[Any]:
    """What each rank prints, but the dead one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.passes.tuning_ranks", str(folder)]
    ranks = [
        subprocess.Popen(
            [*command, *map(str, (rank, size, dead))],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        printed = [each.communicate(timeout=150) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for rank, (out, error) in enumerate(printed):
        assert rank == dead or out, error
    return [json.loads(out) for rank, (out, _) in enumerate(printed) if rank != dead]


@pytest.mark.exhaustive
def test_every_rank_ends_with_the_same_choice(tmp_path: Path) -> None:
    """Three ranks, of which the last has no group; the second graph finds everything known."""
    first, second, third = answers(tmp_path, 3)
    assert first[0] == second[0] and len(first[0][0]) == 2
    assert all(why.startswith("measured") for plan in first[0] for _, _, why in plan)
    assert first[0][0] == first[0][1] and third[0] == [[], []]
    assert [first[2], second[2], third[2]] == [1, 1, 0], "two groups, dealt to the first two ranks"
    assert first[1] and second[1] and not third[1]


@pytest.mark.exhaustive
def test_a_dead_rank_leaves_the_others_with_the_model(tmp_path: Path) -> None:
    """Also in the second graph, for which nobody waits any more."""
    ((plans, searched, meters),) = answers(tmp_path, 2, dead=1)
    assert len(plans[0]) == 2 and plans[0] == plans[1] and (searched, meters) == (0, 0)
    assert all(why.startswith("predicted") for plan in plans for _, _, why in plan)
