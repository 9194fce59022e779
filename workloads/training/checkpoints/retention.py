"""Decides which checkpoints of a trial may be deleted. Pure; ``checkpoint`` deletes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from workloads.training.checkpoints.name import CheckpointName

KEEP = 2


def outdated(
    written: Iterable[CheckpointName], newest: CheckpointName, needed: Collection[CheckpointName]
) -> list[CheckpointName]:
    """Checkpoints of a trial that may be deleted, once ``newest`` is written; ``written`` are all of this trial.

    Kept are the last ``KEEP`` up to it, those ``needed``, and later ones: they belong to an attempt whose reports were
    lost. ``needed`` are those from which a trial will resume, this one or another: the study database has recorded
    them, or may be recording them now.
    """
    past = sorted(name for name in written if name.step <= newest.step)
    return [name for name in past[:-KEEP] if name not in needed]
