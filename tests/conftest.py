"""What every test shares: emitted kernels run under Triton's interpreter, the kernel cache is a temporary folder.

The interpreter is chosen when triton is imported and lasts for the process, so the whole run has it; a test that
compiles kernels does so in a subprocess with ``compiler_environment``. Only ``-m gpu`` sees a card and compiles.
"""

import functools
import gc
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what is emitted now")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module, and therefore triton, is imported."""
    wanted = config.getoption("markexpr")
    if "gpu" not in wanted or "not gpu" in wanted:
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Emitted modules go to a folder of this run."""
    os.environ["FUSIONCC_CACHE_DIR"] = str(tmp_path_factory.mktemp("fusioncc"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(scope="session", autouse=True)
def nothing_ships(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The models choose, whatever was measured for the tables of the package."""
    from fusioncc.tuning import shipped

    shipped.FOLDER = tmp_path_factory.mktemp("shipped")


@pytest.fixture(scope="session", autouse=True)
def asked_once() -> None:
    """Before every export torch asks its dispatcher for all ops, and the garbage collector goes through all that was
    imported again and again: once is enough."""
    if "torch" in sys.modules:
        from torch._export import utils

        if hasattr(utils, "_materialize_cpp_cia_ops"):
            utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
    gc.freeze()


@pytest.fixture
def compiler_environment() -> dict[str, str]:
    """Environment of a subprocess in which triton compiles, with this checkout importable."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**environment, "PYTHONPATH": str(ROOT)}
