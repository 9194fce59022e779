"""Reports are stored once and in order, and stale ones are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest

from placement.packing.device_time import Watch, day_of
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import LogLine, Metric, Report
from scamp_service.store.store import Store
from scamp_service.store.summary import study_summary
from tests.scamp_service.store.trials import (
    begin,
    contents,
    metric,
    new_trial,
    queue,
    report,
    retry,
    run,
)
from tests.services.serving import SECRET, fill
from tests.values import changed, sized
from workloads.training.checkpoints.name import CheckpointName


def test_a_start_is_reported_once_and_confirmed_until_there_is_a_checkpoint(store: Store) -> None:
    trial_id = new_trial(store)
    queue(store, trial_id)
    assert begin(store, trial_id)
    assert not store.reports.start(trial_id, 1, "stolen", now=5.0)
    assert store.reports.start(trial_id, 1, "token-1", now=5.0)
    events = store.events.last_id()
    assert store.reports.start(trial_id, 1, "token-1", now=6.0)
    assert store.events.last_id() == events and store.attempts.of_trial(trial_id)[0].started_at == 5.0
    assert store.reports.add(Report(trial_id, 1, "token-1", checkpoint_step=10), now=6.5)
    assert not store.reports.start(trial_id, 1, "token-1", now=6.6), "a launch that was on its way for long"
    assert store.reports.add(Report(trial_id, 1, "token-1", checkpoint_step=20), now=6.7)
    assert store.attempts.move(trial_id, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=7.0)
    assert not store.reports.start(trial_id, 1, "token-1", now=8.0)


@pytest.mark.parametrize("outcome", [Outcome.DEPENDS_ON_DIVISION, Outcome.RESUMES_DIFFERENTLY])
def test_a_training_that_finds_that_its_curve_is_another_one_is_forgotten(store: Store, outcome: Outcome) -> None:
    trial_id = run(store)
    assert report(store, metric(trial_id, 1, 10, 0.5))
    assert store.reports.add(Report(trial_id, 1, "token-1", checkpoint_step=10), now=6.0)
    assert store.attempts.checkpoints([trial_id]) and store.trials.get(trial_id).value == 0.5
    assert store.reports.end(trial_id, 1, "token-1", outcome, "the loss changes", now=7.0)
    forgotten = store.trials.get(trial_id)
    assert (forgotten.step, forgotten.value, forgotten.best_step) == (0, None, None)
    assert store.reports.metrics(trial_id) == [] and store.attempts.checkpoints([trial_id]) == {}
    late = Report(
        trial_id, 1, "token-1", metrics=[metric(trial_id, 2, 20, 0.6)], objectives=["acc"], checkpoint_step=20
    )
    assert not store.reports.add(late, now=8.0), "rows of another rank were on their way"
    assert store.reports.metrics(trial_id) == [] and store.attempts.checkpoints([trial_id]) == {}


def test_a_stale_report_is_refused_and_stores_nothing(store: Store) -> None:
    trial_id = run(store)

    def flush(token: str, attempt: int = 1) -> bool:
        return store.reports.add(
            Report(
                trial_id,
                attempt,
                token,
                metrics=[metric(trial_id, 1, 10, 0.5, attempt)],
                logs=[LogLine(trial_id, attempt, 0, 1, 6.0, "hello")],
                objectives=["acc"],
                measured_bytes=7,
                checkpoint_step=10,
            ),
            now=6.0,
        )

    before = contents(store)
    assert not flush("stolen") and not flush("token-1", attempt=2)
    assert contents(store) == before
    assert store.attempts.move(trial_id, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=7.0)
    before = contents(store)
    assert not flush("token-1"), "it is STOPPING"
    assert store.attempts.move(trial_id, 1, [AttemptState.STOPPING], AttemptState.ENDED, now=8.0)
    assert not flush("token-1"), "it has ENDED"
    assert contents(store)[1] == before[1] and store.reports.metrics(trial_id) == [] == store.reports.logs(trial_id)


def test_reports_of_a_withdrawn_attempt_count_until_it_is_stopping_and_why_it_was_withdrawn_is_kept(
    store: Store,
) -> None:
    trial_id = run(store)
    assert store.attempts.move(
        trial_id, 1, [AttemptState.RUNNING], AttemptState.WITHDRAWN, detail="a user paused the trial", now=6.0
    )
    assert store.reports.start(trial_id, 1, "token-1", now=6.1), "another rank of its gang"
    last = Report(
        trial_id, 1, "token-1", metrics=[metric(trial_id, 1, 10, 0.5)], objectives=["acc"], checkpoint_step=13
    )
    assert store.reports.add(last, now=6.2) and store.trials.get(trial_id).value == 0.5
    assert store.reports.end(trial_id, 1, "token-1", Outcome.STOPPED, "", now=6.3)
    attempt = store.attempts.of_trial(trial_id)[0]
    assert (attempt.outcome, attempt.detail) == (Outcome.STOPPED, "a user paused the trial")
    assert store.attempts.checkpoints([trial_id]) == {trial_id: CheckpointName(trial_id, 13)}
    assert store.attempts.move(trial_id, 1, [AttemptState.WITHDRAWN], AttemptState.STOPPING, now=7.0)
    assert not store.reports.add(replace(last, checkpoint_step=14), now=8.0)


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.ERROR])
def test_a_withdrawn_attempt_that_ends_otherwise_says_how(store: Store, outcome: Outcome) -> None:
    trial_id = run(store)
    assert store.attempts.move(
        trial_id, 1, [AttemptState.RUNNING], AttemptState.WITHDRAWN, detail="a user paused the trial", now=6.0
    )
    assert store.reports.end(trial_id, 1, "token-1", outcome, "", now=6.3)
    assert store.attempts.of_trial(trial_id)[0].detail == ""


def test_an_attempt_that_is_withdrawn_before_it_starts_does_not_start(store: Store) -> None:
    trial_id = new_trial(store)
    queue(store, trial_id)
    assert begin(store, trial_id)
    assert store.attempts.move(trial_id, 1, [AttemptState.STARTING], AttemptState.WITHDRAWN, now=5.0)
    assert not store.reports.start(trial_id, 1, "token-1", now=6.0)


def test_a_report_may_come_before_that_of_the_start(store: Store) -> None:
    trial_id = new_trial(store)
    queue(store, trial_id)
    assert begin(store, trial_id)
    assert report(store, metric(trial_id, 1, 10, 0.5))


def test_a_report_that_arrives_twice_counts_once(store: Store) -> None:
    trial_id = run(store)
    rows = [metric(trial_id, 1, 10, 0.5), metric(trial_id, 2, 20, 0.6)]
    lines = [LogLine(trial_id, 1, rank, 1, 6.0, f"rank {rank}") for rank in range(2)]
    for _ in range(2):
        assert store.reports.add(Report(trial_id, 1, "token-1", metrics=rows, logs=lines, objectives=["acc"]), now=6.0)
    assert store.reports.metrics(trial_id) == rows
    assert [line for _, line in store.reports.logs(trial_id)] == lines
    events = [event for event in store.events.page() if event.kind == "metrics"]
    assert [event.data for event in events] == [{"trial": trial_id, "step": 20, "values": {"acc": 0.6, "loss": 1.0}}]
    assert (events[0].study_id, events[0].trial_id) == (1, trial_id)


def test_value_follows_the_newest_row_whatever_order_flushes_arrive_in(store: Store) -> None:
    trial_id = run(store)
    assert report(store, metric(trial_id, 2, 20, 0.6))
    assert report(store, metric(trial_id, 1, 10, 0.5)), "late, but welcome to the curve"
    assert [m.step for m in store.reports.metrics(trial_id)] == [10, 20]
    assert (store.trials.get(trial_id).step, store.trials.get(trial_id).value) == (20, 0.6)
    without = Metric(trial_id, 1, 3, 30, {"loss": 0.1}, 6.0)
    assert report(store, without)
    assert (store.trials.get(trial_id).step, store.trials.get(trial_id).value) == (20, 0.6)


def test_where_attempts_overlap_the_newest_counts(store: Store) -> None:
    trial_id = run(store)
    assert report(store, *(metric(trial_id, n, 10 * n, n / 10) for n in (1, 2, 3)))
    retry(store, trial_id, 2)
    assert report(store, metric(trial_id, 1, 20, 0.9, attempt=2))
    assert [(m.step, m.attempt, m.values["acc"]) for m in store.reports.metrics(trial_id)] == [
        (10, 1, 0.1),
        (20, 2, 0.9),
        (30, 1, 0.3),
    ]
    assert (store.trials.get(trial_id).step, store.trials.get(trial_id).value) == (20, 0.9)
    assert store.reports.rungs(1, ["acc"], [20, 30, 40]) == {20: {0: (0.9,)}, 30: {0: (0.3,)}, 40: {}}


def test_the_measured_share_of_communication_stays_when_later_reports_have_none(store: Store) -> None:
    trial_id = run(store)
    assert store.attempts.of_trial(trial_id)[0].measured_communication_share is None
    assert store.reports.add(Report(trial_id, 1, "token-1", communication_share=0.4), now=6.0)
    assert store.reports.add(Report(trial_id, 1, "token-1", measured_bytes=9), now=7.0)
    assert store.attempts.of_trial(trial_id)[0].measured_communication_share == 0.4
    assert store.trials.get(trial_id).measured_communication_share == 0.4


def test_the_newest_load_is_kept_and_counts_for_its_owner_and_its_study(store: Store) -> None:
    trial_id = run(store)
    load = (Watch(60.0, 60.0, 1.0, 80.5), Watch(120.0, 60.0, 0.5, 81.0))
    for newer in (load[:1], load, ()):
        assert store.reports.add(Report(trial_id, 1, "token-1", measured_bytes=9, load=newer), now=121.0)
    assert store.attempts.open()[0].load == load
    (open_use,) = store.usage.of_days(day_of(0.0), day_of(0.0), now=130.0)
    assert (open_use.time.watched_seconds, open_use.time.busy_share) == (240.0, 0.75), "of two devices"
    open_states = (AttemptState.STARTING, AttemptState.RUNNING)
    assert store.attempts.move(trial_id, 1, open_states, AttemptState.ENDED, outcome=Outcome.DONE, now=130.0)
    assert store.usage.of_days(day_of(0.0), day_of(0.0), now=999.0) == [open_use]
    assert study_summary(store, 1, now=130.0).busy_share == 0.75


def test_the_step_time_of_the_most_steps_is_kept_however_reports_arrive(store: Store) -> None:
    trial_id = run(store)
    assert store.attempts.of_trial(trial_id)[0].measured_step_seconds is None
    for seconds, steps, checks in ((0.5, 4, 0.2), (0.0, 0, 0.0), (0.3, 20, 0.01), (0.5, 4, 0.2), (0.3, 20, 0.01)):
        timed = Report(trial_id, 1, "token-1", step_seconds=seconds, timed_steps=steps, check_share=checks)
        assert store.reports.add(timed, now=6.0)
    assert not store.reports.add(Report(trial_id, 1, "stale", step_seconds=9.0, timed_steps=99), now=6.0)
    attempt = store.attempts.of_trial(trial_id)[0]
    assert (attempt.measured_step_seconds, attempt.timed_steps) == (0.3, 20)
    assert (store.trials.get(trial_id).measured_step_seconds, store.trials.get(trial_id).check_share) == (0.3, 0.01)
    late: dict[str, Any] = {"step_seconds": 0.7, "timed_steps": 10, "measured_bytes": 8}
    assert report(store, metric(trial_id, 1, 10, 0.1))
    assert store.reports.add(Report(trial_id, 1, "token-1", **late), now=7.0)
    assert store.trials.get(trial_id).measured_step_seconds == 0.3, "an old report does not undo a newer one"


def test_a_metric_and_a_step_time_of_one_flush_are_both_stored(store: Store) -> None:
    trial_id = run(store)
    rows = [metric(trial_id, 1, 10, 0.4)]
    assert store.reports.add(
        Report(trial_id, 1, "token-1", metrics=rows, objectives=["acc"], step_seconds=0.2, timed_steps=7),
        now=6.0,
    )
    trial = store.trials.get(trial_id)
    assert (trial.value, trial.measured_step_seconds) == (0.4, 0.2)


def test_a_new_attempt_of_a_plan_keeps_its_step_time_until_it_has_its_own_and_a_new_plan_does_not(
    store: Store,
) -> None:
    trial_id = run(store)
    assert store.reports.add(Report(trial_id, 1, "token-1", step_seconds=0.3, timed_steps=20), now=6.0)
    retry(store, trial_id, 2)
    assert store.trials.get(trial_id).measured_step_seconds == 0.3
    assert store.reports.add(Report(trial_id, 2, "token-2", step_seconds=0.4, timed_steps=2), now=7.0)
    assert store.trials.get(trial_id).measured_step_seconds == 0.4
    assert [attempt.measured_step_seconds for attempt in store.attempts.of_trial(trial_id)] == [0.3, 0.4]
    replanned = changed(sized(), step_seconds=0.6, step_factor=1.5)
    assert store.trials.move(trial_id, TrialState.RUNNING, 2, TrialState.QUEUED, now=8.0, sized=replanned)
    trial = store.trials.get(trial_id)
    assert (trial.predicted_step_seconds, trial.measured_step_seconds) == (0.6, None)
    assert trial.sized is not None and trial.sized.choice.step_factor == 1.5


def test_peaks_and_checkpoints_only_grow(store: Store) -> None:
    trial_id = run(store)
    for measured_bytes, step in ((2**33, 40), (5, 20), (0, -1)):
        assert store.reports.add(
            Report(trial_id, 1, "token-1", measured_bytes=measured_bytes, checkpoint_step=step), now=6.0
        )
    attempt = store.attempts.of_trial(trial_id)[0]
    assert (attempt.measured_bytes, attempt.checkpoint_step) == (2**33, 40)
    retry(store, trial_id, 2)
    assert store.reports.add(Report(trial_id, 2, "token-2", measured_bytes=9), now=6.0)
    assert store.attempts.of_trial(trial_id)[1].measured_bytes == 9
    assert store.trials.get(trial_id).measured_bytes == 2**33
    assert store.attempts.checkpoints([trial_id, 99]) == {trial_id: CheckpointName(trial_id, 40)}
    assert store.attempts.checkpoints([]) == {}


def test_the_first_outcome_stays(store: Store) -> None:
    trial_id = run(store)
    assert not store.reports.end(trial_id, 1, "stolen", Outcome.DONE, "", now=6.0)
    assert store.attempts.of_trial(trial_id)[0].outcome is None
    assert store.reports.end(trial_id, 1, "token-1", Outcome.OUT_OF_MEMORY, "rank 1", now=6.0, phase="a step")
    events = store.events.last_id()
    assert store.reports.end(trial_id, 1, "token-1", Outcome.OUT_OF_MEMORY, "rank 1", now=7.0)
    assert store.reports.end(trial_id, 1, "token-1", Outcome.ERROR, "rank 0: connection reset", now=7.0)
    assert store.events.last_id() == events
    changes: dict[str, Any] = {"outcome": Outcome.LOST, "detail": "gone"}
    assert store.attempts.move(trial_id, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=8.0)
    assert store.attempts.move(trial_id, 1, [AttemptState.STOPPING], AttemptState.ENDED, now=9.0, **changes)
    attempt = store.attempts.of_trial(trial_id)[0]
    assert (attempt.outcome, attempt.detail, attempt.ended_at) == (Outcome.OUT_OF_MEMORY, "rank 1", 9.0)
    assert attempt.phase == "a step"
    assert store.reports.end(trial_id, 1, "token-1", Outcome.OUT_OF_MEMORY, "rank 1", now=10.0), "a repeat"
    assert not store.reports.end(trial_id, 1, "token-1", Outcome.DONE, "", now=10.0)


def test_a_stopping_attempt_may_say_how_it_ended_and_an_ended_one_not(store: Store) -> None:
    first, second = run(store, 0), run(store, 1)
    assert store.attempts.move(first, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=6.0)
    assert store.reports.end(first, 1, "token-1", Outcome.STOPPED, "asked to", now=7.0)
    lost: dict[str, Any] = {"outcome": Outcome.LOST, "detail": "node gone"}
    assert store.attempts.move(second, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=6.0, **lost)
    assert not store.reports.end(second, 1, "token-1", Outcome.DONE, "", now=7.0)
    assert [store.attempts.of_trial(t)[0].outcome for t in (first, second)] == [Outcome.STOPPED, Outcome.LOST]
    assert store.attempts.of_trial(second)[0].detail == "node gone"


def test_text_that_a_database_would_refuse_is_mended(store: Store) -> None:
    trial_id = run(store)
    bad = "nul \0, surrogate \udc80, fine é 🙂"
    assert store.reports.add(Report(trial_id, 1, "token-1", logs=[LogLine(trial_id, 1, 0, 1, 6.0, bad)]), now=6.0)
    assert store.reports.end(trial_id, 1, "token-1", Outcome.ERROR, bad, now=7.0)
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, TrialState.FAILED, reason=bad, now=8.0)
    mended = "nul \ufffd, surrogate ?, fine é 🙂"
    assert store.reports.logs(trial_id)[0][1].text == store.attempts.of_trial(trial_id)[0].detail == mended
    assert store.trials.get(trial_id).reason == mended


def test_a_trial_that_counts_by_its_best_report_keeps_it_whatever_comes_later_or_again(store: Store) -> None:
    trial_id = run(store)

    def reached(*rows: tuple[int, int, float]) -> tuple[float | None, int | None, int]:
        metrics = [metric(trial_id, seq, step, value) for seq, step, value in rows]
        assert store.reports.add(
            Report(trial_id, 1, "token-1", metrics=metrics, objectives=["acc"], best_of="maximize"), now=6.0
        )
        trial = store.trials.get(trial_id)
        return trial.value, trial.best_step, trial.step

    assert reached((1, 10, float("nan"))) == (None, None, 10), "NaN is not a value to count by"
    assert reached((2, 20, 0.5), (3, 30, 0.7), (4, 40, 0.6)) == (0.7, 30, 40)
    assert reached((5, 50, float("inf")), (6, 60, 0.7)) == (0.7, 30, 60)
    assert reached((6, 60, 0.7), (7, 70, 0.8)) == (0.8, 70, 70), "a report that is repeated counts once"
    assert reached((8, 80, -1.0)) == (0.8, 70, 80)


def test_the_noise_scale_of_a_trial_stays_when_later_reports_have_none(store: Store) -> None:
    trial_id = run(store)
    assert store.trials.get(trial_id).noise_scale is None
    assert store.reports.add(Report(trial_id, 1, "token-1", noise_scale=40.0), now=6.0)
    assert store.reports.add(Report(trial_id, 1, "token-1", measured_bytes=9), now=7.0)
    assert store.trials.get(trial_id).noise_scale == 40.0


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_of_a_curve_have_each_step_once_however_often_it_was_reported(store: Store, limit: int) -> None:
    study = fill(store)
    trial_id = store.trials.page(study.id)[1].id
    steps = [1, 1, 1, 1, 1, 2, 3, 3, 4, 5, 5, 5]
    rows = [Metric(trial_id, 1, seq, step, {"accuracy": float(seq)}, 1.0) for seq, step in enumerate(steps)]
    assert store.reports.add(Report(trial_id, 1, SECRET, metrics=rows, objectives=["accuracy"]), now=1.0)
    curve: list[Metric] = []
    while page := store.reports.metrics(trial_id, after=curve[-1].step if curve else -1, limit=limit):
        assert len(page) <= limit
        curve += page
    assert [(row.step, row.seq) for row in curve] == [(1, 4), (2, 5), (3, 7), (4, 8), (5, 11)], "the newest row counts"
    assert [point.values["accuracy"] for point in store.reports.curves([trial_id])[trial_id]] == [
        4.0,
        5.0,
        7.0,
        8.0,
        11.0,
    ]


@pytest.mark.parametrize(
    ("best_of", "expected"), [("", {"acc": 0.6, "loss": None}), ("maximize", {"acc": 0.7, "loss": 0.3})]
)
def test_the_metrics_of_a_trial_are_those_of_the_evaluation_that_it_counts_by(
    store: Store, best_of: Literal["", "maximize"], expected: dict[str, float | None]
) -> None:
    trial_id = run(store)
    assert store.reports.counted_metrics([trial_id]) == {}
    curve = [(10, 0.5, 0.9), (20, 0.7, 0.3), (30, 0.6, math.nan)]
    metrics = [Metric(trial_id, 1, step, step, {"acc": acc, "loss": loss}, 1.0) for step, acc, loss in curve]
    report = Report(trial_id, 1, "token-1", metrics=metrics, objectives=["acc"], best_of=best_of)
    assert store.reports.add(report, now=6.0)
    assert store.reports.counted_metrics([trial_id]) == {trial_id: expected}
