"""Step 8: ends studies that have nothing left to do, and stops studies whose trials all fail."""

from __future__ import annotations

from collections.abc import Iterator

from scamp_service.control.decide.effects import Effect, FinishStudy
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import StudyState

JOIN_SECONDS = 15.0
"""A study stays open for this long after it was found that a trial fits nowhere: nodes may still be joining."""
RETURN_SECONDS, RETURN_WORDS = 3600.0, "an hour"
"""This long where the cluster has lost the devices of the trial's plan: a node may be restarted or replaced."""


def finish_studies(s: Snapshot) -> Iterator[Effect]:
    """End each study that has no live trials and wants no new ones.

    A broken study, or one that has reached a limit of its budget, first becomes STOPPING, so that its trials end. Why,
    and as what it ends, is stored then: the trial that has reached a target may run out of memory meanwhile. A study
    with INFEASIBLE trials stays open until these verdicts have some age.
    """
    busy = {trial.study_id for trial in s.trials} | set(waiting_for_devices(s))
    for study in s.studies.values():
        progress = study.progress
        if progress.broken:
            yield FinishStudy(study.id, StudyState.STOPPING, progress.broken, StudyState.FAILED)
        elif progress.used_up:
            yield FinishStudy(study.id, StudyState.STOPPING, progress.used_up, StudyState.COMPLETED)
        elif study.id not in busy and progress.state is StudyState.STOPPING:
            yield FinishStudy(study.id, progress.ends_as or StudyState.STOPPED, progress.reason)
        elif study.id not in busy and not study.wants_trials:
            yield FinishStudy(study.id, StudyState.COMPLETED)


def waiting_for_devices(s: Snapshot) -> Iterator[int]:
    """Studies with INFEASIBLE trials that may still find devices, as these join or return."""
    yield from (trial.study_id for trial in s.refused)
    for refusals, seconds in s.refusals.items():
        if seconds < (RETURN_SECONDS if refusals.once_fit else JOIN_SECONDS):
            yield refusals.study_id
