"""The effects that decisions return. Each is one transaction of the store, then at most one repeatable act."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from scamp_service.control.executor import Demand, Order
from scamp_service.lifecycle import WAITS, AttemptState, Outcome, StudyState, TrialState, WaitsFor
from scamp_service.model import Attempt, Json, Sized, Trial, TrialChanges
from scamp_service.study.values import Params


@dataclass(frozen=True, slots=True)
class MoveTrial:
    """Change a trial's state and reason, what else changes with them, and its plan when there is a new one.

    One that then waits is said to wait for something: programs read ``waits_for``, users read ``reason``.
    """

    trial: Trial
    to: TrialState
    reason: str
    changes: TrialChanges = field(default_factory=TrialChanges)
    sized: Sized | None = None
    waits_for: WaitsFor | None = None

    def __post_init__(self) -> None:
        allowed: Container[WaitsFor | None] = WAITS.get(self.to, (None,))
        assert self.waits_for in allowed, f"a trial that is {self.to} does not wait for {self.waits_for}"


@dataclass(frozen=True, slots=True)
class Branch:
    """End a paused trial, and create a copy of ``donor`` with ``params``: it begins with its checkpoint of ``step``."""

    trial: Trial
    donor: Trial
    params: Json
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Pause a trial that has trained to its end, and create ``count`` trials that repeat it with other seeds."""

    trial: Trial
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class MoveAttempt:
    """Change an attempt's state, and store its outcome with its detail if it has none yet."""

    attempt: Attempt
    to: AttemptState
    outcome: Outcome | None = None
    detail: str = ""


def withdraw(attempt: Attempt, why: str) -> MoveAttempt:
    """Let the attempt end with a checkpoint, from which its trial continues when there is room (``follow``)."""
    return MoveAttempt(attempt, AttemptState.WITHDRAWN, detail=why)


@dataclass(frozen=True, slots=True)
class Begin:
    """Commit the attempt, then launch it. The controller puts the same new token into both."""

    attempt: Attempt
    order: Order


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch an attempt that is already committed, but whose gang has not been seen."""

    order: Order


@dataclass(frozen=True, slots=True)
class StopGang:
    """End every rank of a gang. ``key`` is ``trial/attempt``. ``keep``: once they have written a checkpoint."""

    key: str
    reason: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """Start sizing a trial."""

    trial: Trial
    demand: Demand


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the sampler for ``count`` candidates, numbered from ``first_number``."""

    study_id: int
    first_number: int
    count: int


@dataclass(frozen=True, slots=True)
class CreateTrials:
    """Store proposed candidates as trials, numbered from ``first_number``. After the last ones none will follow.

    ``parents`` has for each of them the number of the trial with whose weights it begins, or None; or it is empty.
    ``reasons`` say why each was chosen; or it is empty.
    """

    study_id: int
    first_number: int
    candidates: Sequence[Params]
    is_last: bool = False
    parents: Sequence[int | None] = ()
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NoteRegret:
    """Store the bound on the regret of a study, which may end it."""

    study_id: int
    regret: float


@dataclass(frozen=True, slots=True)
class FinishStudy:
    """Move a study to STOPPING, with the state that it then ``ends_as``, or to a final state."""

    study_id: int
    to: StudyState
    reason: str = ""
    ends_as: StudyState | None = None


Effect = (
    MoveTrial
    | Branch
    | Repeat
    | MoveAttempt
    | Begin
    | Launch
    | StopGang
    | Size
    | Propose
    | CreateTrials
    | NoteRegret
    | FinishStudy
)


def study_of(effect: Effect) -> int:
    """Id of the study that an effect concerns; 0 for one that names only an attempt."""
    match effect:
        case MoveTrial(trial=trial) | Branch(trial=trial) | Repeat(trial=trial) | Size(trial=trial):
            return trial.study_id
        case Begin(order=order) | Launch(order=order):
            return order.study_id
        case (
            Propose(study_id=study_id)
            | CreateTrials(study_id=study_id)
            | NoteRegret(study_id=study_id)
            | FinishStudy(study_id=study_id)
        ):
            return study_id
        case MoveAttempt() | StopGang():
            return 0


def words_of(effect: Effect) -> str:
    """Describes the effect in words that follow "could not"."""
    match effect:
        case MoveTrial(trial=trial, to=to):
            return f"change trial {trial.number} from {trial.state} to {to}"
        case Branch(trial=trial, donor=donor):
            return f"replace trial {trial.number} by a copy of trial {donor.number}"
        case Repeat(trial=trial, count=count):
            return f"repeat trial {trial.number} {count} times"
        case MoveAttempt(attempt=attempt, to=to):
            return f"change attempt {attempt.key} to {to}"
        case Begin(order=order) | Launch(order=order):
            return f"start attempt {order.key}"
        case StopGang(key=key):
            return f"stop attempt {key}"
        case Size(trial=trial):
            return f"ask for a plan of trial {trial.number}"
        case Propose(count=count):
            return f"propose {count} candidates"
        case CreateTrials(candidates=candidates):
            return f"store {len(candidates)} candidates"
        case NoteRegret(regret=regret):
            return f"store the bound {regret:.4g} on the regret"
        case FinishStudy(to=to):
            return f"change the study to {to}"
