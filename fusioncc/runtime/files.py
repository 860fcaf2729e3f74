"""The cache folder, and writing to it."""

import getpass
import os
import re
import tempfile
from pathlib import Path

from fusioncc.config import cache_folder_override


def cache_folder() -> Path:
    """``FUSIONCC_CACHE_DIR``, or a folder for this user beside Inductor's cache."""
    chosen = cache_folder_override()
    if chosen is not None:
        return Path(chosen)
    return _inductor_folder() / "fusioncc"


def _inductor_folder() -> Path:
    """Inductor's cache, where torch looks for it; asked without loading torch."""
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if chosen is not None:
        return Path(chosen).absolute()
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


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
