"""Studies that other programs create and end through Optuna, and what Optuna stores about any study.

``exchange.optuna_storage`` translates between these methods and Optuna; nothing here imports it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, select

from scamp_service.errors import Conflict
from scamp_service.lifecycle import StudyState
from scamp_service.model import Json, Study
from scamp_service.store import schema
from scamp_service.store import statements as sql
from scamp_service.store.parts.part import WritingPart, no_study

_S, _SA = schema.studies, schema.study_attributes
exists = _S.c.state != StudyState.DELETED
"""Condition that a study is not deleted."""

_EVERY_STUDY = select(*(_S.c[name] for name in Study.__slots__)).where(exists).order_by(_S.c.id)
_NAMED = select(_S.c.id).where(_S.c.name == bindparam("name"), exists).order_by(_S.c.id)
_STUDY_STATE = select(_S.c.state).where(_S.c.id == bindparam("id"), exists)
_END_STUDY = (
    sa.update(_S)
    .where(_S.c.id == bindparam("_id"), _S.c.state == StudyState.EXTERNAL)
    .values(state=StudyState.COMPLETED, finished_at=bindparam("_finished_at"))
    .returning(_S.c.name)
)
_STUDY_ATTRIBUTES = select(_SA.c.name, _SA.c.value).where(
    _SA.c.study_id == bindparam("study_id"),
    _SA.c.is_system == bindparam("is_system"),
    _SA.c.name.not_like("scamp:%"),
)


class ExternalStudies(WritingPart):
    """The methods for studies of other programs."""

    def create_study(self, name: str, spec: Json, *, now: float) -> int:
        """Create an EXTERNAL study with what is known of it as ``spec``. Raises ``Conflict`` if the name is taken."""
        row = {"name": name, "state": StudyState.EXTERNAL, "spec": spec, "created_at": now, "body_sha256": ""}
        with self._write() as connection:
            self._database.order_commits(connection)  # nobody else takes the name meanwhile
            if connection.execute(_NAMED, {"name": name}).first():
                raise Conflict(f"there is a study called {name!r}; choose another name, or load that study")
            study_id = int(connection.execute(sa.insert(_S).returning(_S.c.id), row).scalar_one())
            self._emit_study(connection, study_id, name, StudyState.EXTERNAL, now=now)
        return study_id

    def add_study(self, name: str, spec: Json, *, now: float, created_at: float) -> int:
        """Create an EXTERNAL study that began at ``created_at``, also if another one has its name."""
        row = {"name": name, "state": StudyState.EXTERNAL, "spec": spec, "created_at": created_at, "body_sha256": ""}
        with self._write() as connection:
            study_id = int(connection.execute(sa.insert(_S).returning(_S.c.id), row).scalar_one())
            self._emit_study(connection, study_id, name, StudyState.EXTERNAL, now=now)
        return study_id

    def end_study(self, study_id: int, *, finished_at: float, now: float) -> bool:
        """Move an EXTERNAL study to COMPLETED, as one that has ended at ``finished_at``; otherwise False."""
        with self._write() as connection:
            name = connection.execute(_END_STUDY, {"_id": study_id, "_finished_at": finished_at}).scalar()
            if name is not None:
                self._emit_study(connection, study_id, name, StudyState.COMPLETED, now=now)
        return name is not None

    def every_study(self) -> list[Study]:
        """All studies that are not deleted, by id."""
        return self._all(Study, _EVERY_STUDY)

    def studies_named(self, name: str) -> list[int]:
        """Ids of the studies with exactly this name, by id."""
        return self._values(_NAMED, name=name)

    def study_state(self, study_id: int) -> StudyState:
        """The state of a study. Raises ``NotFound``."""
        state: StudyState | None = self._value(_STUDY_STATE, id=study_id)
        if state is None:
            raise no_study(study_id)
        return state

    def set_study_attribute(self, study_id: int, name: str, value: Any, *, is_system: bool) -> None:
        """Set what Optuna or its user stores about a study. Raises ``NotFound``."""
        statement = sql.upsert(self._database.sqlite, _SA)
        with self._write() as connection:
            if connection.execute(_STUDY_STATE, {"id": study_id}).first() is None:
                raise no_study(study_id)
            row = {"study_id": study_id, "is_system": is_system, "name": name, "value": value}
            connection.execute(statement, row)

    def study_attributes(self, study_id: int, *, is_system: bool) -> dict[str, Any]:
        """Attributes that Optuna or its user has stored with a study."""
        return dict(self._rows(_STUDY_ATTRIBUTES, study_id=study_id, is_system=is_system))
