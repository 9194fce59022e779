"""Names of checkpoints, by which everybody means the same one: who writes, keeps, records or resumes from it.

Without torch, because the controller names checkpoints too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """The checkpoint that trial ``trial_id`` wrote after ``step`` steps, as its study counts them."""

    trial_id: int
    step: int

    def folder(self, root: Path) -> Path:
        """Its folder, ``root/trial_id/step-N``."""
        return trial_folder(root, self.trial_id) / f"step-{self.step}"


@dataclass(frozen=True, slots=True)
class Donor:
    """A checkpoint of another trial with whose weights a new one begins, and the ``params`` of that trial."""

    checkpoint: CheckpointName
    params: Mapping[str, Any]


def trial_folder(root: Path, trial_id: int) -> Path:
    """Folder of all checkpoints of a trial."""
    return root / str(trial_id)


def written_checkpoints(root: Path, trial_id: int) -> list[CheckpointName]:
    """The trial's checkpoints that have a folder, by step."""
    matches = [re.fullmatch(r"step-(\d+)", path.name) for path in trial_folder(root, trial_id).glob("step-*")]
    return sorted(CheckpointName(trial_id, int(match[1])) for match in matches if match)
