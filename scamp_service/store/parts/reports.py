"""Reports of ranks: their sink writes them, the controller judges by them, the API shows them.

A write is fenced by the token of the attempt: a stale report returns False and stores nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from scamp_service.lifecycle import OPEN_ATTEMPTS, Outcome
from scamp_service.model import LogLine, Metric, Report
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.events import NewMetrics
from scamp_service.store.parts.part import WritingPart, in_parts
from scamp_service.store.rows import Point, columns_of
from scamp_service.store.schema import load_json
from scamp_service.study.objective import measured_metrics


class Reports(WritingPart):
    """Writes of ranks, and reads of metrics and log lines."""

    def start(self, trial_id: int, attempt: int, token: str, *, now: float) -> bool:
        """Move the attempt from STARTING to RUNNING. Also True when it has started and recorded no checkpoint.

        Otherwise this is a launch that arrives after its gang has trained: it would begin where that gang began, at a
        checkpoint that may be gone.
        """
        keys = {"_trial_id": trial_id, "_attempt": attempt, "_token": token}
        with self._write() as connection:
            started = connection.execute(sql.START, {**keys, "_started_at": now}).first()
            if started:
                self._emit_attempt(connection, trial_id, attempt, started, now)
                return True
            return connection.execute(sql.IS_BEGINNING, keys).first() is not None

    def add(self, report: Report, *, now: float) -> bool:
        """Store one report of a rank: metrics (repeats ignored), log lines, measured peak and step time, and the last
        committed checkpoint.

        ``trial.step`` and ``trial.value`` come from the newest metric row that has all ``objectives`` that evaluations
        report, of which the first is the value. If there are several, so does ``trial.values``, with None for those
        that are predicted. With ``best_of``, ``trial.value`` is the best finite value so far, and ``trial.best_step``
        its step. ``measured_bytes`` of trial and attempt can only grow, and the step time of the most steps is kept.
        The report is stale when the attempt is STOPPING or ENDED, or when the token differs.
        """
        rows: list[Metric | LogLine] = [*report.metrics, *report.logs]
        keys = report.trial_id, report.attempt
        assert all((row.trial_id, row.attempt) == keys for row in rows), "it is of one attempt"
        valued = _newest_complete(report)
        with self._write() as connection:
            newest = connection.execute(sql.REPORT, _progress(report, valued)).first()
            if newest is None:
                return False
            is_timed = 0 < report.timed_steps == newest.timed_steps  # otherwise a newer report has set the time
            if valued and newest.objective_seq != valued.seq:
                valued = None  # a newer report has already set the value
            self._update_trial(connection, report, valued, is_timed)
            if report.measured_bytes or is_timed:
                self._measure(connection, report.trial_id)
            is_new = bool(report.metrics) and self._insert_metrics(connection, report.metrics)
            if report.logs:
                self._insert_logs(connection, report.logs)
            if is_new:
                last = report.metrics[-1]
                self._emit(connection, NewMetrics(report.trial_id, last.step, last.values), now, None, report.trial_id)
        return True

    def _update_trial(self, connection: sa.Connection, report: Report, valued: Metric | None, is_timed: bool) -> None:
        """Store what the trial has measured, and the value of the row ``valued``, if there is one."""
        measured = {
            "_id": report.trial_id,
            "_measured_bytes": report.measured_bytes,
            "_measured_step_seconds": report.step_seconds if is_timed else None,
            "_measured_communication_share": report.communication_share,
            "_check_share": report.check_share if is_timed else None,
            "_noise_scale": report.noise_scale,
        }
        if valued:
            measured |= {"_attempt": report.attempt, "_step": valued.step}
            if report.best_of:
                statement = sql.UPDATE_BEST[report.best_of]
                values = _best(report.metrics, measured_metrics(report.objectives)[0], report.best_of)
            else:
                statement, values = sql.UPDATE_VALUE, _newest(valued, report.objectives)
            connection.execute(statement, {**measured, **values})
        elif (
            report.measured_bytes
            or is_timed
            or report.communication_share is not None
            or report.noise_scale is not None
        ):
            connection.execute(sql.UPDATE_MEASURED, measured)

    def end(
        self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str, *, now: float, phase: str = ""
    ) -> bool:
        """Store the outcome of an open attempt, and the ``phase`` in which it ran out of memory, unless it has one.

        If the curve is another one than it should be, the trial forgets its metrics, value and checkpoints.
        True for any report with the attempt's token while it is open, and for a repeated report of the same outcome.
        """
        keys = {"_trial_id": trial_id, "_attempt": attempt, "_token": token}
        with self._write() as connection:
            first = connection.execute(
                sql.END, {**keys, "_outcome": outcome, "_detail": detail, "_phase": phase}
            ).first()
            if first:
                if outcome is Outcome.OUT_OF_MEMORY:
                    self._measure(connection, trial_id)
                for statement in sql.FORGET_TRAINING if outcome in sql.FORGOTTEN else ():
                    connection.execute(statement, {"_trial_id": trial_id})
                self._emit_attempt(connection, trial_id, attempt, first, now)
                return True
            recorded = connection.execute(sql.KNOWN_OUTCOME, keys).first()
        return recorded is not None and (recorded.state in OPEN_ATTEMPTS or recorded.outcome is outcome)

    def _insert_metrics(self, connection: sa.Connection, rows: Sequence[Metric]) -> bool:
        """Insert the rows that are new; True if any was."""
        insert = self._insert_new(schema.metrics, "trial_id", "attempt", "seq", returns="seq")
        return connection.execute(insert, [columns_of(row) for row in rows]).first() is not None

    def _insert_logs(self, connection: sa.Connection, rows: Sequence[LogLine]) -> None:
        self._database.order_commits(connection)  # a reader follows logs by row id
        insert = self._insert_new(schema.logs, "trial_id", "attempt", "rank", "seq")
        connection.execute(insert, [columns_of(row) for row in rows])

    def metrics(self, trial_id: int, *, after: int = -1, limit: int = 10_000) -> list[Metric]:
        """Evaluations at steps > ``after``, by step; if several attempts reported a step, the newest attempt's row."""
        # The newest row of each step is chosen here: SQL would look at the whole rest of the curve for each page.
        newest: dict[int, Metric] = {}
        num = limit + 1
        while len(newest) < limit:
            metrics = self._all(Metric, queries.CURVE, trial_id=trial_id, after=after, limit=num)
            is_end = len(metrics) < num
            complete = {
                row.step: row for row in metrics if is_end or row.step != metrics[-1].step
            }  # rows of the last are cut
            newest |= complete
            if is_end:
                break
            after, num = max(complete, default=after), num if complete else 2 * num
        metrics = list(newest.values())[:limit]
        return metrics or [row for row in self._external_curves([trial_id]) if row.step > after][:limit]

    def curve_lengths(self, trial_ids: Sequence[int]) -> dict[int, int]:
        """Number of stored evaluations by trial id, for trials that have any."""
        lengths: dict[int, int] = dict(self._by_ids(queries.CURVE_LENGTHS, trial_ids))
        for row in self._external_curves([trial_id for trial_id in trial_ids if trial_id not in lengths]):
            lengths[row.trial_id] = lengths.get(row.trial_id, 0) + 1
        return lengths

    def curves(self, trial_ids: Sequence[int]) -> dict[int, list[Point]]:
        """Trial id → its evaluations by step; if several attempts reported a step, only the newest attempt's.

        It reads a few times as fast as ``metrics``.
        """
        curves: dict[int, dict[int, Point]] = {trial_id: {} for trial_id in trial_ids}
        rows = self._by_ids(queries.CURVES, trial_ids)
        every = load_json(f"[{','.join(row.text for row in rows)}]")
        for row, values in zip(rows, every, strict=True):
            curves[row.trial_id][row.step] = Point(row.step, row.attempt, values)
        for row in self._external_curves([trial_id for trial_id, points in curves.items() if not points]):
            values = {name: value if math.isfinite(value) else str(value) for name, value in row.values.items()}
            curves[row.trial_id][row.step] = Point(row.step, 0, values)
        return {trial_id: list(points.values()) for trial_id, points in curves.items()}

    def counted_metrics(self, trial_ids: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """Trial id → metrics of its last evaluation, or of its best where trials count by that one.

        NaN and infinity are None. Trials that have reported nothing are left out.
        """
        rows = self._by_ids(queries.COUNTED_METRICS, trial_ids)
        every = load_json(f"[{','.join(text for _, text in rows)}]")
        return {  # attempts ascend: the newest comes last
            trial_id: {name: value if isinstance(value, int | float) else None for name, value in values.items()}
            for (trial_id, _), values in zip(rows, every, strict=True)
        }

    def _external_curves(self, trial_ids: Sequence[int]) -> list[Metric]:
        """The objective by trial and step of those of these trials that other programs run."""
        rows = self._by_ids(queries.EXTERNAL_CURVES, trial_ids) if trial_ids else []
        if not rows:
            return []
        spec = self._value(queries.SPEC_OF_TRIAL, id=rows[0].trial_id)  # all are of one study
        metric = spec["objective"]["metric"]
        return [Metric(row.trial_id, 0, row.step, row.step, {metric: row.value}, row.time) for row in rows]

    def rungs(
        self, study_id: int, metrics: Sequence[str], steps: Sequence[int], trial_ids: Collection[int] | None = None
    ) -> dict[int, dict[int, tuple[float, ...]]]:
        """Step → trial number → values of ``metrics`` there, for every trial of the study that reported all of them.

        ``trial_ids`` are trials of the study, if only these matter.
        """
        rungs: dict[int, dict[int, tuple[float, ...]]] = {step: {} for step in steps}
        for part in in_parts(steps):  # a rule that judges at every report has many
            if trial_ids is None:
                rows = self._rows(queries.RUNGS, study_id=study_id, steps=part)
            else:
                rows = self._by_ids(queries.RUNGS_OF_TRIALS, sorted(trial_ids), steps=part)
            for row in rows:
                if all(metric in row.metrics for metric in metrics):  # attempts ascend: the newest comes last
                    rungs[row.step][row.number] = tuple(row.metrics[metric] for metric in metrics)
        return rungs

    def logs(self, trial_id: int, *, after: int = 0, limit: int = 1000, search: str = "") -> list[tuple[int, LogLine]]:
        """(row id, line) with row id > ``after``; ``after=-1`` returns the last ``limit`` lines.

        With ``search`` only lines that contain this text, in small or capital letters, from the first on.
        """
        if search:
            pattern = queries.pattern_of(search.lower())
            return self._all(_line, queries.FOUND_LOGS, trial_id=trial_id, after=after, limit=limit, pattern=pattern)
        if after < 0:
            return self._all(_line, queries.LAST_LOGS, trial_id=trial_id, limit=limit)[::-1]
        return self._all(_line, queries.LOGS, trial_id=trial_id, after=after, limit=limit)


def _line(*, row_id: int, **fields: Any) -> tuple[int, LogLine]:
    return row_id, LogLine(**fields)


def _newest_complete(report: Report) -> Metric | None:
    """The newest row with all objectives that evaluations report; None if there is none."""
    reported = measured_metrics(report.objectives)
    complete = (row for row in report.metrics if reported and all(name in row.values for name in reported))
    return max(complete, key=lambda row: row.seq, default=None)


def _progress(report: Report, valued: Metric | None) -> dict[str, Any]:
    """The parameters of ``REPORT``."""
    return {
        "_trial_id": report.trial_id,
        "_attempt": report.attempt,
        "_token": report.token,
        "_measured_bytes": report.measured_bytes,
        "_checkpoint_step": report.checkpoint_step,
        "_objective_seq": valued.seq if valued else -1,
        "_measured_step_seconds": report.step_seconds,
        "_timed_steps": report.timed_steps,
        "_measured_communication_share": report.communication_share,
        "_load": report.load or None,
    }


def _best(rows: Sequence[Metric], metric: str, direction: str) -> dict[str, Any]:
    """The best finite value of ``metric`` among the rows, and its step; None for both if no value is finite."""
    sign = -1 if direction == "maximize" else 1
    finite = [row for row in rows if metric in row.values and math.isfinite(row.values[metric])]
    best = min(finite, key=lambda row: (sign * row.values[metric], row.seq), default=None)
    return {"_value": best and best.values[metric], "_best_step": best and best.step}


def _newest(row: Metric, objectives: Sequence[str]) -> dict[str, Any]:
    """The value of the first objective that evaluations report, and the values of all if there are several."""
    every = [row.values.get(name) for name in objectives] if len(objectives) > 1 else None
    return {"_value": row.values[measured_metrics(objectives)[0]], "_values": every}
