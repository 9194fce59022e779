"""A gang that makes no progress is given up after the time of its own steps."""

from __future__ import annotations

from scamp_service.control.decide.effects import MoveAttempt
from scamp_service.control.decide.rules.watch import FIRST_SECONDS, LEAST_SECONDS, STEPS
from scamp_service.control.executor import GangState, GangStatus
from scamp_service.lifecycle import Outcome, TrialState
from tests.scamp_service.control.decide.snapshots import effects_of, only_move, study
from tests.values import attempt, trial


def quiet(seconds: float) -> dict[str, GangStatus]:
    return {
        "1/1": GangStatus(GangState.ALIVE, "", seconds, "rank 0 reads its data in step 7; rank 1 waits in all_reduce")
    }


def test_a_gang_that_makes_no_progress_is_given_up_after_what_its_own_steps_suggest() -> None:
    for limits, limit in (
        ({}, FIRST_SECONDS),
        ({"step_seconds": 60.0}, STEPS * 60.0),
        ({"measured_step_seconds": 0.1}, LEAST_SECONDS),
        ({"measured_step_seconds": 20.0}, STEPS * 20.0),
    ):
        begun = attempt(**limits)
        patient = effects_of(trials=[trial()], attempts=[begun], gangs=quiet(limit))
        assert not [effect for effect in patient if isinstance(effect, MoveAttempt)]
        given_up = effects_of(trials=[trial()], attempts=[begun], gangs=quiet(limit + 1))[0]
        assert isinstance(given_up, MoveAttempt) and given_up.outcome is Outcome.STALLED
        assert f"no progress for {limit:.0f} s" in given_up.detail
        assert "rank 0 reads its data in step 7" in given_up.detail
    studies = {1: study(stall_seconds=10.0)}
    assert effects_of(trials=[trial()], attempts=[attempt()], gangs=quiet(10), studies=studies) == []
    assert effects_of(trials=[trial()], attempts=[attempt()], gangs=quiet(11), studies=studies)


def test_an_attempt_that_stalled_counts_as_three_losses() -> None:
    stalled = attempt(outcome=Outcome.STALLED, detail="made no progress for 300 s: rank 0 waits")
    studies = {1: study(max_lost=5)}
    again = only_move(effects_of(trials=[trial()], attempts=[stalled], studies=studies))
    assert again.to is TrialState.QUEUED and again.changes["num_lost"] == 3
    failed = only_move(effects_of(trials=[trial(num_lost=3)], attempts=[stalled], studies=studies))
    assert failed.to is TrialState.FAILED and "rank 0 waits" in failed.reason
