"""Tests of packed weights run as those of merged ones do: in a fresh compiler, with either rest of a graph."""

from tests.merged.conftest import fresh, rest

__all__ = ["fresh", "rest"]
