"""The study database: every acknowledged study, trial and metric, and the only truth about what runs.

Moves are compare-and-set: a lost race returns ``False``, raises nothing and changes nothing. Each method is one
transaction, which also writes the events about its changes. Many processes and threads may use it at once. Methods
that only read are in ``reads``, those that remove in ``removal``. A database that cannot be used now raises
``Unavailable``.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, TypeVar

import sqlalchemy as sa

from scamp_service.errors import Conflict, Deposed, InvalidInput
from scamp_service.lifecycle import (
    ATTEMPT_MOVES,
    LIVE_STUDIES,
    LIVE_TRIALS,
    NO_PLAN_YET,
    OPEN_ATTEMPTS,
    STUDY_MOVES,
    TRIAL_MOVES,
    AttemptState,
    Outcome,
    StudyState,
    TrialState,
)
from scamp_service.model import Attempt, Json, Lease, LogLine, Metric, Sized, Study
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.database import Database
from scamp_service.store.options import option_json
from scamp_service.store.removal import Removals
from scamp_service.store.rows import TRIAL_CHANGES, attempt_columns, attempt_of, sized_columns
from scamp_service.store.tallies import (
    COLOCATED,
    DEVICE_SECONDS,
    RANKS,
    device_seconds,
    difference,
    measure,
    trial_tallies,
)
from scamp_service.study.parse import parse_study

MAX_BLOB_BYTES = 64 * 2**20


class Store(Removals):
    """Reads and writes of the study database."""

    def __init__(self, url: str) -> None:
        """Open the database, and create or upgrade its schema (Alembic).

        ``url`` is ``sqlite:///path``, ``sqlite://`` (in memory) or a PostgreSQL URL. Raises ``InvalidInput`` for any
        other, and ``Unavailable`` when the database cannot be reached or was written by a newer version of ScaMP.
        """
        super().__init__(Database(url))
        self._fence: Json = {}

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    # --- studies -----------------------------------------------------------------------------------------------

    def create_study(
        self,
        spec: Json,
        *,
        given: Json | None = None,
        code: str | None = None,
        idempotency_key: str | None = None,
        warnings: Sequence[str] = (),
        now: float,
    ) -> Study:
        """Create a RUNNING study, and return it.

        The same ``idempotency_key`` and study return the first one; another study raises ``Conflict``. ``given`` is
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
            "body_sha256": _body_sha256(given or spec, code),
            "warnings": list(warnings),
        }
        with self._write() as connection:
            if code is not None and not connection.execute(sql.HAS_BLOB, {"sha256": code}).first():
                raise InvalidInput(f"no files with sha256 {code} are stored; upload them before the study")
            study_id = connection.execute(
                self._insert_new(schema.studies, "idempotency_key", returns="id"), row
            ).scalar()
            if study_id is not None:
                self._emit(connection, "study", {"id": study_id, **_picked(row, "name", "state")}, now, study_id)
            else:
                study_id = _expect_same(connection.execute(sql.BY_KEY, {"key": idempotency_key}).one(), row)
        return self.study(study_id)

    def study_of_key(self, spec: Json, given: Json, code: str | None, idempotency_key: str) -> Study | None:
        """The study that ``create_study`` has created with this key; None if there is none yet.

        Raises ``Conflict`` when the key belongs to another study.
        """
        with self._database.read() as connection:
            found = connection.execute(sql.BY_KEY, {"key": idempotency_key}).first()
        if found is None:
            return None
        row = {"idempotency_key": idempotency_key, "spec": spec, "code": code}
        return self.study(_expect_same(found, {**row, "body_sha256": _body_sha256(given, code)}))

    def move_study(
        self, study_id: int, expected: Iterable[StudyState], to: StudyState, *, reason: str = "", now: float
    ) -> bool:
        """Move a study to ``to`` if its state is one of ``expected`` that may become ``to``; otherwise False."""
        legal = _legal(STUDY_MOVES, expected, to)
        changes: dict[str, Any] = {"_state": to, "_reason": reason}
        if to not in LIVE_STUDIES:
            changes["_finished_at"] = now
        with self._write() as connection:
            statement = sql.move_study(legal, to not in LIVE_STUDIES)
            moved = connection.execute(statement, {"_id": study_id, **changes}).first()
            if moved:
                self._emit(connection, "study", {"id": study_id, "name": moved.name, "state": to}, now, study_id)
        return moved is not None

    # --- trials ------------------------------------------------------------------------------------------------

    def create_trials(self, study_id: int, candidates: Sequence[tuple[int, Json]], *, now: float) -> int:
        """Insert (number, params) as WAITING trials, and return how many are new. Existing numbers are not changed."""
        new: list[dict[str, Any]] = []
        insert = self._insert_new(schema.trials, "study_id", "number", returns="id")
        with self._write() as connection:
            for number, params in candidates:
                row = {"study_id": study_id, "number": number, "params": params}
                row |= {"state": TrialState.WAITING, "reason": NO_PLAN_YET, "created_at": now}
                trial_id = connection.execute(insert, row).scalar()
                if trial_id is not None:
                    new.append({"id": trial_id, "number": number, "state": TrialState.WAITING, **_NOTHING_YET})
            if new:
                self._tally(connection, study_id, {TrialState.WAITING.value: float(len(new))})
                self._emit_all(connection, "trial", new, now, study_id)
        return len(new)

    def move_trial(
        self,
        trial_id: int,
        expected: TrialState,
        attempt: int,
        to: TrialState,
        *,
        now: float,
        sized: Sized | None = None,
        **changes: Any,
    ) -> bool:
        """Move a trial to ``to`` if its state is ``expected`` and its attempt count is ``attempt``; otherwise False.

        ``sized`` is a new plan, ``changes`` are columns (reason, value, …). ``expected == to`` is allowed and only
        applies the changes. A new state resets ``passed_over``, and sets ``finished_at`` if it is terminal, otherwise
        removes it. A move that ``lifecycle.TRIAL_MOVES`` does not allow fails an assert.
        """
        assert to is expected or to in TRIAL_MOVES[expected], f"a trial never moves from {expected} to {to}"
        assert set(changes) <= TRIAL_CHANGES, f"a move cannot change {sorted(set(changes) - TRIAL_CHANGES)}"
        changes |= sized_columns(sized) if sized else {}
        changes["state"] = to
        if to is not expected:
            changes["passed_over"] = 0
            if to not in LIVE_TRIALS or expected not in LIVE_TRIALS:
                changes["finished_at"] = None if to in LIVE_TRIALS else now
        given = {"_id": trial_id, "_expected": expected, "_attempt": attempt, **_underscored(changes)}
        with self._write() as connection:
            before = connection.execute(sql.COUNTS, {"id": trial_id}).first()
            moved = connection.execute(sql.move_trial(tuple(sorted(changes))), given).first()
            if moved:
                if sized:
                    options = [option_json(option, sized.plan) for option in sized.options]
                    row = {"trial_id": trial_id, "options": options, "pipeline": sized.pipeline}
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
        trial's reason becomes that of the placement. ``created_at`` of the attempt is the time of the move.
        """
        trial_id, now, row = attempt.trial_id, attempt.created_at, attempt_columns(attempt)
        begin = {"_id": trial_id, "_attempt": attempt.attempt, "_before": attempt.attempt - 1, "_now": now}
        with self._write() as connection:
            before = connection.execute(sql.COUNTS, {"id": trial_id}).first()
            begun = connection.execute(sql.BEGIN_TRIAL, {**begin, "_reason": attempt.placement_reason}).first()
            if begun:
                connection.execute(sql.INSERT_ATTEMPT, row)
                self._tally_move(connection, before, begun)
                self._tally_gang(connection, begun.study_id, attempt)
                self._emit_trial(connection, trial_id, begun, now)
                data = _picked(row, "attempt", "state", "devices", "mib_per_rank", "outcome", "detail")
                self._emit(connection, "attempt", {"trial": trial_id, **data}, now, begun.study_id, trial_id)
        return begun is not None

    def move_attempt(
        self,
        trial_id: int,
        attempt: int,
        expected: Iterable[AttemptState],
        to: AttemptState,
        *,
        now: float,
        **changes: Any,
    ) -> bool:
        """Move an attempt to ``to`` if its state is one of ``expected`` that may become ``to``; otherwise False.

        ``changes`` are columns of ``Attempt`` (outcome, detail). An outcome that the ranks have already reported is
        kept, with its detail.
        """
        legal = _legal(ATTEMPT_MOVES, expected, to)
        unknown = sorted(set(changes) - sql.ATTEMPT_CHANGES)
        assert not unknown, f"a move cannot change {unknown}"
        changes["state"] = to
        if to not in OPEN_ATTEMPTS:
            changes["ended_at"] = now
        given = {"_trial_id": trial_id, "_attempt": attempt, **_underscored(changes)}
        with self._write() as connection:
            moved = connection.execute(sql.move_attempt(legal, tuple(sorted(changes))), given).first()
            if moved:
                if moved.outcome is Outcome.OUT_OF_MEMORY:
                    self._measure(connection, trial_id)
                if to not in OPEN_ATTEMPTS:
                    study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
                    self._tally(connection, study_id, {DEVICE_SECONDS: device_seconds(moved, now)})
                self._emit_attempt(connection, trial_id, attempt, moved, now)
        return moved is not None

    # --- reports from ranks, fenced by token: a stale report returns False and stores nothing ------------------------

    def report_started(self, trial_id: int, attempt: int, token: str, *, now: float) -> bool:
        """Move the attempt from STARTING to RUNNING. Also True when it is RUNNING and has recorded no checkpoint.

        Otherwise this is a launch that arrives after its gang has trained: it would begin where that gang began, at a
        checkpoint that may be gone.
        """
        given = {"_trial_id": trial_id, "_attempt": attempt, "_token": token}
        with self._write() as connection:
            started = connection.execute(sql.START, {**given, "_started_at": now}).first()
            if started:
                self._emit_attempt(connection, trial_id, attempt, started, now)
                return True
            return connection.execute(sql.IS_BEGINNING, given).first() is not None

    def report(
        self,
        trial_id: int,
        attempt: int,
        token: str,
        *,
        metrics: Sequence[Metric] = (),
        logs: Sequence[LogLine] = (),
        objective: str = "",
        measured_bytes: int = 0,
        checkpoint_step: int = -1,
        step_seconds: float = 0.0,
        timed_steps: int = 0,
        now: float,
    ) -> bool:
        """Store one flush of a rank: metrics (repeats ignored), log lines, measured peak and step time, and the last
        committed checkpoint.

        ``trial.step`` and ``trial.value`` come from the newest metric row that has ``objective``. ``measured_bytes`` of
        trial and attempt can only grow. ``step_seconds`` is the median of ``timed_steps`` steps (0: no step was), and
        that of the most steps is kept. The report is stale when the attempt is not STARTING or RUNNING, or when the
        token differs.
        """
        rows: list[Metric | LogLine] = [*metrics, *logs]
        assert all((row.trial_id, row.attempt) == (trial_id, attempt) for row in rows), "a flush belongs to one attempt"
        valued = max((row for row in metrics if objective in row.values), key=lambda row: row.seq, default=None)
        given = {"_trial_id": trial_id, "_attempt": attempt, "_token": token}
        progress = {
            "_measured_bytes": measured_bytes,
            "_checkpoint_step": checkpoint_step,
            "_objective_seq": valued.seq if valued else -1,
            "_measured_step_seconds": step_seconds,
            "_timed_steps": timed_steps,
        }
        with self._write() as connection:
            newest = connection.execute(sql.REPORT, {**given, **progress}).first()
            if newest is None:
                return False
            is_timed = timed_steps > 0 and newest.timed_steps == timed_steps  # otherwise a newer flush has set the time
            measured = {"_measured_bytes": measured_bytes, "_measured_step_seconds": step_seconds if is_timed else None}
            if valued and newest.objective_seq == valued.seq:  # otherwise a newer flush has already set the value
                value = {"_step": valued.step, "_value": valued.values[objective], **measured}
                connection.execute(sql.UPDATE_VALUE, {"_id": trial_id, "_attempt": attempt, **value})
            elif measured_bytes or is_timed:
                connection.execute(sql.UPDATE_MEASURED, {"_id": trial_id, **measured})
            if measured_bytes or is_timed:
                self._measure(connection, trial_id)
            is_new = bool(metrics) and self._insert_metrics(connection, metrics)
            if logs:
                self._insert_logs(connection, logs)
            if is_new:
                last = metrics[-1]
                data = {"trial": trial_id, "step": last.step, "values": last.values}
                self._emit(connection, "metrics", data, now, None, trial_id)
        return True

    def report_outcome(
        self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str, *, now: float, phase: str = ""
    ) -> bool:
        """Store the outcome of an open attempt, and the ``phase`` in which it ran out of memory, unless it has one.

        True for any report with the attempt's token while it is open, and for a repeated report of the same outcome.
        """
        given = {"_trial_id": trial_id, "_attempt": attempt, "_token": token}
        with self._write() as connection:
            first = connection.execute(
                sql.END, {**given, "_outcome": outcome, "_detail": detail, "_phase": phase}
            ).first()
            if first:
                if outcome is Outcome.OUT_OF_MEMORY:
                    self._measure(connection, trial_id)
                self._emit_attempt(connection, trial_id, attempt, first, now)
                return True
            known = connection.execute(sql.KNOWN_OUTCOME, given).first()
        return known is not None and (known.state in OPEN_ATTEMPTS or known.outcome is outcome)

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

    def record_cluster(self, state: Json, *, now: float) -> None:
        """Store the state of the cluster: {"status", "detail", "devices": […]}, with an event if it has changed.

        An unchanged state is written at most once a second, so that an idle controller spares the disk.
        """
        known = self.cluster()
        changed = known is None or schema.dump_json(known[0]) != schema.dump_json(state)
        if known and not changed and abs(now - known[1]) < 1.0:
            return
        with self._write() as connection:
            row = {"id": 1, "state": state, "confirmed_at": now}
            connection.execute(self._replace(schema.cluster, "id"), row)
            if changed:
                self._emit(connection, "cluster", state, now)

    # --- who leads ---------------------------------------------------------------------------------------------

    def take_lease(self, name: str, holder: str, seen: Lease | None, *, now: float) -> Lease | None:
        """Make ``holder`` the holder of a lease, unless it was taken or renewed since it was ``seen``: then None."""
        with self._database.write() as connection:
            if seen is None:
                row = {"name": name, "holder": holder, "epoch": 1, "renewals": 0, "renewed_at": now}
                epoch = connection.execute(self._insert_new(schema.leases, "name", returns="epoch"), row).scalar()
            else:
                given = {"_name": name, "_epoch": seen.epoch, "_renewals": seen.renewals}
                epoch = connection.execute(sql.TAKE_LEASE, {**given, "_taker": holder, "_now": now}).scalar()
        return Lease(holder, epoch, 0) if epoch is not None else None

    def renew_lease(self, name: str, lease: Lease, *, now: float) -> Lease | None:
        """The lease, renewed; None if its holder has lost it."""
        with self._database.write() as connection:
            renewals = connection.execute(sql.RENEW_LEASE, {**_held(name, lease), "_now": now}).scalar()
        return replace(lease, renewals=renewals) if renewals is not None else None

    def release_lease(self, name: str, lease: Lease) -> None:
        """Give up a lease; no effect when its holder has lost it."""
        with self._database.write() as connection:
            connection.execute(sql.RELEASE_LEASE, _held(name, lease))

    def fenced(self, name: str, lease: Lease) -> Store:
        """This store for the holder of a lease: each of its writes raises ``Deposed`` once another one has taken it."""
        fenced = copy(self)
        fenced._fence = _held(name, lease)
        return fenced

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

    # --- within a transaction --------------------------------------------------------------------------------------

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """One transaction. Raises ``Deposed`` if this store is fenced and the lease has another holder."""
        with self._database.write() as connection:
            if self._fence and connection.execute(sql.HOLDS_LEASE, self._fence).first() is None:
                raise Deposed("another controller leads now")
            yield connection

    def _insert_metrics(self, connection: sa.Connection, rows: Sequence[Metric]) -> bool:
        """Insert the rows that are new; True if any was."""
        insert = self._insert_new(schema.metrics, "trial_id", "attempt", "seq", returns="seq")
        return connection.execute(insert, [_fields_of(row) for row in rows]).first() is not None

    def _insert_logs(self, connection: sa.Connection, rows: Sequence[LogLine]) -> None:
        self._database.order_commits(connection)  # a reader follows logs by row id
        insert = self._insert_new(schema.logs, "trial_id", "attempt", "rank", "seq")
        connection.execute(insert, [_fields_of(row) for row in rows])

    def _tally(
        self, connection: sa.Connection, study_id: int, changes: Mapping[str, float], is_largest: bool = False
    ) -> None:
        """Add to the tallies of a study, or raise them (``is_largest``). Only events may be written after that."""
        if changes:
            self._database.order_commits(connection)  # otherwise two transactions could wait for each other's tallies
            rows = [{"study_id": study_id, "name": name, "num": changes[name]} for name in sorted(changes)]
            connection.execute(sql.tally(self._database.sqlite, is_largest), rows)

    def _tally_move(self, connection: sa.Connection, before: Any, moved: Any) -> None:
        self._tally(connection, moved.study_id, difference(trial_tallies(before), trial_tallies(moved)))

    def _tally_gang(self, connection: sa.Connection, study_id: int, attempt: Attempt) -> None:
        """Count the ranks of a new attempt instead of the last one's, and the gangs that now share its devices."""
        given = {"trial_id": attempt.trial_id, "attempt": attempt.attempt - 1}
        last = connection.execute(sql.LAST_PLAN, given).scalar()
        before = {f"{RANKS}{last.world_size}": 1} if last else {}
        self._tally(connection, study_id, difference(before, {f"{RANKS}{attempt.plan.world_size}": 1}))
        open_gangs = connection.execute(sql.OPEN_ON_STUDY, {"study_id": study_id}).scalars().all()
        most = max((sum(device in gang for gang in open_gangs) for device in attempt.devices), default=0)
        self._tally(connection, study_id, {COLOCATED: float(most)}, is_largest=True)

    def _measure(self, connection: sa.Connection, trial_id: int) -> None:
        """Keep what the attempts of a trial measured, after one of them has changed."""
        rows = connection.execute(queries.TRIAL_ATTEMPTS, {"trial_id": trial_id}).all()
        study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
        row = {"trial_id": trial_id, "study_id": study_id, **asdict(measure(map(attempt_of, rows)))}
        connection.execute(self._replace(schema.measured, "trial_id"), row)

    def _insert_new(self, table: sa.Table, *unique: str, returns: str = "") -> Any:
        return sql.insert_new(self._database.sqlite, table, unique, returns)

    def _replace(self, table: sa.Table, key: str) -> Any:
        return sql.replace(self._database.sqlite, table, key)

    def _emit_trial(self, connection: sa.Connection, trial_id: int, moved: Any, now: float) -> None:
        data = {"id": trial_id, **_picked(moved._mapping, "number", "state", "attempt", "step", "value", "reason")}
        self._emit(connection, "trial", data, now, moved.study_id, trial_id)

    def _emit_attempt(self, connection: sa.Connection, trial_id: int, attempt: int, moved: Any, now: float) -> None:
        known = _picked(moved._mapping, "state", "devices", "mib_per_rank", "outcome", "detail")
        data = {"trial": trial_id, "attempt": attempt, **known}
        self._emit(connection, "attempt", data, now, None, trial_id)

    def _emit(
        self,
        connection: sa.Connection,
        kind: str,
        data: Json,
        now: float,
        study_id: int | None = None,
        trial_id: int | None = None,
    ) -> None:
        """Write an event. It must be the last statement of its transaction: see ``Database.order_commits``.

        With ``trial_id`` alone, the study is that of the trial.
        """
        self._database.order_commits(connection)
        row = {"time": now, "kind": kind, "trial_id": trial_id, "data": _finite(data)}
        if trial_id is not None and study_id is None:
            connection.execute(sql.INSERT_TRIAL_EVENT, {**row, "_trial_id": trial_id})
        else:
            connection.execute(sql.INSERT_EVENT, {**row, "study_id": study_id})

    def _emit_all(self, connection: sa.Connection, kind: str, data: Iterable[Json], now: float, study_id: int) -> None:
        self._database.order_commits(connection)
        rows = [
            {"time": now, "kind": kind, "study_id": study_id, "trial_id": item["id"], "data": _finite(item)}
            for item in data
        ]
        connection.execute(sql.INSERT_EVENT, rows)


# --- values ----------------------------------------------------------------------------------------------------------

_State = TypeVar("_State", bound=StrEnum)


def _legal(moves: Mapping[_State, frozenset[_State]], expected: Iterable[_State], to: _State) -> tuple[_State, ...]:
    """The states of ``expected`` that may become ``to``. An assert fails when there is none."""
    expected = sorted(expected)
    legal = tuple(state for state in expected if to in moves[state])
    assert legal, f"there is no move from {expected} to {to}"
    return legal


_NOTHING_YET: Json = {"attempt": 0, "step": 0, "value": None, "reason": NO_PLAN_YET}


def _expect_same(stored: Any, row: Mapping[str, Any]) -> int:
    """The id of the stored study with this idempotency key. Raises ``Conflict`` unless ``row`` is the same study.

    Versions before schema 0011 hashed the spec with its defaults, so theirs are compared with the defaults of today.
    """
    is_same = stored.body_sha256 == row["body_sha256"] or (
        stored.code == row["code"] and _with_defaults(stored.spec) == _with_defaults(row["spec"])
    )
    if not is_same:
        key = row["idempotency_key"]
        raise Conflict(f"the idempotency key {key!r} belongs to study {stored.id}, which is different; take a new key")
    study_id: int = stored.id
    return study_id


def _with_defaults(spec: Json) -> Json:
    try:
        return parse_study(spec).to_json()
    except InvalidInput:  # it has an option that exists no more
        return spec


def _body_sha256(spec: Json, code: str | None) -> str:
    return hashlib.sha256(schema.dump_json([_sorted(spec), code]).encode()).hexdigest()


def _sorted(value: Any) -> Any:
    """``value`` with the keys of all its mappings sorted, so that their order does not matter."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def _finite(value: Any) -> Any:
    """``value`` with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _held(name: str, lease: Lease) -> dict[str, Any]:
    return {"_name": name, "_epoch": lease.epoch, "_holder": lease.holder}


def _picked(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


def _underscored(values: Mapping[str, Any]) -> dict[str, Any]:
    """The names with a leading underscore, as parameters of an UPDATE: see ``statements``."""
    return {f"_{name}": value for name, value in values.items()}


def _fields_of(row: Metric | LogLine) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}
