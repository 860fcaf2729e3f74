"""Load an emitted module from a real file, once for each source.

Triton reads a kernel's source from its file, so the file has to exist as long as the kernel may be compiled. Files lie
in the cache folder under a name made from their content: equal sources give one module object and therefore one
function object, which Inductor compiles once.
"""

import functools
import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from fusioncc.errors import EmissionError
from fusioncc.runtime.files import cache_folder, write_whole


def kernel_folder() -> Path:
    """The folder for emitted modules."""
    return cache_folder() / "kernels"


@functools.cache
def load(name: str, source: str) -> ModuleType:
    """The module ``source``, imported.

    Raises:
        EmissionError: the cache folder cannot be written, or the source does not import.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = _write(kernel_folder() / f"{name}_{digest}.py", source)
    qualified = f"fusioncc_kernels_{path.stem}"
    spec = importlib.util.spec_from_file_location(qualified, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, AttributeError) as error:
        del sys.modules[qualified]
        raise EmissionError(f"emitted module {name} does not import: {error}") from error
    return module


def _write(path: Path, source: str) -> Path:
    """Write the file, or keep an equal one; in a folder of this process when the cache folder cannot be written."""
    try:
        if path.is_file() and path.read_bytes() == source.encode():
            return path
        write_whole(path, source)
    except OSError as error:
        fallback = Path(_process_folder()) / path.name
        if path.parent == fallback.parent:
            raise EmissionError(f"cannot write emitted module: {error}") from error
        return _write(fallback, source)
    return path


@functools.lru_cache(maxsize=1)
def _process_folder() -> str:
    """A folder of this process, for when the cache folder cannot be written."""
    return tempfile.mkdtemp(prefix="fusioncc-")
