"""The numbers that are kept about a study are those that counting all its trials and attempts gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import count as ticks
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from estimators.model import MIB, Plan
from scamp_service.lifecycle import OPEN_ATTEMPTS, TRIAL_MOVES, AttemptState, Outcome, TrialState
from scamp_service.model import NO_CHANGES, Attempt, Report, Trial, TrialChanges, reserved_mibs
from scamp_service.store.store import Store
from scamp_service.store.summary import study_summary
from scamp_service.store.tallies import Counted, ErrorSummary, Held, held_by
from tests.recounted import error_summary, tally_study
from tests.values import attempt, changed, new_attempt, sized, trial

SPEC = {"name": "s", "objective": {"metric": "m", "direction": "maximize"}}
S = TrialState

steps = st.lists(st.tuples(st.sampled_from(["create", "move", "begin", "report", "outcome", "end"]), st.integers(0, 5),
                           st.randoms(use_true_random=False)), min_size=10, max_size=40)  # fmt: skip


class Walk:
    """Random changes of a new study, each at a second of its own."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, ticks(1)
        self.study = store.studies.create(SPEC, now=0.0).id

    def step(self, name: str, number: int, source: Any) -> None:
        now, trials = float(next(self.clock)), self.store.trials.page(self.study)
        if name == "create" or not trials:
            self.store.trials.create(self.study, [(len(trials), {}), (len(trials) + 1, {})], now=now)
            return
        chosen = trials[number % len(trials)]
        attempts = self.store.attempts.of_trial(chosen.id)
        match name:
            case "move" if chosen.state in (S.WAITING, S.QUEUED, S.RUNNING):
                self.move(chosen, source, now)
            case "begin" if chosen.state is S.QUEUED and not any(row.state in OPEN_ATTEMPTS for row in attempts):
                self.begin(chosen, source, now)
            case "report" | "outcome" | "end" if attempts:
                self.follow(name, attempts[-1], source, now)

    def move(self, chosen: Trial, source: Any, now: float) -> None:
        to = source.choice([chosen.state, *sorted(TRIAL_MOVES[chosen.state] - {S.RUNNING, S.PAUSED})])
        plan = None
        if source.random() < 0.5 or to is S.QUEUED:
            plan = sized(Plan(8), 40, 30 * MIB, source.choice([0, 5 * MIB]))
        possible = [NO_CHANGES, TrialChanges(num_oom=chosen.num_oom + 1), TrialChanges(family=source.choice("ab"))]
        changes, move = source.choice(possible), (chosen.id, chosen.state, chosen.attempt, to)
        assert self.store.trials.move(*move, now=now, sized=plan, changes=changes)

    def begin(self, chosen: Trial, source: Any, now: float) -> None:
        plan = Plan(8, dp_shard=source.choice([1, 2]))
        devices = tuple(source.sample(["n/0", "n/1", "n/2"], plan.world_size))
        begun = new_attempt(chosen.id, chosen.attempt + 1, plan=plan, devices=devices, reserved_mib=40, now=now)
        predicted = source.choice([None, 0.5])
        assert self.store.attempts.begin(changed(begun, step_seconds=predicted))

    def follow(self, name: str, last: Attempt, source: Any, now: float) -> None:
        trial, attempt = last.trial_id, last.attempt
        match name:
            case "report":
                measured_bytes, step_seconds = source.randrange(50) * MIB, 0.1 + source.random()
                timed_steps = source.choice([0, 3, 9])
                report = Report(
                    trial,
                    attempt,
                    "t",
                    measured_bytes=measured_bytes,
                    step_seconds=step_seconds,
                    timed_steps=timed_steps,
                )
                self.store.reports.add(report, now=now)
            case "outcome":
                self.store.reports.end(trial, attempt, "t", source.choice(list(Outcome)), "", now=now)
            case "end" if last.state in OPEN_ATTEMPTS:
                outcome = source.choice([Outcome.OUT_OF_MEMORY, Outcome.LOST])
                ended = [AttemptState.STARTING, AttemptState.RUNNING]
                self.store.attempts.move(trial, attempt, ended, AttemptState.ENDED, outcome=outcome, now=now)


def close(kept: Counted, counted: Counted) -> bool:
    """Equal but for rounding."""
    same = replace(kept, tallies={}) == replace(counted, tallies={})
    return same and kept.tallies == pytest.approx(dict(counted.tallies))


@pytest.mark.full
@pytest.mark.sample
@settings(
    max_examples=25,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=steps)
def test_the_kept_numbers_are_those_that_counting_gives(store: Store, walk: list[Any]) -> None:
    course = Walk(store)
    for step in walk:
        course.step(*step)
    counted = tally_study(store.trials.every(course.study), store.attempts.of_study(course.study))
    assert close(store.counts.counted(course.study), counted)
    summary = study_summary(store, course.study, now=500.0)
    assert summary.trials == {state.value: num for state, num in counted.states.items()}
    held = sum((held_by(row, 500.0) for row in store.attempts.of_study(course.study)), start=Held())
    assert summary.device_seconds == pytest.approx(held.device_seconds)
    assert asdict(store.counts.held(course.study, now=500.0)) == pytest.approx(asdict(held))


def test_an_attempt_holds_devices_and_memory_for_its_time() -> None:
    held = attempt(devices=("a", "b"), created_at=1.0, reserved_mib=40, measured_bytes=30 * MIB)
    assert held_by(held, 6.0) == Held(device_seconds=10, mib_seconds=400, used_mib_seconds=300)
    ended = replace(held, ended_at=3.0, measured_communication_share=0.25)
    assert held_by(ended, 6.0) == Held(4, communication_seconds=1, mib_seconds=160, used_mib_seconds=120)
    assert held_by(held, 6.0) + held_by(ended, 6.0) == Held(14, 1, 560, 420)
    first = replace(held, pack=held.key, shared_mib=25)
    later = replace(first, trial_id=9)
    assert [held_by(each, 6.0).mib_seconds for each in (first, later)] == [400, 150], "of weights that are there once"
    assert [mib for _, mib in reserved_mibs([first, later])] == [40, 15]
    assert [mib for _, mib in reserved_mibs([later])] == [40], "whoever began it has ended"


def test_a_move_that_lost_its_race_counts_nothing(store: Store) -> None:
    study = store.studies.create(SPEC, now=0.0).id
    store.trials.create(study, [(0, {})], now=0.0)
    store.trials.create(study, [(0, {})], now=0.0)
    first = store.trials.page(study)[0].id
    assert store.trials.move(first, S.WAITING, 0, S.QUEUED, sized=sized(), now=1.0)
    assert not store.trials.move(first, S.WAITING, 0, S.FAILED, now=1.0)
    assert not store.attempts.begin(new_attempt(first, 2))
    assert store.counts.states(study) == {S.QUEUED: 1}
    assert store.counts.totals().trials == {S.QUEUED: 1}


def test_threads_that_move_trials_of_one_study_at_once_do_not_lose_a_count(shared_url: str) -> None:
    """On PostgreSQL two transactions must not wait for each other either: that would raise."""
    store = Store(shared_url)
    study = store.studies.create(SPEC, now=0.0).id
    store.trials.create(study, [(number, {}) for number in range(24)], now=0.0)

    def live(running: Trial) -> None:
        assert store.trials.move(
            running.id, S.WAITING, 0, S.QUEUED, sized=sized(), changes=TrialChanges(family="f"), now=1.0
        )
        assert store.trials.move(running.id, S.QUEUED, 0, S.WAITING, now=2.0)
        assert store.trials.move(running.id, S.WAITING, 0, S.QUEUED, now=3.0)
        assert store.attempts.begin(new_attempt(running.id, devices=(f"n/{running.number}",)))
        assert store.reports.add(Report(running.id, 1, "t", measured_bytes=10 * MIB), now=4.0)
        assert store.attempts.move(running.id, 1, [AttemptState.STARTING], AttemptState.ENDED, now=5.0)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(live, store.trials.page(study)))
    assert close(store.counts.counted(study), tally_study(store.trials.page(study), store.attempts.of_study(study)))
    store.close()


@pytest.mark.parametrize("num", range(5))
def test_the_median_is_the_mean_of_the_two_in_the_middle(store: Store, num: int) -> None:
    study = store.studies.create(SPEC, now=0.0).id
    store.trials.create(study, [(number, {}) for number in range(num)], now=0.0)
    for row in store.trials.page(study):
        store.trials.move(row.id, S.WAITING, 0, S.QUEUED, sized=sized(), now=1.0)
        store.attempts.begin(new_attempt(row.id))
        store.reports.add(Report(row.id, 1, "t", measured_bytes=(10 + row.number**2) * MIB), now=2.0)
    errors = [abs(100.0 * (20 - measured) / measured) for measured in (10 + number**2 for number in range(num))]
    kept = store.counts.counted(study).peak_error_pct
    assert (kept.median, kept.max) == pytest.approx((error_summary(errors).median, error_summary(errors).max))
    assert store.counts.counted(study).step_error_pct == ErrorSummary()


def test_an_attempt_that_later_runs_out_of_memory_takes_back_its_measurement() -> None:
    exact = attempt(predicted_bytes=20 * MIB, measured_bytes=10 * MIB)
    failed = replace(exact, outcome=Outcome.OUT_OF_MEMORY, measured_bytes=30 * MIB)
    assert tally_study([trial()], [exact]).peak_error_pct == ErrorSummary(100.0, 100.0)
    assert tally_study([trial()], [failed]) == replace(
        tally_study([trial()], [failed]), peak_error_pct=ErrorSummary(), num_oom=1
    )
