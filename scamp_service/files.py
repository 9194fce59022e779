"""Files of the data directory: small ones that several processes share, who may read them, and the space for them."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from scamp_service.settings import Settings

LEAST_FREE_BYTES = 2**20
LEAST_FREE_INODES = 100
FULL = {
    errno.ENOSPC: "free some space, or remove some files",
    errno.EDQUOT: "free some space in the quota of this user",
}
TOO_MANY_FILES = {
    errno.EMFILE: "allow each process more open files (`ulimit -n 4096`)",
    errno.ENFILE: "close some files",
}
OTHERS = 0o077  # permissions of the group and of everybody else

log = logging.getLogger("scamp.files")


_given_umask = -1


def close_new_files() -> None:
    """Let nobody else read the files that this process and its children make from here on."""
    global _given_umask
    _given_umask = os.umask(OTHERS)


def umask_of_ranks(settings: Settings) -> int:
    """The umask of ranks; -1 for that of this process. A folder for checkpoints that somebody chose may be shared."""
    is_chosen = settings.checkpoint_cache if settings.checkpoint_url else settings.checkpoint_dir
    return _given_umask if is_chosen else -1


def keep_private(settings: Settings) -> None:
    """Close the folders in the data directory for other users.

    The data directory itself is made so, but one that existed may hold other things. Ranks on a Ray that we have not
    started may belong to another user, who then needs the folders for code and checkpoints.
    """
    of_ranks = [] if settings.ray_address else ["code", "checkpoints"]
    for folder in (settings.data_dir / name for name in ("logs", "profiles", "device_kinds", *of_ranks)):
        try:
            if folder.stat().st_mode & OTHERS:
                folder.chmod(0o700)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("other users may read the files in %s: its mode cannot be changed (%s)", folder, error.strerror)


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file so that readers always see all of it or the previous one."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
        except OSError:
            os.unlink(temporary.name)  # it takes the space that is missing
            raise
    os.replace(temporary.name, file)


def with_remedy(error: OSError) -> str:
    """The error in words, with what to do if a disk is full or too many files are open."""
    remedy = {**FULL, **TOO_MANY_FILES}.get(error.errno or 0, "")
    return f"{error}: {remedy}" if remedy else str(error)


def code_zip(folder: Path, sha256: str, fetch: Callable[[], bytes]) -> Path:
    """The zip of a user's files in ``folder``; ``fetch`` gets it if it is missing there or was changed."""
    file = folder / f"{sha256}.zip"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        write_atomically(file, fetch())
    return file


def trouble_with(data_dir: Path) -> str:
    """Say what is wrong with the data directory and what to do about it; an empty string if it has space."""
    try:
        free_bytes, inodes = shutil.disk_usage(data_dir).free, os.statvfs(data_dir)
    except OSError as error:
        return f"cannot be used ({error.strerror}): stop ScaMP, and restore it"
    if free_bytes < LEAST_FREE_BYTES:
        return "is on a full disk: free some space; until then nothing is stored, and trials wait"
    if inodes.f_files and inodes.f_favail < LEAST_FREE_INODES:  # some file systems have no number of inodes
        return "is on a disk without free inodes: remove some files; until then nothing is stored, and trials wait"
    return ""


def trouble_with_data(settings: Settings) -> str:
    """Say what is wrong with the data directory. An API that runs alone, with PostgreSQL, may have none."""
    return trouble_with(settings.data_dir) if settings.data_dir.exists() else ""
