"""Faults of a host are retried after growing pauses, and do not count against the trial at first."""

from __future__ import annotations

from dataclasses import replace

from scamp_service.control.decide.effects import Begin
from scamp_service.control.decide.rules.faults import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, MAX_FAULTS
from scamp_service.lifecycle import Outcome, StudyState, TrialState, WaitsFor
from scamp_service.model import TrialChanges
from tests.scamp_service.control.decide.snapshots import effects_of, only_move, study
from tests.values import attempt, trial

FULL_DISK = attempt(outcome=Outcome.FAULT, detail="No space left on device: /data")


def test_a_fault_of_the_host_does_not_count_against_the_trial_and_it_runs_again_after_a_while() -> None:
    move = only_move(effects_of(trials=[trial()], attempts=[FULL_DISK], now=100.0))
    assert move.to is TrialState.QUEUED and move.reason == "waits 5 s after: No space left on device: /data"
    why = "will run again after: No space left on device: /data"
    assert move.changes == TrialChanges(num_faults=1, retry_at=105.0, requeued_because=why)
    assert move.waits_for is WaitsFor.RETRY


def test_a_trial_waits_twice_as_long_after_each_fault_in_a_row_up_to_five_minutes() -> None:
    moves = [only_move(effects_of(trials=[trial(num_faults=n)], attempts=[FULL_DISK])) for n in range(MAX_FAULTS)]
    waits = [float(move.changes["retry_at"]) - 1.0 for move in moves]
    assert waits[:4] == [FIRST_WAIT_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert max(waits) == waits[-1] == LONGEST_WAIT_SECONDS == 300.0


def test_faults_are_counted_from_one_again_after_a_new_checkpoint() -> None:
    move = only_move(effects_of(trials=[trial(num_faults=7)], attempts=[replace(FULL_DISK, checkpoint_step=40)]))
    assert move.to is TrialState.QUEUED and move.changes["num_faults"] == 1


def test_a_trial_fails_after_too_many_faults_in_a_row_and_says_so() -> None:
    move = only_move(effects_of(trials=[trial(num_faults=MAX_FAULTS)], attempts=[FULL_DISK]))
    assert move.to is TrialState.FAILED
    assert move.reason.startswith("21 faults of the host in a row without a new checkpoint, most recently")


def test_a_trial_is_not_placed_before_its_wait_is_over_and_keeps_its_reason() -> None:
    waits = trial(state=TrialState.QUEUED, num_faults=1, retry_at=10.0, reason="waits 5 s after: a full disk")
    assert effects_of(trials=[waits], now=9.9) == []
    assert [type(effect) for effect in effects_of(trials=[waits], now=10.0)] == [Begin]
    stopping = {1: study(state=StudyState.STOPPING)}
    assert only_move(effects_of(trials=[waits], studies=stopping)).to is TrialState.CANCELLED
