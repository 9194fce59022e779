"""Decides which checkpoints of a trial may be deleted. Pure; ``checkpoint`` deletes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

KEEP = 2


def outdated(steps: Iterable[int], newest: int, needed: Collection[int]) -> list[int]:
    """Steps whose checkpoints may be deleted, once that of step ``newest`` is written.

    Kept are the last ``KEEP`` up to it, those ``needed``, and later ones: they belong to an attempt whose reports were
    lost. ``needed`` are those that the study database has recorded, or may be recording now: a trial resumes from them.
    """
    past = sorted(step for step in steps if step <= newest)
    return [step for step in past[:-KEEP] if step not in needed]
