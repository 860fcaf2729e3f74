"""Which of many alike cases are in the suite: some of them, spread; the others are among the exhaustive tests."""

from collections.abc import Collection

import pytest
from _pytest.mark.structures import ParameterSet


def shown(names: Collection[str], count: int) -> list[ParameterSet]:
    """The names as parameters, about ``count`` of them shown."""
    step = max(1, len(names) // count)
    return [
        pytest.param(name, id=name, marks=() if at % step == 0 else pytest.mark.exhaustive)
        for at, name in enumerate(names)
    ]
