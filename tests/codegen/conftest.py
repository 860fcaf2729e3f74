"""The codegen tests interpret emitted kernels in this process; whatever compiles runs in a process of its own."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fusioncc.codegen import EmittedModule
from tests.support import interpreter

interpreter.request()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/codegen/golden anew")


@pytest.fixture
def load(tmp_path: Path):
    """Import an emitted module under the mended interpreter."""
    interpreter.mend()
    torch.set_num_threads(1)  # tiles are small, and workers share the cores

    def load_module(module: EmittedModule) -> ModuleType:
        path = tmp_path / f"{module.name}.py"
        path.write_text(module.source)
        spec = importlib.util.spec_from_file_location(module.name, path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return load_module
