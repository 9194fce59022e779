"""Studies: creates, moves and reads them. Requests of users about one that exists are in ``requests``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from scamp_service.errors import Conflict, InvalidInput
from scamp_service.lifecycle import LIVE_STUDIES, STUDY_MOVES, StudyState, seen_state
from scamp_service.model import Json, Study
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.parts.part import WritingPart, legal_states, no_study

PROVENANCE = "scamp:provenance"
_A = schema.study_attributes.c
_PROVENANCE = sa.select(_A.value).where(
    _A.study_id == sa.bindparam("study_id"), _A.is_system, _A.name == sa.bindparam("name")
)


class Studies(WritingPart):
    """Reads and writes of studies."""

    def create(
        self,
        spec: Json,
        *,
        request: Json | None = None,
        code: str | None = None,
        idempotency_key: str | None = None,
        warnings: Sequence[str] = (),
        now: float,
    ) -> Study:
        """Create a RUNNING study, and return it.

        The same ``idempotency_key`` and study return the first one; another study raises ``Conflict``. ``request`` is
        ``spec`` without defaults: a repeated request is the same study also when the defaults have changed since.
        ``code`` is the sha256 that ``Blobs.put`` returned. Raises ``InvalidInput`` when nothing is stored under it.
        """
        row = {
            "name": spec["name"],
            "state": StudyState.RUNNING,
            "spec": spec,
            "code": code,
            "created_at": now,
            "idempotency_key": idempotency_key,
            "body_sha256": _body_sha256(request or spec, code),
            "warnings": list(warnings),
            "owner": self._actor.name if self._actor else "",
            "project": spec.get("project", ""),
        }
        with self._write() as connection:
            if code is not None and not connection.execute(sql.HAS_BLOB, {"sha256": code}).first():
                raise InvalidInput(f"no files with sha256 {code} are stored; upload them before the study")
            study_id = connection.execute(
                self._insert_new(schema.studies, "idempotency_key", returns="id"), row
            ).scalar()
            if study_id is not None:
                self._record(connection, "submit", study_id, name=spec["name"], project=row["project"])
                self._emit_study(connection, study_id, spec["name"], seen_state(StudyState.RUNNING, spec), now=now)
            else:
                study_id = _expect_same(connection.execute(sql.BY_KEY, {"key": idempotency_key}).one(), row)
        return self.get(study_id)

    def note_provenance(self, study_id: int, provenance: Json) -> None:
        """Store where a study comes from, unless that is known."""
        row = {"study_id": study_id, "is_system": True, "name": PROVENANCE, "value": provenance}
        insert = self._insert_new(schema.study_attributes, "study_id", "is_system", "name")
        with self._write() as connection:
            connection.execute(insert, row)

    def provenance(self, study_id: int) -> Json:
        """Where a study comes from; empty if that is not known."""
        provenance: Json = self._value(_PROVENANCE, study_id=study_id, name=PROVENANCE) or {}
        return provenance

    def of_key(self, request: Json, code: str | None, idempotency_key: str) -> Study | None:
        """The study that ``create`` has created with this key; None if there is none yet.

        Raises ``Conflict`` when the key belongs to another study.
        """
        known_study = self._row(sql.BY_KEY, key=idempotency_key)
        if known_study is None:
            return None
        row = {"idempotency_key": idempotency_key, "body_sha256": _body_sha256(request, code)}
        return self.get(_expect_same(known_study, row))

    def move(
        self,
        study_id: int,
        expected: Iterable[StudyState],
        to: StudyState,
        *,
        reason: str = "",
        ends_as: StudyState | None = None,
        now: float,
    ) -> bool:
        """Move a study to ``to`` if its state is one of ``expected`` that may become ``to``; otherwise False.

        One with a live trial that a user has enqueued or retried is not COMPLETED: that may have been a moment ago.
        ``ends_as`` is the final state of one that becomes STOPPING, if that is not STOPPED.
        """
        states = legal_states(STUDY_MOVES, expected, to)
        changes: dict[str, Any] = {"_state": to, "_reason": reason, "_ends_as": ends_as}
        if to not in LIVE_STUDIES:
            changes["_finished_at"] = now
        with self._write() as connection:
            if to is StudyState.COMPLETED:
                connection.execute(sql.LOCK_STUDY, {"study_id": study_id})
                if connection.execute(sql.HAS_LIVE_REQUESTED, {"study_id": study_id}).first():
                    return False
            statement = sql.move_study(states, to not in LIVE_STUDIES)
            moved = connection.execute(statement, {"_id": study_id, **changes}).first()
            if moved:
                self._record(connection, "stop" if to is StudyState.STOPPING else to.value.lower(), study_id)
                self._emit_study(connection, study_id, moved.name, to, now=now)
        return moved is not None

    def note_ran(self, seconds: Mapping[int, float]) -> None:
        """Store how long these studies have run."""
        if seconds:
            with self._write() as connection:
                connection.execute(sql.NOTE_RAN, [{"_id": key, "_ran_seconds": ran} for key, ran in seconds.items()])

    def note_regret(self, study_id: int, bound: float, *, now: float) -> None:
        """Store the bound on the regret of a study, in units of its objective."""
        with self._write() as connection:
            noted = connection.execute(sql.NOTE_REGRET, {"_id": study_id, "_regret_bound": bound}).first()
            if noted:
                self._emit_study(connection, study_id, noted.name, seen_state(noted.state, noted.spec), now=now)

    def get(self, study_id: int) -> Study:
        """The study with this id. Raises ``NotFound``."""
        study = self._first(Study, queries.ONE_STUDY, id=study_id)
        if study is None:
            raise no_study(study_id)
        return study

    def page(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        live: bool = False,
        sort: str = "id",
        newest_first: bool = False,
        owner: str | None = None,
        projects: Sequence[str] | None = None,
        states: Sequence[StudyState] | None = None,
        tag: str | None = None,
        words: str = "",
        archived: bool | None = None,
    ) -> list[Study]:
        """Studies behind ``after`` (0: from the first), by ascending id; with ``live`` only those RUNNING or STOPPING.

        ``sort`` names another order (``queries.STUDY_SORTS``), and ``newest_first`` reverses it. The others choose
        where they are not None: ``projects`` and ``states`` are several, and each of the first ``words`` must be part
        of a study's name, tags, note, owner or project.
        """
        filters = {"after": after or None, "owner": owner, "projects": projects, "states": states}
        filters |= {"archived": archived, "tag": None if tag is None else queries.pattern_of(schema.dump_json(tag))}
        for index, word in enumerate(words.lower().split()[: queries.MOST_WORDS]):
            filters[f"word{index}"] = queries.pattern_of(word)
        present = {name: value for name, value in filters.items() if value is not None}
        return self._all(Study, queries.studies(live, newest_first, frozenset(present), sort), limit=limit, **present)

    def live(self) -> Iterator[Study]:
        """Yield all studies that are RUNNING or STOPPING, by ascending id."""
        after = 0
        while page := self.page(live=True, after=after):
            yield from page
            after = page[-1].id

    def project(self, study_id: int) -> str:
        """The project of a study, also of one that is deleted; empty if it has none, or there is none."""
        return str(self._value(queries.PROJECT, id=study_id) or "")


def _expect_same(stored: Any, row: Mapping[str, Any]) -> int:
    """The id of the stored study with this idempotency key. Raises ``Conflict`` unless ``row`` is the same study."""
    if stored.body_sha256 != row["body_sha256"]:
        key = row["idempotency_key"]
        raise Conflict(f"the idempotency key {key!r} belongs to study {stored.id}, which is different; take a new key")
    study_id: int = stored.id
    return study_id


def _body_sha256(spec: Json, code: str | None) -> str:
    """Hash of a study, whatever the order of its keys."""
    return hashlib.sha256(schema.dump_json([_sorted(spec), code]).encode()).hexdigest()


def _sorted(value: Any) -> Any:
    """``value`` with the keys of all its mappings sorted, so that their order does not matter."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value
