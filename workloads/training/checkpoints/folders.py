"""Folders of checkpoints as files: shared by all ranks, complete or not there, and what went wrong in words."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata

from workloads.files import untrusted
from workloads.files.untrusted import open_plain
from workloads.training.checkpoints.agreed import barrier, count_ranks, from_rank_0, rank
from workloads.training.faults import StorageFault, storage_error

SEEN_SECONDS = 5.0  # how long a network file system may hide a new file from other hosts


def expect_shared_folder(directory: Path) -> None:
    """Raise ``StorageFault`` on every rank of a gang unless all of them see the same ``directory``.

    Otherwise each host would keep the shards of its own ranks, and no checkpoint would ever be whole. Rank 0 writes a
    file with a random name, and the others look for it.
    """
    marker = directory / from_rank_0(f".shared-{uuid.uuid4().hex}")
    with explained(f"the folder {directory} cannot be used for checkpoints"):
        if rank() == 0:
            directory.mkdir(parents=True, exist_ok=True)
            for forgotten in directory.glob(".shared-*"):  # by a rank 0 that was killed here
                forgotten.unlink()
            marker.touch()
        barrier()
        num_blind = count_ranks(not _appears(marker))
        if rank() == 0:
            marker.unlink(missing_ok=True)
    if num_blind:
        raise StorageFault(
            f"ranks do not share the checkpoint folder {directory}: {num_blind} of {dist.get_world_size()} do not see "
            "what rank 0 writes there; set SCAMP_CHECKPOINT_DIR to a folder that all nodes see, such as an NFS mount"
        )


def commit(staged: Path, target: Path) -> None:
    """Rename a complete checkpoint to ``target``, unless that exists: all attempts of a trial train the same curve."""
    if target.exists():
        shutil.rmtree(staged)
    else:
        staged.rename(target)
        _sync(target.parent)


def unfinished(target: Path, tag: str) -> Path:
    """Folder next to ``target`` for a checkpoint that is being written or deleted; ``tag`` makes it the only one."""
    return target.parent / f".{target.name}-{tag}.tmp"


def remove(target: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a half-deleted one is never taken for a whole one."""
    doomed = unfinished(target, uuid.uuid4().hex)
    with suppress(OSError):
        target.rename(doomed)
        untrusted.remove(doomed)


def remove_unfinished(directory: Path) -> None:
    """Delete what killed ranks have left. No other attempt of the trial writes here: it would have ended first."""
    for left in directory.glob(".step-*.tmp"):
        with suppress(OSError):
            untrusted.remove(left)


def expect_whole(staged: Path, written: Metadata) -> None:
    """Raise ``StorageFault`` if this rank does not see every file that the ranks have written."""
    file_names = {entry.relative_path for entry in (written.storage_data or {}).values()}
    missing = file_names - {path.name for path in staged.iterdir()}
    if missing:
        raise StorageFault(
            f"{len(missing)} of the {len(file_names)} files of the checkpoint are not in {staged.parent}: the ranks do "
            "not share it; set SCAMP_CHECKPOINT_DIR to a folder that all nodes see"
        )


@contextmanager
def explained(task: str) -> Iterator[None]:
    """Turn a failed file operation into a ``StorageFault`` that begins with ``task``."""
    try:
        yield
    except StorageFault:
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        why = storage_error(error)
        if not why:
            raise
        raise StorageFault(f"{task}: {why}") from error


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def read_json(folder: Path, name: str) -> Any:
    """The value in a file of a checkpoint's folder. Raises ``OSError`` and ``ValueError``."""
    with open_plain(folder, name) as file:
        return json.load(file)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON and wait until it is on disk."""
    with open(path, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def replace_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON in place of ``path``, which readers see as it was or as it is now."""
    new = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    write_json(new, value)
    new.replace(path)


def _sync(directory: Path) -> None:
    """Write the folder itself to disk, without which a rename in it may not survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
