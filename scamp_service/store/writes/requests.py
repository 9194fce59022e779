"""Requests about a study that was submitted before: to try candidates of the user's, to continue for longer, to delete.

A request that is repeated changes nothing: candidates have a key, and a budget is given as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, select

from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import LIVE_STUDIES, NO_PLAN_YET, STUDY_MOVES, Origin, StudyState, TrialState, WaitsFor
from scamp_service.model import Json
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.events import TrialChange
from scamp_service.store.schema import one_of
from scamp_service.store.tallies import BESIDE
from scamp_service.store.writes.transactions import Transactions
from scamp_service.study.parse import parse_study

EXTENDED = ("trials", "seconds", "device_hours")
"""Limits of a budget that may be raised later."""
KEY = "scamp:enqueued:"
"""Attributes of a study with this prefix hold the numbers of the trials that a request has enqueued, by its key."""

ENDED = sorted(state for state, moves in STUDY_MOVES.items() if StudyState.DELETED in moves)
"""States of a study that can be deleted."""

_S, _T, _A = schema.studies, schema.trials, schema.study_attributes
_STATE = select(_S.c.state, _S.c.name).where(_S.c.id == bindparam("id"))
_DELETE = (
    sa.update(_S)
    .where(_S.c.id == bindparam("_id"), one_of(_S.c.state, *ENDED))
    .values(state=StudyState.DELETED, name="", spec={}, reason="", idempotency_key=None, body_sha256="")
    .returning(_S.c.id)
)
_DELETE_TALLIES = sa.delete(schema.tallies).where(schema.tallies.c.study_id == bindparam("_id"))
_DELETE_ATTRIBUTES = sa.delete(schema.study_attributes).where(schema.study_attributes.c.study_id == bindparam("_id"))
_STUDY = (
    select(_S.c.name, _S.c.state, _S.c.spec)
    .where(_S.c.id == bindparam("study_id"), _S.c.state != StudyState.DELETED)
    .with_for_update(key_share=True)
)
_EXTEND = (
    sa.update(_S)
    .where(_S.c.id == bindparam("_id"))
    .values(spec=bindparam("_spec"), state=StudyState.RUNNING, finished_at=None, reason="", ends_as=None)
)
_KNOWN = select(_A.c.value).where(_A.c.study_id == bindparam("study_id"), _A.c.name == bindparam("name"))


class Requests(Transactions):
    """The methods of the store for requests of users about a study."""

    def enqueue(self, study_id: int, candidates: Sequence[Json], key: str, *, now: float) -> list[int]:
        """Add trials with these parameters, in addition to the study's budget; returns their numbers.

        A request with the same ``key`` returns the same. Raises ``NotFound``, and ``Conflict`` unless it is RUNNING.
        """
        name = KEY + key
        with self._write() as connection:
            study = self._asked_study(connection, study_id)
            known_number = connection.execute(_KNOWN, {"study_id": study_id, "name": name}).scalar()
            if known_number is not None:
                return list(known_number)
            if study.state is not StudyState.RUNNING:
                raise Conflict(f"study {study_id} is {study.state.value}; only a running study can try more candidates")
            first = int(connection.execute(sql.NEXT_NUMBER, {"study_id": study_id}).scalar_one())
            new: list[TrialChange] = []
            for number, params in enumerate(candidates, first):
                row = {"study_id": study_id, "number": number, "params": params, "origin": Origin.ENQUEUED}
                row |= {"state": TrialState.WAITING, "reason": NO_PLAN_YET, "waits_for": WaitsFor.PLAN}
                row["created_at"] = now
                trial_id = connection.execute(sa.insert(_T).returning(_T.c.id), row).scalar_one()
                new.append(TrialChange.of_new(trial_id, number))
            numbers = [change.number for change in new]
            row = {"study_id": study_id, "is_system": False, "name": name, "value": numbers}
            connection.execute(sa.insert(_A), row)
            num_new = float(len(new))
            self._tally(connection, study_id, {TrialState.WAITING.value: num_new, BESIDE: num_new})
            self._emit_trials(connection, new, now, study_id)
        return numbers

    def extend_study(self, study_id: int, limits: Mapping[str, Any], *, now: float) -> None:
        """Raise limits of a study's budget: those of ``EXTENDED``. A study that is COMPLETED runs again.

        Raises ``NotFound``, ``Conflict`` for one that was stopped or has failed, and ``InvalidInput`` for limits that
        are lower than before.
        """
        with self._write() as connection:
            study = self._asked_study(connection, study_id)
            if study.state not in (StudyState.RUNNING, StudyState.COMPLETED):
                raise Conflict(f"study {study_id} is {study.state.value}; clone it to run it again")
            spec = _extended(study.spec, limits)
            if spec == study.spec:
                return
            connection.execute(_EXTEND, {"_id": study_id, "_spec": spec})
            self._emit_study(connection, study_id, study.name, StudyState.RUNNING, now=now)

    def delete_study(self, study_id: int, *, now: float) -> None:
        """Delete a study that has ended: from now on nobody sees it. No effect if it is deleted already.

        Raises ``NotFound``, and ``Conflict`` while the study or any of its attempts has not ended.
        """
        with self._write() as connection:
            row = connection.execute(_STATE, {"id": study_id}).first()
            if row is None:
                raise NotFound(f"there is no study {study_id}; `scamp list` shows all studies")
            if row.state is StudyState.DELETED:
                return
            if row.state in LIVE_STUDIES:
                raise Conflict(
                    f"study {study_id} is {row.state.value}: stop it with `scamp stop {study_id}` or POST "
                    f"/v1/studies/{study_id}:stop, and delete it once it has ended"
                )
            if connection.execute(queries.HOLDS, {"study_id": study_id}).first():
                raise Conflict(
                    f"the last trials of study {study_id} are still being stopped; try again in a few seconds"
                )
            connection.execute(_DELETE_TALLIES, {"_id": study_id})
            connection.execute(_DELETE_ATTRIBUTES, {"_id": study_id})
            if connection.execute(_DELETE, {"_id": study_id}).first():
                self._emit_study(connection, study_id, row.name, StudyState.DELETED, now=now)

    def _asked_study(self, connection: sa.Connection, study_id: int) -> Any:
        """Name, state and spec of a study, which nobody else changes before the end of the transaction."""
        study = connection.execute(_STUDY, {"study_id": study_id}).first()
        if study is None:
            raise NotFound(f"there is no study {study_id}; `scamp list` shows all studies")
        if study.state is StudyState.EXTERNAL or "directions" in study.spec:
            raise Conflict(f"study {study_id} was run by other programs; ScaMP cannot continue it")
        return study


def _extended(spec: Json, limits: Mapping[str, Any]) -> Json:
    """The spec with these limits. Raises ``InvalidInput``."""
    budget = dict(spec["budget"])
    for name, limit in limits.items():
        before = budget.get(name)
        if name not in EXTENDED:
            raise InvalidInput(f"budget.{name} cannot be changed later; only {', '.join(EXTENDED)}")
        if before is None:
            raise InvalidInput(f"the study has no limit budget.{name} to raise")
        if not isinstance(limit, int | float) or isinstance(limit, bool) or limit < before:
            raise InvalidInput(f"budget.{name} must be a number of at least {before}, the limit so far; got {limit!r}")
        budget[name] = limit
    return parse_study({**spec, "budget": budget}).to_json()
