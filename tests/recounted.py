"""The numbers that the store keeps about a study, computed from all its rows: to prove that the kept ones are right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from statistics import median

from scamp_service.model import Attempt, Trial
from scamp_service.store.tallies import (
    COLOCATED,
    RANKS,
    Counted,
    ErrorSummary,
    Held,
    held_by,
    measure_trial,
    trial_tallies,
)


def tally_study(trials: Iterable[Trial], attempts: Iterable[Attempt]) -> Counted:
    """The numbers of one study, from all its trials and attempts, which are by trial and attempt."""
    by_trial: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        by_trial.setdefault(attempt.trial_id, []).append(attempt)
    every = [attempt for trial_attempts in by_trial.values() for attempt in trial_attempts]
    tallies: Counter[str] = Counter()
    for trial in trials:
        tallies += trial_tallies(trial)
    tallies += Counter(f"{RANKS}{trial_attempts[-1].plan.world_size}" for trial_attempts in by_trial.values())
    ended = [attempt for attempt in every if attempt.ended_at is not None]
    held = sum((held_by(attempt, 0.0) for attempt in ended), start=Held())
    every_tally = {**tallies, **asdict(held), COLOCATED: float(most_at_once(every, math.inf))}
    measured = [measure_trial(trial_attempts) for trial_attempts in by_trial.values()]
    return Counted(
        {name: num for name, num in every_tally.items() if num},
        error_summary(family.peak_error_pct for family in measured),
        error_summary(family.step_error_pct for family in measured),
        sum(family.num_oom for family in measured),
        max((family.least_excess_pct for family in measured if family.least_excess_pct is not None), default=None),
    )


def most_at_once(attempts: Iterable[Attempt], now: float) -> int:
    """The largest number of gangs that held one device at the same time."""
    changes: dict[str, list[tuple[float, int]]] = {}
    for attempt in attempts:
        for device in attempt.devices:
            changes.setdefault(device, []).extend([(attempt.created_at, 1), (attempt.ended_at or now, -1)])
    most = 0
    for steps in changes.values():
        gangs = 0
        for _, change in sorted(steps):
            gangs += change
            most = max(most, gangs)
    return most


def error_summary(errors: Iterable[float | None]) -> ErrorSummary:
    """Median and maximum of the errors that are known."""
    sizes = [error for error in errors if error is not None]
    return ErrorSummary(median(sizes), max(sizes)) if sizes else ErrorSummary()
