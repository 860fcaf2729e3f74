"""The folders of the cache, and writing to them."""

import getpass
import os
import re
import tempfile
from pathlib import Path

import platformdirs

from fusioncc.config import cache_folder_override


def cache_folder() -> Path:
    """For what is made again at little cost: ``FUSIONCC_CACHE_DIR``, or a folder for this user beside Inductor's
    cache, which it belongs to."""
    chosen = cache_folder_override()
    return _inductor_folder() / "fusioncc" if chosen is None else Path(chosen)


def kept_folder() -> Path:
    """For what was measured, and outlasts a restart: ``FUSIONCC_CACHE_DIR``, or the user's own cache folder."""
    chosen = cache_folder_override()
    return platformdirs.user_cache_path("fusioncc", appauthor=False) if chosen is None else Path(chosen)


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
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)
