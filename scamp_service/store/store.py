"""The study database: every acknowledged study, trial and metric, and the only truth about what runs.

Moves are compare-and-set: a lost race returns ``False``, raises nothing and changes nothing. Each method is one
transaction, which also writes the events about its changes. Many processes and threads may use it at once. Methods
that only read are in ``reads``. In ``writes`` are those that ranks call (``reports``), those of the leader (``leases``)
and requests of users about a study that exists (``requests``). Groups with one caller each are objects of their own:
``Store.removals`` for the sweeper, ``Store.external`` for studies and trials of programs that use Optuna, and
``Store.table`` for the table of trials. A database that cannot be used now raises ``Unavailable``.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import (
    ATTEMPT_MOVES,
    LIVE_STUDIES,
    LIVE_TRIALS,
    OPEN_ATTEMPTS,
    STUDY_MOVES,
    TRIAL_MOVES,
    AttemptState,
    Origin,
    Outcome,
    StudyState,
    TrialState,
    WaitsFor,
    seen_state,
)
from scamp_service.model import NO_CHANGES, Attempt, Json, Sized, Study, Trial, TrialChanges
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.database import Database
from scamp_service.store.events import ClusterState, TrialChange
from scamp_service.store.options import option_json
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.rows import UNMEASURED, columns_of, new_trial, sized_columns
from scamp_service.store.table.trial_table import TrialTable
from scamp_service.store.tallies import (
    BESIDE,
    DEVICE_SECONDS,
    MIB_SECONDS,
    device_seconds,
    mib_seconds,
)
from scamp_service.store.writes.external import External
from scamp_service.store.writes.leases import Leases
from scamp_service.store.writes.removal import Removals
from scamp_service.store.writes.reports import Reports
from scamp_service.store.writes.requests import Requests
from scamp_service.store.writes.same_study import body_sha256_of, expect_same

MAX_BLOB_BYTES = 64 * 2**20
NO_PARENTS: Mapping[int, int] = {}
NO_REASONS: Mapping[int, str] = {}


class _TrialMove(NamedTuple):
    """A trial, its attempt count, its expected state, and its new one with the reason and what it waits for."""

    trial_id: int
    attempt: int
    expected: TrialState
    to: TrialState
    reason: str
    waits_for: WaitsFor | None = None


class Store(Reports, Leases, Requests):
    """Reads and writes of the study database."""

    def __init__(self, url: str) -> None:
        """Open the database, and create or upgrade its schema (Alembic).

        ``url`` is ``sqlite:///path``, ``sqlite://`` (in memory) or a PostgreSQL URL. Raises ``InvalidInput`` for any
        other, and ``Unavailable`` when the database cannot be reached or was written by a newer version of ScaMP.
        """
        super().__init__(Database(url))

    @property
    def table(self) -> TrialTable:
        """Reads of the API for the table of a study's trials."""
        return TrialTable(self._database)

    @property
    def external(self) -> External:
        """Reads and writes of studies and trials that other programs run. No lease fences these writes."""
        return External(self._database)

    @property
    def removals(self) -> Removals:
        """Reads and writes of the sweeper, which removes rows."""
        return Removals(self._database, self._fence)

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    # --- studies -----------------------------------------------------------------------------------------------

    def create_study(
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
        ``code`` is the sha256 that ``put_blob`` returned. Raises ``InvalidInput`` when nothing is stored under it.
        """
        row = {
            "name": spec["name"],
            "state": StudyState.RUNNING,
            "spec": spec,
            "code": code,
            "created_at": now,
            "idempotency_key": idempotency_key,
            "body_sha256": body_sha256_of(request or spec, code),
            "warnings": list(warnings),
        }
        with self._write() as connection:
            if code is not None and not connection.execute(sql.HAS_BLOB, {"sha256": code}).first():
                raise InvalidInput(f"no files with sha256 {code} are stored; upload them before the study")
            study_id = connection.execute(
                self._insert_new(schema.studies, "idempotency_key", returns="id"), row
            ).scalar()
            if study_id is not None:
                self._emit_study(connection, study_id, spec["name"], seen_state(StudyState.RUNNING, spec), now=now)
            else:
                study_id = expect_same(connection.execute(sql.BY_KEY, {"key": idempotency_key}).one(), row)
        return self.study(study_id)

    def study_of_key(self, request: Json, code: str | None, idempotency_key: str) -> Study | None:
        """The study that ``create_study`` has created with this key; None if there is none yet.

        Raises ``Conflict`` when the key belongs to another study.
        """
        with self._database.read() as connection:
            known_study = connection.execute(sql.BY_KEY, {"key": idempotency_key}).first()
        if known_study is None:
            return None
        row = {"idempotency_key": idempotency_key, "body_sha256": body_sha256_of(request, code)}
        return self.study(expect_same(known_study, row))

    def move_study(
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
        legal = _legal(STUDY_MOVES, expected, to)
        changes: dict[str, Any] = {"_state": to, "_reason": reason, "_ends_as": ends_as}
        if to not in LIVE_STUDIES:
            changes["_finished_at"] = now
        with self._write() as connection:
            if to is StudyState.COMPLETED:
                connection.execute(sql.LOCK_STUDY, {"study_id": study_id})
                if connection.execute(sql.HAS_LIVE_REQUESTED, {"study_id": study_id}).first():
                    return False
            statement = sql.move_study(legal, to not in LIVE_STUDIES)
            moved = connection.execute(statement, {"_id": study_id, **changes}).first()
            if moved:
                self._emit_study(connection, study_id, moved.name, to, now=now)
        return moved is not None

    # --- trials ------------------------------------------------------------------------------------------------

    def create_trials(
        self,
        study_id: int,
        candidates: Sequence[tuple[int, Json]],
        *,
        parents: Mapping[int, int] = NO_PARENTS,
        reasons: Mapping[int, str] = NO_REASONS,
        now: float,
    ) -> int:
        """Insert (place, params) as WAITING trials, and return how many are new. Existing trials are not changed.

        A place counts the trials of the study's own sampler. It is the number of the trial, unless there are trials of
        other origins: these have taken numbers, too. ``parents`` has by place the number of the trial with whose
        checkpoint one begins, the newest, or that of its best report if it counts by it; it begins anew if there is
        none, or if that trial trains now. ``reasons`` say by place why one was chosen among several proposals.
        """
        new: list[TrialChange] = []
        insert = self._insert_new(schema.trials, "study_id", "number", returns="id")
        with self._write() as connection:
            connection.execute(sql.LOCK_STUDY, {"study_id": study_id})
            others = int(connection.execute(sql.NUM_BESIDE_SEARCH, {"study_id": study_id}).scalar_one())
            for place, params in candidates:
                number = place + others
                row = new_trial(study_id, number, params, now) | {"proposal_reason": reasons.get(place, "")}
                if place in parents:
                    of_parent = {"study_id": study_id, "number": parents[place]}
                    if parent := connection.execute(sql.PARENT, of_parent).first():
                        row |= _parent(parent.parent_id, parent.parent_number, parent.step)
                trial_id = connection.execute(insert, row).scalar()
                if trial_id is not None:
                    new.append(TrialChange.of_new(trial_id, number, row.get("parent_number")))
            if new:
                self._tally(connection, study_id, {TrialState.WAITING.value: float(len(new))})
                self._emit_trials(connection, new, now, study_id)
        return len(new)

    def move_trial(
        self,
        trial_id: int,
        expected: TrialState,
        attempt: int,
        to: TrialState,
        *,
        reason: str = "",
        changes: TrialChanges = NO_CHANGES,
        sized: Sized | None = None,
        waits_for: WaitsFor | None = None,
        now: float,
    ) -> bool:
        """Move a trial to ``to`` if its state is ``expected`` and its attempt count is ``attempt``; otherwise False.

        ``sized`` is a new plan. ``expected == to`` is allowed and only applies the reason, what it ``waits_for``, the
        changes and the plan. A new state resets ``passed_over``, and sets ``finished_at`` if it is terminal, otherwise
        removes it. A move that ``lifecycle.TRIAL_MOVES`` does not allow fails an assert.
        """
        with self._write() as connection:
            move = _TrialMove(trial_id, attempt, expected, to, reason, waits_for)
            return self._move_trial(connection, move, changes, sized, now=now)

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

    def branch(self, trial: Trial, donor: Trial, params: Json, *, reason: str, step: int, now: float) -> bool:
        """End a PAUSED trial as PRUNED, and create a copy of ``donor`` with ``params`` in its place, or do nothing.

        The copy will begin with the donor's checkpoint of ``step``. False if the trial is no longer paused.
        """
        with self._write() as connection:
            connection.execute(sql.LOCK_STUDY, {"study_id": trial.study_id})
            move = _TrialMove(trial.id, trial.attempt, TrialState.PAUSED, TrialState.PRUNED, reason)
            moved = self._move_trial(connection, move, TrialChanges(judged_step=step), None, now=now)
            if moved:
                number = int(connection.execute(sql.NEXT_NUMBER, {"study_id": trial.study_id}).scalar_one())
                row = new_trial(trial.study_id, number, params, now) | _parent(donor.id, donor.number, step)
                row |= {"origin": Origin.BRANCH, "judged_step": step}
                new_id = connection.execute(
                    self._insert_new(schema.trials, "study_id", "number", returns="id"), row
                ).scalar_one()
                self._tally(connection, trial.study_id, {TrialState.WAITING.value: 1.0, BESIDE: 1.0})
                self._emit_trials(connection, [TrialChange.of_new(new_id, number, donor.number)], now, trial.study_id)
        return moved

    def _move_trial(
        self,
        connection: sa.Connection,
        move: _TrialMove,
        changes: TrialChanges,
        sized: Sized | None,
        *,
        now: float,
    ) -> bool:
        trial_id, attempt, expected, to, reason, waits_for = move
        assert to is expected or to in TRIAL_MOVES[expected], f"a trial never moves from {expected} to {to}"
        columns = {**changes, "state": to, "reason": reason, "waits_for": waits_for}
        if sized:
            columns |= sized_columns(sized)
        if to is not expected:
            columns["passed_over"] = 0
            if to not in LIVE_TRIALS or expected not in LIVE_TRIALS:
                columns["finished_at"] = None if to in LIVE_TRIALS else now
        values = {"_id": trial_id, "_expected_state": expected, "_expected_attempt": attempt, **_underscored(columns)}
        before = connection.execute(sql.BEFORE_MOVE, {"id": trial_id}).first()
        moved = connection.execute(sql.move_trial(tuple(sorted(columns))), values).first()
        if moved:
            if sized:
                options = [option_json(option, sized.plan) for option in sized.options]
                pipeline = sized.pipeline.to_json() if sized.pipeline else None
                row = {"trial_id": trial_id, "options": options, "pipeline": pipeline}
                connection.execute(self._replace(schema.comparisons, "trial_id"), row)
            self._tally_move(connection, before, moved)
            self._emit_trial(connection, trial_id, moved, now)
        return moved is not None

    def redate_refusals(self, *, now: float) -> None:
        """Let INFEASIBLE trials that a clock which was ahead has dated into the future have ended ``now``."""
        with self._write() as connection:
            connection.execute(sql.REDATE_REFUSALS, {"_now": now})

    # --- attempts ----------------------------------------------------------------------------------------------

    def begin_attempt(self, attempt: Attempt) -> bool:
        """Insert the attempt and move its trial from QUEUED to RUNNING.

        Returns False unless the trial is QUEUED and its attempt count is one less than this attempt's number. The
        trial's reason becomes that of the placement, and its plan that of the attempt. ``created_at`` of the
        attempt is the time of the move.
        """
        trial_id, now = attempt.trial_id, attempt.created_at
        columns = {"state": TrialState.RUNNING, "attempt": attempt.attempt, "reason": attempt.placement_reason}
        columns |= {"passed_over": 0, "waits_for": None, "requeued_because": ""}
        expected = {"_id": trial_id, "_expected_state": TrialState.QUEUED, "_expected_attempt": attempt.attempt - 1}
        with self._write() as connection:
            before = connection.execute(sql.BEFORE_MOVE, {"id": trial_id}).first()
            if before is None or before.state is not TrialState.QUEUED:
                return False
            columns["started_at"] = now if before.started_at is None else before.started_at
            if before.sized.plan != attempt.plan:
                columns |= UNMEASURED
            columns["sized"] = before.sized.taking(attempt.choice)
            statement = sql.move_trial(tuple(sorted(columns)))
            begun = connection.execute(statement, expected | _underscored(columns)).first()
            if begun:
                connection.execute(sql.INSERT_ATTEMPT, columns_of(attempt))
                self._tally_move(connection, before, begun)
                self._tally_gang(connection, begun.study_id, attempt)
                self._emit_trial(connection, trial_id, begun, now)
                self._emit_attempt(connection, trial_id, attempt.attempt, attempt, now, begun.study_id)
        return begun is not None

    def move_attempt(
        self,
        trial_id: int,
        attempt: int,
        expected: Iterable[AttemptState],
        to: AttemptState,
        *,
        outcome: Outcome | None = None,
        detail: str = "",
        now: float,
    ) -> bool:
        """Move an attempt to ``to`` if its state is one of ``expected`` that may become ``to``; otherwise False.

        An outcome that the ranks have already reported is kept, with its detail.
        """
        legal = _legal(ATTEMPT_MOVES, expected, to)
        columns: dict[str, Any] = {"state": to, "outcome": outcome, "detail": detail}
        if to not in OPEN_ATTEMPTS:
            columns["ended_at"] = now
        values = {"_trial_id": trial_id, "_attempt": attempt, **_underscored(columns)}
        with self._write() as connection:
            moved = connection.execute(sql.move_attempt(legal, to not in OPEN_ATTEMPTS), values).first()
            if moved:
                if moved.outcome is Outcome.OUT_OF_MEMORY:
                    self._measure(connection, trial_id)
                if to not in OPEN_ATTEMPTS:
                    study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
                    held = {DEVICE_SECONDS: device_seconds(moved, now), MIB_SECONDS: mib_seconds(moved, now)}
                    self._tally(connection, study_id, held)
                self._emit_attempt(connection, trial_id, attempt, moved, now)
        return moved is not None

    # --- the rest ----------------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their sha256, and return it in hex. Raises ``InvalidInput`` above 64 MiB."""
        if len(data) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"{len(data) / 2**20:.1f} MiB of files are more than the {MAX_BLOB_BYTES // 2**20} MiB allowed; "
                "leave out data, and read it from a path that all nodes share"
            )
        sha256 = hashlib.sha256(data).hexdigest()
        with self._database.read() as connection:
            if connection.execute(sql.HAS_BLOB, {"sha256": sha256}).first():
                return sha256
        with self._write() as connection:
            connection.execute(self._insert_new(schema.blobs, "sha256"), {"sha256": sha256, "data": data})
        return sha256

    def record_cluster(self, state: RecordedCluster, *, now: float) -> None:
        """Store the state of the cluster, with an event if it has changed.

        An unchanged state is written at most once a second, so that an idle controller spares the disk.
        """
        recorded, as_json = self.cluster(), state.to_json()
        changed = recorded is None or recorded[0] != state
        if recorded and not changed and abs(now - recorded[1]) < 1.0:
            return
        with self._write() as connection:
            row = {"id": 1, "state": as_json, "confirmed_at": now}
            connection.execute(self._replace(schema.cluster, "id"), row)
            if changed:
                self._emit(connection, ClusterState(**as_json), now)

    def identity(self) -> str:
        """The name of this database, eight random letters and digits: no other one has it."""
        with self._database.write() as connection:
            row = {"id": 1, "name": secrets.token_hex(4)}
            connection.execute(self._insert_new(schema.identity, "id"), row)
            return str(connection.execute(queries.IDENTITY).scalar_one())

    def write_nothing(self) -> None:
        """Commit a transaction that changes no value. Raises ``Unavailable`` when a study could not be stored now."""
        self.identity()
        with self._database.write() as connection:
            for statement in sql.CHANGE_NOTHING:
                connection.execute(statement)


def _parent(trial_id: int, number: int, step: int) -> dict[str, Any]:
    """Columns of a trial that begins with another one's checkpoint of ``step``."""
    return {"parent_id": trial_id, "parent_number": number, "parent_step": step}


_State = TypeVar("_State", bound=StrEnum)


def _legal(moves: Mapping[_State, frozenset[_State]], expected: Iterable[_State], to: _State) -> tuple[_State, ...]:
    """The states of ``expected`` that may become ``to``. An assert fails when there is none."""
    expected = sorted(expected)
    legal = tuple(state for state in expected if to in moves[state])
    assert legal, f"there is no move from {expected} to {to}"
    return legal


def _underscored(values: Mapping[str, Any]) -> dict[str, Any]:
    """The names with a leading underscore, as parameters of an UPDATE: see ``statements``."""
    return {f"_{name}": value for name, value in values.items()}
