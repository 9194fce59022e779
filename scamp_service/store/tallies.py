"""The numbers that the store keeps about each study, so that nobody has to read all its trials to know them.

Every transaction that changes a trial or an attempt also changes them. Pure; the parts of the store write the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Protocol

from estimators.model import MIB, Prediction
from placement.packing.device_time import DeviceTime
from scamp_service.lifecycle import ENDED_WELL, Origin, Outcome, TrialState
from scamp_service.model import Attempt, brought_mib

COLOCATED, HEALED, SPARED, UNEVEN = "colocated", "healed", "spared", "uneven"
"""Names of tallies. Others are the fields of ``Held``, the states of trials, ``external STATE``, ``ranks N`` and
``family F``."""
RANKS, FAMILY, EXTERNAL = "ranks ", "family ", "external "
BESIDE = "beside"


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Median and maximum of some errors in percent, without their signs; None when there are none."""

    median: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Devices and memory that attempts have held.

    ``device_seconds`` are seconds × devices, and ranks waited for messages in ``communication_seconds`` of them.
    In ``watched_seconds`` of them it was measured how busy the devices were, which adds up to ``busy_seconds``.
    ``mib_seconds`` are seconds × MiB that were reserved, and ``used_mib_seconds`` those that the ranks had at their
    peak. Attempts that have measured nothing yet count as if they had not waited, and had used nothing.
    """

    device_seconds: float = 0.0
    communication_seconds: float = 0.0
    mib_seconds: float = 0.0
    used_mib_seconds: float = 0.0
    watched_seconds: float = 0.0
    busy_seconds: float = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of the attempts of one trial.

    ``peak_error_pct`` and ``step_error_pct`` are errors of predictions without their sign, for the last attempt that
    measured the peak exactly or timed steps (None: none did). ``num_oom`` attempts ran out of memory, and the worst
    exceeded its prediction by at least ``least_excess_pct``.
    """

    peak_error_pct: float | None = None
    step_error_pct: float | None = None
    num_oom: int = 0
    least_excess_pct: float | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers of one study.

    ``tallies`` are by name: trials by state, by the ranks of their last gang and by family; trials that are
    ``Trial.is_healed``, spared ones, and those whose samples differ in size; the most gangs at once on one device;
    what attempts that have ended had held (``Held``). The rest sums up what the
    trials measured.
    """

    tallies: Mapping[str, float]
    peak_error_pct: ErrorSummary = ErrorSummary()
    step_error_pct: ErrorSummary = ErrorSummary()
    num_oom: int = 0
    least_excess_pct: float | None = None

    @property
    def states(self) -> dict[TrialState, int]:
        """Number of trials by state; absent states are left out."""
        return num_trials_by_state(self.tallies)

    @property
    def families(self) -> list[str]:
        """Families of trials, the one with the most trials first."""
        return list(self._named(FAMILY))

    @property
    def degrees(self) -> dict[str, int]:
        """Number of trials by the ranks of their last gang."""
        by_degree = self._named(RANKS)
        return {degree: by_degree[degree] for degree in sorted(by_degree, key=int)}

    def _named(self, prefix: str) -> dict[str, int]:
        by_name = {name.removeprefix(prefix): int(num) for name, num in self.tallies.items() if name.startswith(prefix)}
        return {name: num for name, num in sorted(by_name.items(), key=lambda item: (-item[1], item[0])) if num}


COUNTED = ("state", "attempt", "num_oom", "family", "origin", "sized")
"""Fields of a trial that tallies depend on."""


def num_trials_by_state(tallies: Mapping[str, float]) -> dict[TrialState, int]:
    """Number of trials by state; absent states are left out."""
    scamp_states = own_states(tallies)
    both = {state: scamp_states.get(state, 0) + int(tallies.get(EXTERNAL + state, 0)) for state in TrialState}
    return {state: num for state, num in both.items() if num and state is not TrialState.DELETED}


def own_states(tallies: Mapping[str, float]) -> dict[TrialState, int]:
    """Number of the trials that ScaMP runs, also of deleted ones, by state; absent states are left out."""
    return {state: int(tallies[state]) for state in TrialState if tallies.get(state)}


def trial_tallies(trial: Any) -> Counter[str]:
    """The tallies in which one trial with the fields ``COUNTED`` counts, but for the ranks of its gang."""
    if trial.origin is Origin.EXTERNAL:
        return Counter([EXTERNAL + trial.state.value])
    names = [str(trial.state.value)]
    if trial.origin is not Origin.SEARCH:
        names.append(BESIDE)
    if trial.family:
        names.append(FAMILY + trial.family)
    if trial.num_oom and trial.state in ENDED_WELL:
        names.append(HEALED)
    if trial.sized and trial.sized.prediction.extra_bytes > 0 and trial.num_oom == 0 and trial.attempt > 0:
        names.append(SPARED)
    if trial.sized and trial.sized.is_uneven:
        names.append(UNEVEN)
    return Counter(names)


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Computes what must be added to tallies when a trial that counted in ``before`` counts in ``after``."""
    changes = {name: float(after.get(name, 0) - before.get(name, 0)) for name in (*before, *after)}
    return {name: change for name, change in changes.items() if change}


def held_by(attempt: Any, now: float) -> Held:
    """Devices and memory that an attempt has held until it ended, or until ``now``."""
    ended = now if attempt.ended_at is None else attempt.ended_at
    num_devices, brought = len(attempt.devices), brought_mib(attempt)
    time = DeviceTime.of_gang(ended - attempt.created_at, num_devices, 0, attempt.load)
    seconds = time.device_seconds
    return Held(
        device_seconds=seconds,
        communication_seconds=seconds * (attempt.measured_communication_share or 0.0),
        mib_seconds=seconds * (attempt.choice.prediction.reserved_mib - brought),
        used_mib_seconds=seconds * max(0.0, attempt.measured_bytes / MIB - brought),
        watched_seconds=time.watched_seconds,
        busy_seconds=time.busy_seconds,
    )


def measure_trial(attempts: Iterable[Attempt]) -> Measurements:
    """Collects the measurements of one trial. ``attempts`` are its attempts by number."""
    peak = step = None
    excesses: list[float] = []
    for attempt in attempts:
        if is_exact(attempt):
            peak = next(map(abs, prediction_errors_pct([attempt])), None)
        if (slip := step_error_pct(attempt)) is not None:
            step = abs(slip)
        if attempt.outcome is Outcome.OUT_OF_MEMORY:
            excesses.append(least_excess_pct(attempt))
    return Measurements(peak, step, len(excesses), max(excesses, default=None))


# --- one attempt ------------------------------------------------------------------------------------------------------


def is_exact(attempt: Attempt) -> bool:
    """Whether the attempt measured its peak, and not just what it held when it ran out of memory."""
    return attempt.measured_bytes > 0 and attempt.outcome is not Outcome.OUT_OF_MEMORY


def least_excess_pct(failed: Attempt) -> float:
    """Lower bound, in percent, on how far the need of an attempt that ran out of memory was above its prediction."""
    return 100.0 * (failed.least_bytes - failed.expected_bytes) / failed.expected_bytes


class HasPrediction(Protocol):
    """The prediction and the measured peak of a ``Trial`` or an ``Attempt``."""

    @property
    def prediction(self) -> Prediction: ...
    @property
    def measured_bytes(self) -> int: ...


def prediction_errors_pct(measured: Iterable[HasPrediction]) -> list[float]:
    """Signed error in percent of each prediction that has a measured peak: see ``Prediction.error_pct``."""
    return [
        item.prediction.error_pct(item.measured_bytes)
        for item in measured
        if item.measured_bytes and item.prediction.predicted_bytes
    ]


def step_error_pct(attempt: Attempt) -> float | None:
    """Signed error in percent of the predicted seconds of a step; None unless they were predicted and measured."""
    predicted, measured = attempt.choice.step_seconds, attempt.measured_step_seconds
    return 100.0 * (predicted - measured) / measured if predicted and measured else None
