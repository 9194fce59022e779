"""Folders for temporary files that do not stay for ever when their process is killed: the next one removes them.

A process holds a lock in each of its folders, which the kernel releases when the process ends, however that happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads.files import untrusted

PREFIX = "scamp-"
_LOCK = ".in-use"
_locks: dict[Path, int] = {}


def make_folder(parent: Path | None = None) -> Path:
    """A new folder that only we can read, for as long as this process lives; ``parent`` is that of temporary files."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(folder, os.O_CREAT)
        if lock is not None:
            _locks[folder] = lock
            return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder of ``make_folder`` and everything in it."""
    with contextlib.suppress(OSError):
        untrusted.remove(folder)  # users' code may have written in it as another user
    os.close(_locks.pop(folder))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for as long as the context lasts."""
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_forgotten(parent: Path | None = None) -> None:
    """Remove the folders of this user whose processes have ended without removing them."""
    for folder in forgotten_folders(parent):
        with contextlib.suppress(OSError):  # somebody else removes it
            untrusted.remove(folder)


def forgotten_folders(parent: Path | None = None) -> Iterator[Path]:
    """The folders of this user whose processes have ended without removing them. Each is locked while it is yielded."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else removes it, or it is another user's
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = _lock(folder)
            if lock is not None:
                try:
                    yield folder
                finally:
                    os.close(lock)


def _lock(folder: Path, flags: int = 0) -> int | None:
    """The lock of a folder; None if another process holds it, or has removed the folder."""
    file = folder / _LOCK
    try:
        lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(file)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
