"""The states of studies, trials and attempts, and the only transitions that exist. One enum and one table each.

A trial is QUEUED once it has a plan. An attempt is one run of a trial. It holds its devices from STARTING until ENDED.
It ends only when its processes are known to be gone or idle, so a trial may be COMPLETED while its last attempt is
still STOPPING.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

CONTROLLER_LEASE = "controller"
"""Name of the lease in the database whose holder is the leading controller."""

NO_PLAN_YET = "waits for its plan: its memory and step time have not been predicted yet"
"""The reason of a new trial."""
STUDY_PAUSED, TRIAL_PAUSED = "the study was paused", "a user paused the trial"
IDLE_PAUSED = "so the trial was paused"
"""Why an attempt was stopped while its study or its trial is paused."""
LIMIT_RAISED = "waits for a plan again: the limit that ended its study was raised"
"""The reason of a trial that was cancelled by a limit of its study and is to continue."""


class StudyState(StrEnum):
    """States of a study. STOPPING: asked to stop, while trials are still ending. DELETED: nobody sees it any more.

    EXTERNAL: other programs create and run all of its trials, through Optuna. ScaMP stores and shows it. PAUSED: it
    runs, but its trials may not. This is shown, not stored: see ``seen_state``.
    """

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    EXTERNAL = "EXTERNAL"
    DELETED = "DELETED"


class TrialState(StrEnum):
    """States of a trial. WAITING: it has no plan yet. QUEUED: it has a plan and waits for devices.

    INFEASIBLE: no plan fits the devices of the cluster. It becomes WAITING again when the cluster grows while the study
    runs. CANCELLED: the study ended first, or a user stopped it. It becomes WAITING again when the limit that ended the
    study is raised. DELETED: nobody sees it any more, but its number is not given again.
    """

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    PRUNED = "PRUNED"
    FAILED = "FAILED"
    INFEASIBLE = "INFEASIBLE"
    CANCELLED = "CANCELLED"
    DELETED = "DELETED"


class WaitsFor(StrEnum):
    """The thing that a trial waits for, for programs; its reason says it in words, which may change.

    PLAN: its first plan. NEW_PLAN: another one, since it ran out of memory, more is known or the cluster changed since
    the last one, or a user retries it after it has failed. PREDICTIONS: those for all candidates, as only their Pareto
    front is trained. RESUME: until a user resumes it, or its study. DEVICES: free devices for its plan. MAX_CONCURRENT:
    the end of another trial of its study. QUOTA: that of its project. RETRY: the time of its next try after a fault of
    the host. COMPARISON: the first verdict of the stopping rule since it paused. PROMOTION: a later one, after which it
    may continue. REPEATS: its trainings with other seeds, which are trials of their own.
    """

    PLAN = "PLAN"
    NEW_PLAN = "NEW_PLAN"
    PREDICTIONS = "PREDICTIONS"
    RESUME = "RESUME"
    DEVICES = "DEVICES"
    MAX_CONCURRENT = "MAX_CONCURRENT"
    QUOTA = "QUOTA"
    RETRY = "RETRY"
    COMPARISON = "COMPARISON"
    PROMOTION = "PROMOTION"
    REPEATS = "REPEATS"


class Origin(StrEnum):
    """The creator of a trial. ScaMP runs trials of SEARCH (its sampler), ENQUEUED (a user), BRANCH (a stopping rule: a
    copy of another trial with changed parameters) and REPEAT (the same candidate with another seed).

    EXTERNAL trials are created, run and ended by other programs, through Optuna. Only SEARCH counts in the budget.
    """

    SEARCH = "SEARCH"
    ENQUEUED = "ENQUEUED"
    BRANCH = "BRANCH"
    REPEAT = "REPEAT"
    EXTERNAL = "EXTERNAL"


class AttemptState(StrEnum):
    """States of an attempt. Its devices are free only after ENDED.

    WITHDRAWN: its trial is to give its devices back and continue later, so its ranks write a checkpoint and end. Until
    then their reports count. STOPPING: they count no more.
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WITHDRAWN = "WITHDRAWN"
    STOPPING = "STOPPING"
    ENDED = "ENDED"


class Outcome(StrEnum):
    """How an attempt ended, as its ranks reported it.

    DIVERGED: the loss became infinite or not a number. DEPENDS_ON_DIVISION: the loss or its gradients depend on how a
    batch is divided, so all that the trial has trained is forgotten. RESUMES_DIFFERENTLY: a resumed training takes
    another step than the one that was interrupted, so this is forgotten, too. ERROR: the workload failed. FAULT: the
    host or its storage failed, such as a full disk or a lost database; it does not count against the trial. STALLED:
    the ranks lived, but made no progress. LOST: the ranks disappeared without a report.
    """

    DONE = "DONE"
    STOPPED = "STOPPED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DIVERGED = "DIVERGED"
    DEPENDS_ON_DIVISION = "DEPENDS_ON_DIVISION"
    RESUMES_DIFFERENTLY = "RESUMES_DIFFERENTLY"
    ERROR = "ERROR"
    FAULT = "FAULT"
    STALLED = "STALLED"
    LOST = "LOST"


class DeliveryState(StrEnum):
    """States of a notice on its way to one receiver. GIVEN_UP: it was tried often enough, or may not be sent."""

    WAITING = "WAITING"
    DELIVERED = "DELIVERED"
    GIVEN_UP = "GIVEN_UP"


_T = TrialState
TRIAL_MOVES: dict[TrialState, frozenset[TrialState]] = {
    _T.WAITING: frozenset({_T.QUEUED, _T.COMPLETED, _T.INFEASIBLE, _T.FAILED, _T.CANCELLED}),
    _T.QUEUED: frozenset({_T.RUNNING, _T.WAITING, _T.COMPLETED, _T.PRUNED, _T.INFEASIBLE, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.WAITING, _T.QUEUED, _T.PAUSED, _T.COMPLETED, _T.PRUNED, _T.FAILED, _T.CANCELLED}),
    _T.PAUSED: frozenset({_T.QUEUED, _T.RUNNING, _T.COMPLETED, _T.PRUNED, _T.CANCELLED}),
    _T.COMPLETED: frozenset({_T.DELETED}),
    _T.PRUNED: frozenset({_T.DELETED}),
    _T.FAILED: frozenset({_T.WAITING, _T.DELETED}),  # retried by a user
    _T.INFEASIBLE: frozenset({_T.WAITING, _T.DELETED}),  # only in a running study whose cluster has grown
    _T.CANCELLED: frozenset({_T.WAITING, _T.DELETED}),  # only where the limit that ended its study is raised
    _T.DELETED: frozenset(),
}

_W = WaitsFor
WAITS: dict[TrialState, frozenset[WaitsFor]] = {
    _T.WAITING: frozenset({_W.PLAN, _W.NEW_PLAN, _W.RETRY}),
    _T.QUEUED: frozenset({_W.PREDICTIONS, _W.RESUME, _W.DEVICES, _W.MAX_CONCURRENT, _W.QUOTA, _W.RETRY}),
    _T.PAUSED: frozenset({_W.COMPARISON, _W.PROMOTION, _W.REPEATS}),
}
"""All that a trial may wait for, in each state in which it waits."""

_A = AttemptState
ATTEMPT_MOVES: dict[AttemptState, frozenset[AttemptState]] = {
    _A.STARTING: frozenset({_A.RUNNING, _A.WITHDRAWN, _A.STOPPING, _A.ENDED}),
    _A.RUNNING: frozenset({_A.WITHDRAWN, _A.STOPPING, _A.ENDED}),
    _A.WITHDRAWN: frozenset({_A.STOPPING, _A.ENDED}),
    _A.STOPPING: frozenset({_A.ENDED}),
    _A.ENDED: frozenset(),
}

_S = StudyState
STUDY_MOVES: dict[StudyState, frozenset[StudyState]] = {
    _S.RUNNING: frozenset({_S.STOPPING, _S.COMPLETED, _S.FAILED}),
    _S.STOPPING: frozenset({_S.STOPPED, _S.COMPLETED, _S.FAILED}),
    _S.COMPLETED: frozenset({_S.RUNNING, _S.DELETED}),  # extended, or a candidate enqueued or a failed trial retried
    _S.STOPPED: frozenset({_S.DELETED}),
    _S.FAILED: frozenset({_S.RUNNING, _S.DELETED}),  # its failed trials are retried
    _S.EXTERNAL: frozenset({_S.COMPLETED, _S.DELETED}),
    _S.DELETED: frozenset(),
}

LIVE_TRIALS = frozenset(state for state, moves in TRIAL_MOVES.items() if TrialState.CANCELLED in moves)
"""States of trials that a controller follows. Others have ended, though some may be WAITING again."""
LIVE_STUDIES = frozenset({StudyState.RUNNING, StudyState.STOPPING})
"""Studies that a controller schedules."""
OPEN_ATTEMPTS = frozenset(state for state, moves in ATTEMPT_MOVES.items() if moves)
ENDED_WELL = frozenset({TrialState.COMPLETED, TrialState.PRUNED})


def has_no_success(study: StudyState, trials: Mapping[TrialState, int]) -> bool:
    """Whether the study has completed without a completed trial. ``trials`` are counts by state."""
    return study is StudyState.COMPLETED and not trials.get(TrialState.COMPLETED)


def seen_state(study: StudyState, spec: Mapping[str, Any]) -> StudyState:
    """The state of a study for users and their programs. ``spec`` says whether it is paused."""
    return StudyState.PAUSED if study is StudyState.RUNNING and spec.get("paused") else study


def state_text(study: StudyState, trials: Mapping[TrialState, int]) -> str:
    """The state that users see of a study in words, for pages and the CLI. ``trials`` are counts by state."""
    return study.value.capitalize() + (", no trial succeeded" if has_no_success(study, trials) else "")
