"""The study database: every acknowledged study, trial and metric, and the only truth about what runs.

Moves are compare-and-set: a lost race is ``False``, not an exception, and then nothing has changed. Each method is
one transaction, which also writes the events that tell of it. Safe for many processes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Event, Json, LogLine, Metric, Study, Trial


class Store:
    def __init__(self, url: str) -> None:
        """Open, and create or upgrade the schema (Alembic). ``sqlite:///path``, ``sqlite://`` (memory) or PostgreSQL."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    # --- studies -----------------------------------------------------------------------------------------------
    def create_study(
        self, spec: Json, *, code: str | None = None, idempotency_key: str | None = None, now: float
    ) -> Study:
        """Idempotent by key: the same key and body return the first study; another body raises ``Conflict``."""
        raise NotImplementedError

    def study(self, study_id: int) -> Study:
        """Raises ``NotFound``."""
        raise NotImplementedError

    def studies(self, *, after: int = 0, limit: int = 100, live: bool = False) -> list[Study]:
        """By ascending id, those with id > ``after``; ``live`` keeps RUNNING and STOPPING."""
        raise NotImplementedError

    def move_study(
        self, study_id: int, expected: Iterable[StudyState], to: StudyState, *, reason: str = "", now: float
    ) -> bool:
        raise NotImplementedError

    def trial_counts(self, study_id: int) -> dict[TrialState, int]:
        raise NotImplementedError

    # --- trials ------------------------------------------------------------------------------------------------
    def create_trials(self, study_id: int, candidates: Sequence[tuple[int, Json]], *, now: float) -> int:
        """Insert (number, params) as WAITING; numbers that exist already are left alone. Returns how many are new."""
        raise NotImplementedError

    def trial(self, trial_id: int) -> Trial:
        raise NotImplementedError

    def trials(
        self, study_id: int, *, after: int = 0, limit: int = 1000, states: Iterable[TrialState] | None = None
    ) -> list[Trial]:
        """By ascending id (so also by number), those with id > ``after``."""
        raise NotImplementedError

    def live_trials(self) -> list[Trial]:
        """All trials of all studies in a non-terminal state, by id."""
        raise NotImplementedError

    def move_trial(
        self, trial_id: int, expected: TrialState, attempt: int, to: TrialState, *, now: float, **changes: Any
    ) -> bool:
        """Compare-and-set on (id, state, attempt); ``changes`` are columns of ``Trial`` (plan, reason, value, …).

        ``expected == to`` is allowed and only applies the changes. An illegal move is a bug: it asserts against
        ``lifecycle.TRIAL_MOVES``. Terminal states get ``finished_at``.
        """
        raise NotImplementedError

    # --- attempts ----------------------------------------------------------------------------------------------
    def begin_attempt(
        self,
        trial_id: int,
        attempt: int,
        *,
        token: str,
        plan: Json,
        devices: tuple[str, ...],
        mib_per_rank: int,
        predicted_bytes: int,
        placement_reason: str,
        now: float,
    ) -> bool:
        """QUEUED → RUNNING of the trial whose attempt count is ``attempt - 1``, and a new STARTING attempt: at once."""
        raise NotImplementedError

    def open_attempts(self) -> list[Attempt]:
        """Those not ENDED, of all trials."""
        raise NotImplementedError

    def attempts(self, trial_id: int) -> list[Attempt]:
        raise NotImplementedError

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
        """Compare-and-set of an attempt's state; ``changes`` are columns of ``Attempt`` (outcome, detail)."""
        raise NotImplementedError

    # --- reports from ranks (fenced by token: False when stale, and nothing is stored) -------------------------------
    def report_started(self, trial_id: int, attempt: int, token: str, *, now: float) -> bool:
        """STARTING → RUNNING; True as well when it is RUNNING already."""
        raise NotImplementedError

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
        now: float,
    ) -> bool:
        """One flush of a rank: metrics (repeats ignored), log lines, measured peak, last committed checkpoint.

        ``trial.step``/``value`` follow the newest metric row that carries ``objective``; ``measured_bytes`` is the
        maximum of trial's and attempt's. Stale when the attempt is not STARTING or RUNNING or the token differs.
        """
        raise NotImplementedError

    def report_outcome(
        self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str, *, now: float
    ) -> bool:
        """The first outcome of an open attempt stays; True when repeated with the same token."""
        raise NotImplementedError

    def metrics(self, trial_id: int, *, after: int = 0, limit: int = 10_000) -> list[Metric]:
        """By step; where an attempt resumed and repeated a step, the newest attempt's row counts."""
        raise NotImplementedError

    def rungs(self, study_id: int, objective: str, steps: Sequence[int]) -> dict[int, dict[int, float]]:
        """step → trial id → objective at that step, for every trial of the study that reported there."""
        raise NotImplementedError

    def logs(self, trial_id: int, *, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """(row id, line), row id > ``after``; with ``after=-1`` the last ``limit`` lines."""
        raise NotImplementedError

    # --- the rest ----------------------------------------------------------------------------------------------
    def put_blob(self, data: bytes) -> str:
        """Store bytes by content, return their sha256 in hex."""
        raise NotImplementedError

    def blob(self, sha256: str) -> bytes:
        raise NotImplementedError

    def events(self, *, after: int = 0, limit: int = 1000, study_id: int | None = None) -> list[Event]:
        """In commit order: a reader that has seen event n never later finds an event < n."""
        raise NotImplementedError

    def last_event_id(self) -> int:
        raise NotImplementedError

    def record_cluster(self, state: Json, *, now: float) -> None:
        """What the controller sees of the cluster: {"status", "detail", "devices": […]}; an event when it changed."""
        raise NotImplementedError

    def cluster(self) -> tuple[Json, float] | None:
        """The last recorded state and when the controller last confirmed it."""
        raise NotImplementedError

    def acquire_lease(self, name: str, holder: str, seconds: float, *, now: float) -> bool:
        """Take or renew; True when ``holder`` now has it."""
        raise NotImplementedError

    def release_lease(self, name: str, holder: str) -> None:
        raise NotImplementedError

    def lease_age(self, name: str, *, now: float) -> float | None:
        """Seconds since the lease was last renewed; None when nobody ever held it."""
        raise NotImplementedError
