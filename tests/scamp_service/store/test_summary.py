"""Attempts of a study compared with its predictions, and the words for the result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimators.model import MIB, Layout
from scamp.cli.progress import closing_words
from scamp_service.lifecycle import Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Report, Study, TrialChanges
from scamp_service.store.store import Store
from scamp_service.store.summary import LearnedMemory, OutOfMemory, Summary, learned_of, summarize
from scamp_service.store.tallies import Held, prediction_errors_pct
from tests.recounted import most_at_once, tally_study
from tests.values import attempt, changed, new_attempt, sized, trial

STUDY = Study(1, "s", StudyState.COMPLETED, {"objective": {"direction": "maximize"}}, 0.0, finished_at=9.0)

# Trial 4 of examples/digits.yaml, as ranks of Ray ran it: it takes 24 MiB in step 6 that no trace shows.
TRACED = 22996868
HEALED = [
    attempt(trial_id=4, predicted_bytes=TRACED, reserved_mib=28, measured_bytes=29483008),
    attempt(trial_id=4, attempt=2, predicted_bytes=35232225, extra_bytes=35232225 - TRACED, reserved_mib=40,
            measured_bytes=42090496),
    attempt(trial_id=4, attempt=3, predicted_bytes=47839713, extra_bytes=47839713 - TRACED, reserved_mib=53,
            measured_bytes=22997380, outcome=Outcome.STOPPED),
]  # fmt: skip
HEALED[:2] = [replace(row, outcome=Outcome.OUT_OF_MEMORY) for row in HEALED[:2]]
HONEST = attempt(trial_id=1, predicted_bytes=67442480, measured_bytes=67442992, outcome=Outcome.DONE)


def summary_of(*attempts: Attempt) -> Summary:
    rows = [trial(id=trial_id, state=TrialState.COMPLETED) for trial_id in sorted({row.trial_id for row in attempts})]
    return summarize(STUDY, tally_study(rows, attempts), None, Held(), now=9.0)


def test_an_out_of_memory_is_no_measured_error_and_is_told_by_itself() -> None:
    """It was counted once: the demo then said "45.4 % (worst)" of predictions that are right to 512 bytes."""
    summary = summary_of(HONEST, *HEALED)
    assert summary.prediction_error_pct["max"] == pytest.approx(0.0022, abs=1e-4)
    assert summary.out_of_memory.attempts == 2
    assert summary.out_of_memory.least_excess_pct == pytest.approx(83.0, abs=0.1)
    assert summary_of(*HEALED[:2]).prediction_error_pct == {"median": None, "max": None}


def test_gangs_that_were_on_one_device_at_once_are_counted() -> None:
    def held(devices: str, began: float, ended: float | None = None) -> Attempt:
        return attempt(devices=tuple(devices), created_at=began, ended_at=ended)

    one_by_one = [held("a", 1.0, 2.0), held("a", 2.0, 3.0)]
    assert (most_at_once([], 9.0), most_at_once(one_by_one, 9.0)) == (0, 1), "one ended as the other began"
    two = [*one_by_one, held("bc", 1.0, 5.0), held("cd", 4.0)]
    assert most_at_once(two, 9.0) == 2
    assert most_at_once([*two, held("dc", 4.5)], 9.0) == 3


def test_a_failure_without_any_measurement_needs_more_than_was_reserved() -> None:
    failed = attempt(outcome=Outcome.OUT_OF_MEMORY, predicted_bytes=20 * MIB, reserved_mib=25)
    assert summary_of(failed).out_of_memory == OutOfMemory(1, 25.0)
    assert summary_of(failed).prediction_error_pct == {"median": None, "max": None}


def test_the_last_exact_measurement_of_a_trial_counts_for_it() -> None:
    lost = replace(HONEST, measured_bytes=60 * MIB, outcome=Outcome.LOST)
    second = replace(HONEST, attempt=2)
    assert summary_of(lost, second).prediction_error_pct["max"] == pytest.approx(0.0, abs=0.001)
    assert summary_of(HONEST).out_of_memory == OutOfMemory(0, None)


def test_tensors_that_a_family_is_known_to_miss_are_part_of_the_prediction_and_other_memory_is_not() -> None:
    biased = attempt(predicted_bytes=50 * MIB, extra_bytes=30 * MIB, bias_bytes=5 * MIB, measured_bytes=25 * MIB)
    assert prediction_errors_pct([biased]) == [0.0]
    assert prediction_errors_pct([changed(biased, prediction=replace(biased.prediction, bias_bytes=0))]) == [-20.0]
    assert prediction_errors_pct([replace(biased, measured_bytes=0)]) == []


def test_the_error_of_step_times_is_that_of_the_last_timed_attempt_of_each_trial() -> None:
    timed = attempt(step_seconds=0.5, measured_step_seconds=1.0)
    second = replace(timed, attempt=2, measured_step_seconds=0.4)
    other = changed(timed, trial_id=9, step_seconds=None)
    assert summary_of(timed, second, other).step_error_pct == pytest.approx({"median": 25.0, "max": 25.0})
    assert summary_of(timed).step_error_pct["max"] == 50.0
    assert summary_of(other).step_error_pct == {"median": None, "max": None}


def test_a_trial_is_healed_once_it_has_ended_well_after_an_out_of_memory() -> None:
    ended_well = {TrialState.COMPLETED, TrialState.PRUNED}
    for state in TrialState:
        assert trial(state=state, num_oom=1).is_healed == (state in ended_well)
        assert not trial(state=state).is_healed
    rows = [trial(state=state, num_oom=2) for state in TrialState]
    assert summarize(STUDY, tally_study(rows, []), None, Held(), now=9.0).healed == 2


@pytest.mark.parametrize(
    ("state", "counts", "words"),
    [
        (StudyState.COMPLETED, {TrialState.COMPLETED: 1, TrialState.FAILED: 2}, "Completed"),
        (StudyState.COMPLETED, {TrialState.FAILED: 1}, "Completed, no trial succeeded"),
        (StudyState.COMPLETED, {TrialState.INFEASIBLE: 2, TrialState.FAILED: 1}, "Completed, no trial succeeded"),
        (StudyState.RUNNING, {TrialState.FAILED: 1}, "Running"),
        (StudyState.STOPPED, {TrialState.CANCELLED: 1}, "Stopped"),
    ],
)
def test_the_state_of_a_completed_study_says_when_no_trial_completed(
    state: StudyState, counts: dict[TrialState, int], words: str
) -> None:
    rows = [trial(state=state) for state, count in counts.items() for _ in range(count)]
    summary = summarize(replace(STUDY, state=state), tally_study(rows, []), None, Held(), now=9.0)
    assert (summary.state, summary.state_text) == (state, words)
    assert summary.no_success == words.endswith("no trial succeeded")


def test_a_trial_is_spared_when_it_ran_with_what_was_learned_and_did_not_run_out_of_memory() -> None:
    learned = {"predicted_bytes": 40 * MIB, "extra_bytes": 20 * MIB, "reserved_mib": 46}
    rows = [trial(**learned), trial(**learned, num_oom=1), trial(**learned, attempt=0), trial()]
    assert [summarize(STUDY, tally_study([row], []), None, Held(), now=9.0).spared for row in rows] == [1, 0, 0, 0]
    summary = summarize(STUDY, tally_study(rows, []), None, Held(), now=9.0)
    assert summary.spared == 1
    words = "1 trial ran with memory learned from earlier trials and did not run out of memory"
    assert words in closing_words(summary.to_json())


def test_peaks_of_samples_that_differ_in_size_have_no_error() -> None:
    """The measured step need not have the largest samples; a study once said "82.6 % (worst)"."""
    row = trial(id=HONEST.trial_id, state=TrialState.COMPLETED)
    assert row.sized is not None
    uneven = replace(row, sized=replace(row.sized, is_uneven=True))
    shown = [summarize(STUDY, tally_study([r], [HONEST]), None, Held(), now=9.0) for r in (row, uneven)]
    assert [summary.is_uneven for summary in shown] == [False, True]
    assert shown[0].prediction_error_pct["max"] is not None and shown[1].prediction_error_pct["max"] is None
    even_line, uneven_line = (closing_words(summary.to_json()) for summary in shown)
    assert "predicted within" in even_line and "largest samples" not in even_line
    assert "predicted within" not in uneven_line and "predicted for the largest samples, so most steps" in uneven_line


def test_what_is_learned_is_told_by_family_on_the_devices_it_ran_on(store: Store) -> None:
    study = store.studies.create({"name": "s", "objective": {"direction": "maximize"}}, now=0.0)
    store.trials.create(study.id, [(0, {}), (1, {}), (2, {})], now=0.0)
    for row, family in zip(store.trials.page(study.id), ("f", "f", "g"), strict=True):
        assert store.trials.move(
            row.id,
            TrialState.WAITING,
            0,
            TrialState.QUEUED,
            sized=sized(),
            now=1.0,
            changes=TrialChanges(family=family),
        )
    first = store.trials.page(study.id)[0].id
    assert store.attempts.begin(new_attempt(first, device_kinds=("H200",), reserved_mib=26, now=2.0))
    assert store.reports.add(Report(first, 1, "t", measured_bytes=31 * MIB), now=3.0)
    assert store.reports.end(first, 1, "t", Outcome.OUT_OF_MEMORY, "", now=4.0)
    learned = LearnedMemory("f", str(Layout()), 16 * MIB, 0, 1, 1, 0, (study.id,))
    assert learned_of(store, store.counts.counted(study.id).families) == [learned]


def test_the_closing_words_tells_measured_errors_failures_and_what_was_learned() -> None:
    learned = LearnedMemory("f", str(Layout()), 24842845, 0, 1, 1, 0, (3,))
    summary = replace(summary_of(HONEST, *HEALED), learned=[learned])
    line = closing_words(summary.to_json())
    within = "predicted within 0.0 % (median), 0.0 % (worst), by tensors"
    assert f"peak memory of attempts that had enough of it {within}" in line
    assert "2 attempts out of memory, the worst needed at least 83 % more than predicted" in line
    assert "learned: +23.7 MiB from 1 trial of a family with layout single (study 3)" in line
    far_off = summary.to_json() | {"out_of_memory": {"attempts": 1, "least_excess_pct": 159_087.0}}
    assert "the worst needed at least 1,591 times the MiB predicted" in closing_words(far_off)
    quiet = closing_words(summary_of(HONEST).to_json())
    assert f"peak memory {within}" in quiet
    assert "out of memory," not in quiet and "learned" not in quiet
