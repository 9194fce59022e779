"""Trials: creates, moves and reads them. Those of other programs are created and moved in ``external``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import sqlalchemy as sa

from placement.model import Offer
from placement.option import Option
from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import LIVE_TRIALS, TRIAL_MOVES, Origin, TrialState, WaitsFor
from scamp_service.model import NO_CHANGES, Json, RecordedPipeline, Refusals, Sized, Trial, TrialChanges
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.events import TrialChange
from scamp_service.store.options import option_json, option_of
from scamp_service.store.parts.part import WritingPart, in_parts, underscored
from scamp_service.store.rows import HistoryRow, Score, new_trial, sized_columns, trial_of, values_of
from scamp_service.store.tallies import BESIDE
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives, Values

NO_PARENTS: Mapping[int, int] = {}
NO_REASONS: Mapping[int, str] = {}
DELETED: Any = dict.fromkeys(("sized", "choices", "value", "values", "best_step", "offer"))
DELETED |= {"params": {}, "family": "", "structure": "", "measured_bytes": 0, "num_oom": 0, "repeats": ()}
"""Columns of a deleted trial."""


class _TrialMove(NamedTuple):
    """A trial, its attempt count, its expected state, and its new one with the reason and what it waits for."""

    trial_id: int
    attempt: int
    expected: TrialState
    to: TrialState
    reason: str
    waits_for: WaitsFor | None = None


class Trials(WritingPart):
    """Reads and writes of trials."""

    def create(
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

    def move(
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

    def stop(self, study_id: int, number: int, *, reason: str, now: float) -> Trial:
        """End a trial as CANCELLED, whatever it does now, and return it; no effect once it has ended.

        Its ranks end within seconds, and what it reported is kept. Raises ``NotFound``, and ``Conflict`` for a trial
        that other programs run.
        """
        while (trial := self._own(study_id, number)).state in LIVE_TRIALS:
            self._ask("stop trial", trial, TrialState.CANCELLED, reason, now=now)
        return trial

    def change(self, study_id: int, number: int, changes: TrialChanges, *, now: float) -> Trial:
        """Pause or resume a trial, or give it another priority, and return it.

        Raises ``NotFound``, and ``Conflict`` for a trial that has ended, or that other programs run.
        """
        while (trial := self._own(study_id, number)).state in LIVE_TRIALS:
            new: Any = {name: value for name, value in changes.items() if value != getattr(trial, name)}
            if not new:
                return trial
            self._ask("change trial", trial, trial.state, trial.reason, new, now=now)
        raise Conflict(f"trial {number} of study {study_id} has ended: it is {trial.state.value}")

    def delete(self, study_id: int, number: int, *, now: float) -> None:
        """Delete a trial that has ended: from now on nobody sees it. It still counts in the study's budget.

        No effect if it is deleted already. Raises ``NotFound``, and ``Conflict`` for a trial that has not ended, which
        another one needs, or that other programs run.
        """
        if self._row(queries.IS_DELETED, study_id=study_id, number=number):
            return
        trial = self._own(study_id, number)
        if trial.state in LIVE_TRIALS:
            raise Conflict(f"trial {number} of study {study_id} is {trial.state.value}: stop it, and then delete it")
        with self._write() as connection:
            if connection.execute(sql.IS_OPEN, {"trial_id": trial.id}).first():
                raise Conflict(f"trial {number} of study {study_id} is still being stopped; try again in a few seconds")
            if child := connection.execute(sql.LIVE_CHILD, {"trial_id": trial.id}).scalar():
                why = "it begins with its weights or repeats it"
                raise Conflict(f"trial {child} of study {study_id} needs trial {number} until it ends: {why}")
        self._ask("delete trial", trial, TrialState.DELETED, "", DELETED, now=now)

    def _own(self, study_id: int, number: int) -> Trial:
        """A trial that ScaMP runs. Raises ``NotFound`` and ``Conflict``."""
        trial = self.numbered(study_id, number)
        if trial.origin is Origin.EXTERNAL:
            raise Conflict(f"trial {number} of study {study_id} is run by another program, which has to do this")
        return trial

    def _ask(
        self, action: str, trial: Trial, to: TrialState, reason: str, changes: TrialChanges = NO_CHANGES, *, now: float
    ) -> None:
        """Do to a trial what a user asks for, unless it has moved meanwhile."""
        waits_for = trial.waits_for if to is trial.state else None
        move = _TrialMove(trial.id, trial.attempt, trial.state, to, reason, waits_for)
        with self._write() as connection:
            if self._move_trial(connection, move, changes, None, now=now):
                detail = {} if to is not trial.state else changes
                self._record(connection, action, trial.study_id, trial=trial.number, **detail)

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
                self._insert_beside(connection, [row | {"origin": Origin.BRANCH, "judged_step": step}], now)
        return moved

    def repeat(self, trial: Trial, count: int, *, reason: str, now: float) -> bool:
        """Pause a RUNNING trial that has trained to its end, and create ``count`` trials that repeat it, or do nothing.

        False if the trial no longer runs. Its value becomes the mean of their values and its own as they complete.
        """
        move = _TrialMove(trial.id, trial.attempt, TrialState.RUNNING, TrialState.PAUSED, reason, WaitsFor.REPEATS)
        with self._write() as connection:
            connection.execute(sql.LOCK_STUDY, {"study_id": trial.study_id})
            if moved := self._move_trial(connection, move, NO_CHANGES, None, now=now):
                number = int(connection.execute(sql.NEXT_NUMBER, {"study_id": trial.study_id}).scalar_one())
                parent = {"parent_id": trial.id, "parent_number": trial.number, "origin": Origin.REPEAT}
                rows = [new_trial(trial.study_id, number + i, trial.params, now) | parent for i in range(count)]
                self._insert_beside(connection, rows, now)
        return moved

    def _insert_beside(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]], now: float) -> None:
        """Insert trials of a study that its sampler has not proposed."""
        study_id, insert = rows[0]["study_id"], self._insert_new(schema.trials, "study_id", "number", returns="id")
        new = [
            TrialChange.of_new(connection.execute(insert, row).scalar_one(), row["number"], row["parent_number"])
            for row in rows
        ]
        count = float(len(rows))
        self._tally(connection, study_id, {TrialState.WAITING.value: count, BESIDE: count})
        self._emit_trials(connection, new, now, study_id)

    def _average(self, connection: sa.Connection, trial_id: int, now: float) -> None:
        """Set the value of a trial to the mean over its own training and the repeats that have completed."""
        trial = connection.execute(queries.AVERAGED, {"id": trial_id}).one()
        if trial.state is TrialState.DELETED:
            return
        objectives = Objectives.of_spec(trial.spec)
        first = trial.repeats[0] if trial.repeats else tuple(trial.values or (trial.value,))
        others = connection.execute(queries.REPEATS, {"parent_id": trial_id}).all()
        repeats = (first, *(tuple(other.values or (other.value,)) for other in others))
        means = [None if None in column else fmean(column) for column in zip(*repeats, strict=True)]
        value = means[objectives.items.index(objectives.leading)]
        columns = {
            "repeats": repeats if others else (),
            "value": value,
            "values": means if objectives.has_several else None,
        }
        expected = {"_id": trial_id, "_expected_state": trial.state, "_expected_attempt": trial.attempt}
        moved = connection.execute(sql.move_trial(tuple(sorted(columns))), {**expected, **underscored(columns)}).one()
        self._emit_trial(connection, trial_id, moved, now)

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
                columns |= {"finished_at": None if to in LIVE_TRIALS else now, "paused": False}
        values = {"_id": trial_id, "_expected_state": expected, "_expected_attempt": attempt, **underscored(columns)}
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
            if moved.origin is Origin.REPEAT and to in (TrialState.COMPLETED, TrialState.DELETED):
                self._average(connection, moved.parent_id, now)
        return moved is not None

    def redate_refusals(self, *, now: float) -> None:
        """Let INFEASIBLE trials that a clock which was ahead has dated into the future have ended ``now``."""
        with self._write() as connection:
            connection.execute(sql.REDATE_REFUSALS, {"_now": now})

    def get(self, trial_id: int) -> Trial:
        """The trial with this id, which is unique over all studies. Raises ``NotFound``."""
        trial = self._first(trial_of, queries.ONE_TRIAL, id=trial_id)
        if trial is None:
            raise NotFound(f"there is no trial {trial_id}; `scamp trials STUDY` shows the trials of a study")
        return trial

    def numbered(self, study_id: int, number: int) -> Trial:
        """The trial with this number in its study. Raises ``NotFound``."""
        trial = self._first(trial_of, queries.NUMBERED_TRIAL, study_id=study_id, number=number)
        if trial is None:
            raise NotFound(f"study {study_id} has no trial {number}; `scamp trials {study_id}` shows its trials")
        return trial

    def page(
        self,
        study_id: int,
        *,
        after: int = 0,
        limit: int = 1000,
        states: Iterable[TrialState] | None = None,
        with_deleted: bool = False,
    ) -> list[Trial]:
        """Trials with id > ``after``, by ascending id and so also by number; ``states`` keeps only these states."""
        statement = queries.trials_page(states is not None, with_deleted)
        filters: dict[str, Any] = {} if states is None else {"states": list(states)}
        return self._all(trial_of, statement, study_id=study_id, after=after, limit=limit, **filters)

    def every(self, study_id: int, *, with_deleted: bool = False) -> list[Trial]:
        """All trials of a study by number, read page by page."""
        trials: list[Trial] = []
        while page := self.page(study_id, after=trials[-1].id if trials else 0, with_deleted=with_deleted):
            trials += page
        return trials

    def with_numbers(self, study_id: int, numbers: Sequence[int]) -> list[Trial]:
        """The trials with these numbers in their study that exist, by number."""
        return self._all(trial_of, queries.NUMBERED_TRIALS, study_id=study_id, numbers=list(numbers))

    def with_ids(self, trial_ids: Sequence[int]) -> list[Trial]:
        """The trials with these ids that exist, by id."""
        return values_of(trial_of, self._by_ids(queries.TRIALS_WITH_IDS, trial_ids))

    def states(self, trial_ids: Sequence[int]) -> dict[int, TrialState]:
        """State by id of the trials with these ids that exist."""
        return dict(self._by_ids(queries.TRIAL_STATES, trial_ids))

    def live(self) -> list[Trial]:
        """The trials that ScaMP runs and that are in a non-terminal state, over all studies, by id."""
        return self._all(trial_of, queries.ALL_LIVE_TRIALS)

    def refusals(self) -> list[Refusals]:
        """INFEASIBLE trials of running studies by study and by the devices for which this was found, by study."""
        return self._all(Refusals, queries.REFUSALS)

    def refused(self, study_id: int, offer: Offer, *, limit: int = 100) -> list[Trial]:
        """The first INFEASIBLE trials of a study for which the devices of ``offer`` do not suffice, by id."""
        return self._all(trial_of, queries.REFUSED_TRIALS, study_id=study_id, offer=offer, limit=limit)

    def history(self, study_id: int, numbers: Sequence[int] | None = None) -> list[HistoryRow]:
        """Trials of the study that have begun or ended, by number, in a few columns; with ``numbers`` only them."""
        if numbers is None:
            return self._all(HistoryRow, queries.HISTORY, study_id=study_id)
        parts = (self._rows(queries.HISTORY_OF_NUMBERS, study_id=study_id, numbers=some) for some in in_parts(numbers))
        return values_of(HistoryRow, [row for rows in parts for row in rows])

    def scores(self, study_id: int = 0, trial_ids: Collection[int] | None = None) -> list[Score]:
        """Every trial of the study that has a plan or a value, by number, in the columns of its objectives.

        With ``trial_ids`` only these, of any study.
        """
        if trial_ids is None:
            return self._all(Score, queries.SCORES, study_id=study_id)
        return values_of(Score, self._by_ids(queries.SCORES_OF_TRIALS, sorted(trial_ids)))

    def complete_scores(self, study_id: int, objectives: Objectives) -> dict[int, tuple[TrialState, Values]]:
        """Number → state and values of each trial of the study that has a value of all objectives."""
        scored = [(score, objectives.values_of(score)) for score in self.scores(study_id)]
        return {score.number: (score.state, values) for score, values in scored if values}

    def leading(self, study_id: int, objectives: Objectives) -> Trial | None:
        """The best COMPLETED trial of a study with one objective, or else the best that still runs, if there is one.

        None with several objectives, which have a front instead.
        """
        return None if objectives.has_several else next(iter(self.leaders(study_id, objectives.leading)), None)

    def leaders(self, study_id: int, objective: Objective) -> list[Trial]:
        """The best COMPLETED trial, and then the best that still runs or is paused; those that exist.

        The lower number wins a tie, and NaN and infinity never win.
        """
        best = (queries.best_trial(objective.prefers_large, is_completed) for is_completed in (True, False))
        return [trial for statement in best for trial in self._all(trial_of, statement, study_id=study_id)]

    def options(self, trial_id: int) -> list[Option]:
        """The plans that were compared when the trial was sized last, in that order; empty before that."""
        return [option_of(data) for data in self._value(queries.OPTIONS, trial_id=trial_id) or ()]

    def pipeline(self, trial_id: int) -> RecordedPipeline | None:
        """The step of the trial's newest plan, if that has a pipeline.

        None for other plans, and for trials that were sized before the database kept it.
        """
        data = self._value(queries.PIPELINE, trial_id=trial_id)
        return RecordedPipeline.from_json(data) if data else None


def _parent(trial_id: int, number: int, step: int) -> dict[str, Any]:
    """Columns of a trial that begins with another one's checkpoint of ``step``."""
    return {"parent_id": trial_id, "parent_number": number, "parent_step": step}
