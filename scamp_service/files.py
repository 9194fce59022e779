"""Small files that several processes share, and whether their directory can hold more."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

LEAST_FREE_BYTES = 2**20


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file so that readers always see all of it or the previous one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
        except OSError:
            os.unlink(temporary.name)  # it takes the space that is missing
            raise
    os.replace(temporary.name, file)


def code_zip(folder: Path, sha256: str, fetch: Callable[[], bytes]) -> Path:
    """The zip of a user's files in ``folder``; ``fetch`` gets it if it is missing there or was changed."""
    file = folder / f"{sha256}.zip"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        write_atomically(file, fetch())
    return file


def trouble_with(data_dir: Path) -> str:
    """Say what is wrong with the data directory and what to do about it; an empty string if it has space."""
    try:
        if shutil.disk_usage(data_dir).free >= LEAST_FREE_BYTES:
            return ""
        return "is on a full disk: free some space; until then nothing is stored, and trials wait"
    except OSError as error:
        return f"cannot be used ({error.strerror}): stop ScaMP, and restore it"
