"""Files of a trial as the API sends them: those that its workload keeps, and its last checkpoint as one archive."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scamp_service.errors import NotFound
from scamp_service.model import Trial
from workloads.training.checkpoints.name import CheckpointName, trial_folder
from workloads.trial import ARTIFACTS, checked_name, kept_files

_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that a trial keeps: its name, its size, and when it was written (seconds since the epoch)."""

    name: str
    num_bytes: int
    written_at: float


def list_kept(root: Path, trial_id: int) -> list[KeptFile]:
    """The files that a trial keeps below ``root``, the folder of all checkpoints; by name."""
    files = kept_files(trial_folder(root, trial_id) / ARTIFACTS)
    return [KeptFile(name, status.st_size, status.st_mtime) for name, status in files]


def kept_path(root: Path, trial_id: int, name: str) -> Path:
    """The path of a kept file. Raises ``NotFound``."""
    folder = trial_folder(root, trial_id) / ARTIFACTS
    try:
        path = folder / checked_name(name)
    except ValueError as error:
        raise NotFound(str(error)) from None
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        raise NotFound(f"the trial keeps no file {name[:100]!r}")
    return path


def counted_checkpoint(root: Path, trial: Trial, last: CheckpointName | None) -> CheckpointName | None:
    """The checkpoint by which a trial counts: that of its best report if this is kept, or else the ``last`` one."""
    best = None if trial.best_step is None else CheckpointName(trial.id, trial.best_step)
    return best if best is not None and best.folder(root).is_dir() else last


def archive(root: Path, checkpoint: CheckpointName) -> Iterator[bytes]:
    """The files of a checkpoint as a tar archive, in parts. Raises ``NotFound`` before the first part.

    All files are opened first, so that a checkpoint which is deleted meanwhile is still whole.
    """
    folder = checkpoint.folder(root)
    try:
        files = [(path.name, path.open("rb")) for path in sorted(folder.iterdir())]
    except OSError as error:
        raise NotFound(f"the checkpoint of step {checkpoint.step} is not in {folder.parent}: {error}") from None

    def parts() -> Iterator[bytes]:
        try:
            for name, file in files:
                header = tarfile.TarInfo(name)
                header.size = file.seek(0, 2)
                file.seek(0)
                yield header.tobuf()
                while part := file.read(_CHUNK):
                    yield part
                yield bytes(-header.size % tarfile.BLOCKSIZE)
            yield bytes(2 * tarfile.BLOCKSIZE)
        finally:
            for _, file in files:
                file.close()

    return parts()
