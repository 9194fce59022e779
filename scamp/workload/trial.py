"""The trial that a workload trains for, and how it keeps a file."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ARTIFACTS = "artifacts"
"""Subfolder of a trial's checkpoints with the files that it keeps."""
NAME_PART = re.compile(r"[\w+=@-][\w .+=@-]{0,199}")
"""A folder or the last part of the name of a kept file."""
MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Slab:
    """The part of space that a rank has: number ``index`` of ``count`` equal ones; the whole is one of one."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> slice:
        """The slab of a dimension of this size. Raises ``ValueError`` if it cannot be divided evenly."""
        if size % self.count:
            raise ValueError(f"a dimension of {size} cannot be divided into {self.count} equal slabs")
        return slice(self.index * size // self.count, (self.index + 1) * size // self.count)


@dataclass(frozen=True, slots=True)
class TrialContext:
    """The study and the trial that this process trains, and its rank; ``is_real`` is False in a trace or a dry run.

    ``folder`` is where the trial keeps files, None where it has no such place. ``steps`` are the optimizer steps of the
    whole training, known when ``optimizer`` is called, and ``epoch_steps`` those of an epoch, rounded up.
    ``slab`` is the part of space that a workload with ``reads_slabs`` returns.
    """

    study_id: int = 0
    number: int = 0
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    folder: Path | None = None
    steps: int = 0
    epoch_steps: int = 1
    slab: Slab = Slab()

    @property
    def is_real(self) -> bool:
        """Whether a trial is trained."""
        return self.folder is not None

    def keep(self, name: str, content: Path | str | bytes) -> None:
        """Keep a file under ``name``, in place of one that had it; see ``Workload.artifact``."""
        path = checked_name(name)
        if not isinstance(content, bytes) and not Path(content).is_file():
            raise ValueError(f"there is no file {str(content)!r} to keep as {name!r}; pass its path, or its bytes")
        if self.folder is None or self.rank != 0:
            return
        target = self.folder / path
        if target.is_dir() or any((self.folder / parent).is_file() for parent in path.parents):
            raise ValueError(f"{name!r} cannot be kept, as one of its folders is a file or it is a folder: rename it")
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            if isinstance(content, bytes):
                staged.write_bytes(content)
            else:
                shutil.copyfile(content, staged)
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)


def checked_name(name: str) -> PurePosixPath:
    """The relative path of a kept file. Raises ``ValueError`` for one that could lead elsewhere."""
    path = PurePosixPath(name)
    if (
        not path.parts
        or path.is_absolute()
        or len(name) > MOST_CHARACTERS
        or not all(NAME_PART.fullmatch(part) for part in path.parts)
    ):
        raise ValueError(
            f"{name[:100]!r} cannot be the name of a file that a trial keeps: use letters, digits and .+=@_- , and / "
            "for folders"
        )
    return path
