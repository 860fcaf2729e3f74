"""The version of the emitter: a time that was measured of an emitted kernel holds for kernels of the same version."""

import hashlib
from functools import cache
from pathlib import Path

VOCABULARY = ("chain", "descriptors", "group", "operand", "packing", "schedule", "vendor")
"""Modules beside ``codegen`` that emission reads."""


@cache
def emitter_version() -> str:
    """A hash of the sources of ``fusioncc.codegen`` and of the vocabulary that it imports, 16 hexadecimal digits.

    It changes with every byte of them, also where the kernels stay what they are: then what was tuned is tuned again,
    which costs time and never a wrong answer. What decides between schedules is not part of it.
    """
    folder = Path(__file__).parent
    paths = [*folder.glob("*.py"), *(folder.parent / f"{name}.py" for name in VOCABULARY)]
    digest = hashlib.sha256()
    for path in sorted(paths):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(folder.parent).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:16]
