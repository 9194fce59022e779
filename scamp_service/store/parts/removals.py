"""Removes what belongs to deleted studies, and what has become too old, a few rows at a time.

A study is deleted in one transaction (see ``requests``): from then on nobody sees it. Its rows are removed here. Every
call is one transaction and safe to repeat, so an interrupted removal continues where it was. The row of a deleted study
stays, as an empty one: its id is not given to another study, and a repeated request gets the same answer.

The newest trial and the newest event stay until there is a newer one: SQLite gives the largest id again once its row is
gone, but checkpoints are named by the id of their trial, and readers follow events by their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.store import schema
from scamp_service.store.parts.part import WritingPart
from scamp_service.store.parts.requests import ENDED
from scamp_service.store.schema import one_of

_S, _T, _E = schema.studies, schema.trials, schema.events

_is_deleted = _S.c.state == StudyState.DELETED
_newest_trial = select(func.max(_T.c.id)).scalar_subquery()
_newest_event = select(func.max(_E.c.id)).scalar_subquery()
_with_study = select(_T.c.id).join(_S, _S.c.id == _T.c.study_id).where(_is_deleted, _T.c.id < _newest_trial)
_alone = select(_T.c.id).where(_T.c.state == TrialState.DELETED, _T.c.finished_at.is_not(None))
_both = sa.union(_with_study, _alone).subquery().c.id
_DELETED_TRIALS = select(_both).order_by(_both).limit(bindparam("limit"))
_WITH_EVENTS = select(_S.c.id).where(
    _is_deleted, select(_E.c.id).where(_E.c.study_id == _S.c.id, _E.c.id < _newest_event).exists()
)
_UNUSED_CODE = select(_S.c.code).where(_is_deleted, _S.c.code.is_not(None))
_FORGET_CODE = sa.update(_S).where(_is_deleted).values(code=None)
_DELETE_BLOB = sa.delete(schema.blobs).where(
    schema.blobs.c.sha256 == bindparam("_code"), ~select(_S.c.id).where(_S.c.code == bindparam("_code")).exists()
)
_before = bindparam("before", type_=_S.c.finished_at.type)
_OLD = (
    select(_S.c.id)
    .where(one_of(_S.c.state, *ENDED), _S.c.finished_at < _before, _S.c.created_at < _before)
    .order_by(_S.c.id)
)


def _first_rows(table: sa.Table, *where: sa.ColumnElement[bool]) -> Any:
    """DELETE of the first ``limit`` rows of a table for which ``where`` is true."""
    keys = list(table.primary_key.columns)
    chosen = select(*keys).where(*where).order_by(*keys).limit(bindparam("_limit"))
    return sa.delete(table).where(sa.tuple_(*keys).in_(chosen))


_TRIAL_ROWS = tuple(
    _first_rows(table, table.c.trial_id == bindparam("_id"))
    for table in (
        schema.logs,
        schema.metrics,
        schema.comparisons,
        schema.measured,
        schema.attempts,
        schema.external_reports,
        schema.trial_attributes,
        schema.external_trials,
    )
)
"""Rows that refer to others come before those."""
_deleted_studies = select(_S.c.id).where(_is_deleted)
_DELETE_TRIAL = sa.delete(_T).where(
    _T.c.id == bindparam("_id"), _T.c.id < _newest_trial, _T.c.study_id.in_(_deleted_studies)
)
_EMPTY_TRIAL = (
    sa.update(_T).where(_T.c.id == bindparam("_id"), _T.c.state == TrialState.DELETED).values(finished_at=None)
)
_SOME_EVENTS = _first_rows(_E, _E.c.study_id == bindparam("_id"), _E.c.id < _newest_event)
_trials_of_study = select(_T.c.id).where(_T.c.study_id == bindparam("_id"))
_SOME_LOGS = _first_rows(schema.logs, schema.logs.c.trial_id.in_(_trials_of_study))


class Removals(WritingPart):
    """The methods that remove rows, for the sweeper of the leader."""

    def deleted_trials(self, *, limit: int = 100) -> list[int]:
        """Ids of deleted trials, and of those of deleted studies, with something that is still to be removed."""
        return self._values(_DELETED_TRIALS, limit=limit)

    def remove_trial(self, trial_id: int, *, limit: int) -> bool:
        """Remove at most ``limit`` rows of what belongs to a trial, and at last the trial; whether all are gone.

        One that was deleted alone keeps an empty row with its number, until its study is deleted.
        """
        left = limit
        with self._write() as connection:
            for statement in _TRIAL_ROWS:
                left -= connection.execute(statement, {"_id": trial_id, "_limit": left}).rowcount
                if left <= 0:
                    return False
            connection.execute(_EMPTY_TRIAL, {"_id": trial_id})
            connection.execute(_DELETE_TRIAL, {"_id": trial_id})
        return True

    def deleted_studies_with_events(self) -> list[int]:
        """Ids of deleted studies whose events are still to be removed."""
        return self._values(_WITH_EVENTS)

    def remove_events(self, study_id: int, *, limit: int) -> int:
        """Remove at most ``limit`` of a study's events, the oldest first; returns how many."""
        return self._remove(_SOME_EVENTS, study_id, limit)

    def remove_logs(self, study_id: int, *, limit: int) -> int:
        """Remove at most ``limit`` log lines of a study; returns how many."""
        return self._remove(_SOME_LOGS, study_id, limit)

    def remove_unused_code(self) -> list[str]:
        """Remove the files of deleted studies that no other study uses; returns their sha256."""
        codes: Sequence[str] = self._values(_UNUSED_CODE)
        if not codes:
            return []
        with self._write() as connection:
            connection.execute(_FORGET_CODE)
            return [code for code in codes if connection.execute(_DELETE_BLOB, {"_code": code}).rowcount]

    def studies_ended_before(self, time: float) -> list[int]:
        """Ids of the studies that began and ended before ``time`` and are not deleted.

        One that ended before it began has ended by a wrong clock.
        """
        return self._values(_OLD, before=time)

    def _remove(self, statement: Any, study_id: int, limit: int) -> int:
        with self._write() as connection:
            return int(connection.execute(statement, {"_id": study_id, "_limit": limit}).rowcount)
