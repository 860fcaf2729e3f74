"""The codegen tests interpret emitted kernels in this process; whatever compiles runs in a process of its own."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fusioncc.codegen import EmittedModule
from fusioncc.runtime.interpreter import mended


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[EmittedModule], ModuleType]]:
    """Import an emitted module; the interpreter is mended while the test runs."""
    torch.set_num_threads(1)  # tiles are small, and workers share the cores

    def load_module(module: EmittedModule) -> ModuleType:
        path = tmp_path / f"{module.name}.py"
        path.write_text(module.source)
        spec = importlib.util.spec_from_file_location(module.name, path)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    with mended():
        yield load_module
