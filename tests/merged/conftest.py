"""What every test of merged weights shares: a fresh compiler, both ways to run the rest of a graph."""

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> Any:
    from fusioncc.backend import fusioncc as backend  # not before tests/conftest.py chose the interpreter

    torch.compiler.reset()
    if "fusioncc" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend)  # as installation does
    with torch.no_grad():
        yield


@pytest.fixture(params=["eager", "inductor"])
def rest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs the rest of the graph. Without its interpreter Triton does not run here, and Inductor does."""
    if request.param == "inductor":
        monkeypatch.setenv("TRITON_INTERPRET", "0")
    return str(request.param)
