"""Files of a trial as the API sends them: those that its workload keeps, and its last checkpoint as one archive.

Users' code writes in the folders that hold them, so everything is opened by ``workloads.files.untrusted``.
"""

from __future__ import annotations

import errno
import os
import resource
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from scamp_service.errors import NotFound, Unavailable
from scamp_service.model import Trial
from scamp_service.remote.copies import Copies, NotStored
from workloads.files.untrusted import names_in, open_folder, open_in, open_plain
from workloads.training.checkpoints.name import CheckpointName
from workloads.trial import ARTIFACTS, checked_name, kept_files

_CHUNK = 2**20
_SHARE_OF_DESCRIPTORS = 1 / 4
"""The part of this process's file descriptors that one archive may take."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that a trial keeps: its name, its size, and when it was written (seconds since the epoch)."""

    name: str
    num_bytes: int
    written_at: float


def list_kept(root: Path, trial_id: int) -> list[KeptFile]:
    """The files that a trial keeps below ``root``, the folder of all checkpoints; by name."""
    files = kept_files(root, f"{trial_id}/{ARTIFACTS}")
    return [KeptFile(name, status.st_size, status.st_mtime) for name, status in files]


def open_kept(root: Path, trial_id: int, name: str) -> BinaryIO:
    """A kept file, opened for reading. Raises ``NotFound``, and ``Unavailable`` without a free file descriptor."""
    try:
        return open_plain(root, f"{trial_id}/{ARTIFACTS}/{checked_name(name)}")
    except ValueError as error:
        raise NotFound(str(error)) from None
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"the trial keeps no file {name[:100]!r}") from None
    except OSError as error:
        raise _unread(f"the file {name[:100]!r} of the trial cannot be read", error) from None


def counted_checkpoint(
    root: Path, trial: Trial, last: CheckpointName | None, copies: Copies | None = None
) -> CheckpointName | None:
    """The checkpoint by which a trial counts: that of its best report if this is kept, or else the ``last`` one.

    It may be among the ``copies`` in object storage.
    """
    best = None if trial.best_step is None else CheckpointName(trial.id, trial.best_step)
    if best is None or best == last:
        return last
    is_kept = _is_folder(root, best) or (copies is not None and copies.manifest(best) is not None)
    return best if is_kept else last


def bring(copies: Copies, checkpoint: CheckpointName) -> None:
    """Have a checkpoint on this host. Raises ``NotFound`` and ``Unavailable``."""
    try:
        copies.bring(checkpoint)
    except NotStored as error:
        raise NotFound(f"{error}: it may still be on the host that trains") from None


def archive(root: Path, checkpoint: CheckpointName) -> Iterator[bytes]:
    """The files of a checkpoint as a tar archive, in parts. Raises ``NotFound`` before the first part.

    All files are opened first, so that a checkpoint which is deleted meanwhile is still whole. One that is cut off
    meanwhile raises ``OSError`` at its end, so that nobody takes the archive for a whole one.
    """
    with ExitStack() as stack:
        files = [(name, stack.enter_context(file)) for name, file in _opened(root, checkpoint)]
        parts = _archive(files, stack.pop_all())
        next(parts)  # from here on it closes the files, also if nobody reads on
        return parts


def _archive(files: list[tuple[str, BinaryIO]], stack: ExitStack) -> Iterator[bytes]:
    with stack:
        yield b""
        for name, file in files:
            header = tarfile.TarInfo(name)
            header.size = os.fstat(file.fileno()).st_size
            yield header.tobuf()
            yield from first_bytes(file, header.size)
            yield bytes(-header.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def first_bytes(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """``num_bytes`` of a file from where it stands, in parts: not more, even if it grows.

    Raises ``OSError`` when it has become shorter.
    """
    while num_bytes > 0:
        part = file.read(min(_CHUNK, num_bytes))
        if not part:
            raise OSError(errno.EIO, "a file of a trial became shorter while it was sent")
        num_bytes -= len(part)
        yield part


def _opened(root: Path, checkpoint: CheckpointName) -> Iterator[tuple[str, BinaryIO]]:
    path = checkpoint.folder(root)
    most = _SHARE_OF_DESCRIPTORS * resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        with open_folder(root, str(path.relative_to(root))) as folder:
            names = names_in(folder)
            if len(names) > most:
                raise Unavailable(
                    f"the checkpoint of step {checkpoint.step} has {len(names)} files or more, for which this process "
                    "may not open enough files; raise its limit (`ulimit -n`)"
                )
            for name in names:
                yield name, open_in(folder, name, Path(name))
    except OSError as error:
        raise _unread(f"the checkpoint of step {checkpoint.step} cannot be read", error) from None


def _is_folder(root: Path, checkpoint: CheckpointName) -> bool:
    try:
        with open_folder(root, str(checkpoint.folder(root).relative_to(root))):
            return True
    except OSError:
        return False


def _unread(words: str, error: OSError) -> NotFound | Unavailable:
    """The answer to ``error``, without its path: that is one of our host, and no business of who asks."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Unavailable(f"{words}: this process may not open more files; raise its limit (`ulimit -n`)")
    return NotFound(f"{words}: {error.strerror}")
