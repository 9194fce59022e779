"""Folders of checkpoints keep their names, and only finished ones are found."""

from __future__ import annotations

from pathlib import Path

from workloads.training.checkpoints.name import CheckpointName, written_checkpoints


def test_the_folders_of_checkpoints_never_change_because_old_ones_are_resumed_from() -> None:
    assert CheckpointName(12, 340).folder(Path("/root")) == Path("/root/12/step-340")


def test_only_finished_checkpoints_of_the_trial_are_found_by_step(tmp_path: Path) -> None:
    for name in ("1/step-100", "1/step-20", "1/.step-30-ab.tmp", "1/step-x", "2/step-40"):
        (tmp_path / name).mkdir(parents=True)
    assert written_checkpoints(tmp_path, 1) == [CheckpointName(1, 20), CheckpointName(1, 100)]
    assert written_checkpoints(tmp_path, 3) == []
