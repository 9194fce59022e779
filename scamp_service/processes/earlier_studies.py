"""Finds the earlier studies that a study names in ``search.history``, and reads their trials."""

from __future__ import annotations

from collections.abc import Sequence

from scamp_service.model import Study
from scamp_service.search.earlier import EarlierStudy, earlier_trials
from scamp_service.search.history import Observation
from scamp_service.search.proposer import SearchEnded
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from scamp_service.study.spec import StudySpec


def earlier_of(store: Store, study_id: int, spec: StudySpec) -> Sequence[Observation]:
    """The trials of earlier studies that count as history of this one. Raises ``SearchEnded`` for what is not there."""
    studies = []
    for earlier in spec.search.history:
        study = _earlier_study(store, store.studies.get(study_id), earlier.study)
        if study is None:
            raise SearchEnded(f"search.history names the study {earlier.study!r}, and there is none before this one")
        theirs, ours = Objectives.of_spec(study.spec), spec.every_objective
        if theirs != ours:
            raise SearchEnded(f"search.history: study {study.id} has the objective {theirs}, and not {ours}")
        studies.append(EarlierStudy(store.trials.every(study.id), earlier.weight))
    return earlier_trials(spec, studies)


def _earlier_study(store: Store, later: Study, name_or_id: str | int) -> Study | None:
    """The newest study before ``later`` with the name or id ``name_or_id``; in its project, if it is a user's."""
    before = later.id
    projects = [later.project] if later.owner else None
    while page := store.studies.page(after=before, newest_first=True, projects=projects):
        for study in page:
            if name_or_id in (study.id, study.name):
                return study
        before = page[-1].id
    return None
