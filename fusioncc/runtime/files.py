"""The cache folder, and writing to it."""

import os
import tempfile
from pathlib import Path

from fusioncc.config import cache_folder_override


def cache_folder() -> Path:
    """``FUSIONCC_CACHE_DIR``, or a folder for this user beside Inductor's cache."""
    chosen = cache_folder_override()
    if chosen is not None:
        return Path(chosen)
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fusioncc"


def write_whole(path: Path, text: str) -> None:
    """Write through a temporary file and rename, so that a reader never sees half a file.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).replace(path)
