"""Which of many alike cases are in the suite: some of them, spread; the others are among the exhaustive tests."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def shown(cases: Collection[Any], count: int, name: Callable[[Any], str] = str) -> list[ParameterSet]:
    """The cases as parameters, about ``count`` of them shown."""
    step = max(1, len(cases) // count)
    return [_case(each, at % step == 0, name) for at, each in enumerate(cases)]


def one_of_each(
    cases: Collection[Any], kind: Callable[[Any], Any], name: Callable[[Any], str] = str
) -> list[ParameterSet]:
    """The cases as parameters, the first of each kind shown."""
    first = {kind(each): at for at, each in reversed(list(enumerate(cases)))}
    return [_case(each, first[kind(each)] == at, name) for at, each in enumerate(cases)]


def _case(case: Any, is_shown: bool, name: Callable[[Any], str]) -> ParameterSet:
    return pytest.param(case, id=name(case), marks=() if is_shown else pytest.mark.exhaustive)
