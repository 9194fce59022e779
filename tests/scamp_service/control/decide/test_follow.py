"""Each outcome of an attempt leads to the next state of its trial."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from estimators.learning import AttemptPhase, Ending
from estimators.model import MIB, EvaluationExtra, Plan
from placement.model import Cluster, Device
from placement.packing.device_time import IdleRule, Watch
from scamp_service.control.decide.effects import Launch, MoveAttempt, MoveTrial, Size, StopGang, withdraw
from scamp_service.control.decide.follow import LAUNCH_PATIENCE_SECONDS
from scamp_service.control.decide.snapshot import Packing
from scamp_service.control.executor import GangState, GangStatus
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState, WaitsFor
from tests.scamp_service.control.decide.snapshots import ALIVE, FAILED, effects_of, only_move, study
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.values import attempt, changed, trial


def test_a_done_attempt_completes_its_trial_and_is_ended_only_when_its_gang_is_gone() -> None:
    done = attempt(outcome=Outcome.DONE)
    move = only_move(effects_of(trials=[trial(value=0.9)], attempts=[done], gangs={"1/1": ALIVE}))
    assert move.to is TrialState.COMPLETED
    held = effects_of(trials=[], attempts=[done], gangs={"1/1": ALIVE})
    assert [type(effect) for effect in held[:2]] == [MoveAttempt, StopGang]
    assert isinstance(held[0], MoveAttempt) and held[0].to is AttemptState.STOPPING
    gone = effects_of(trials=[], attempts=[done])[0]
    assert isinstance(gone, MoveAttempt)
    assert gone.to is AttemptState.ENDED
    assert gone.outcome is Outcome.DONE


def test_a_trial_that_never_reports_its_objective_fails_with_what_to_do() -> None:
    move = only_move(effects_of(trials=[trial()], attempts=[attempt(outcome=Outcome.DONE)]))
    assert move.to is TrialState.FAILED and "'accuracy'" in move.reason


def test_out_of_memory_is_planned_again_with_what_was_measured() -> None:
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, measured_bytes=50 * MIB)
    move = only_move(effects_of(trials=[trial()], attempts=[oom]))
    assert move.to is TrialState.WAITING and move.changes["num_oom"] == 1
    assert "under this plan it needs more than 50.0 MiB" in move.reason and move.waits_for is WaitsFor.NEW_PLAN


def test_what_was_reserved_is_not_enough_even_when_nothing_was_measured() -> None:
    again = trial(predicted_bytes=25 * MIB, extra_bytes=5 * MIB, num_oom=1)
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, predicted_bytes=25 * MIB, extra_bytes=5 * MIB)
    assert "needs more than 24.0 MiB" in only_move(effects_of(trials=[again], attempts=[oom])).reason


def test_an_evaluation_that_ran_out_of_memory_changes_evaluations_alone() -> None:
    plan = Plan(4, evaluation_batch=2)
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, phase=AttemptPhase.EVALUATION, plan=plan)
    move = only_move(effects_of(trials=[trial(plan=plan)], attempts=[oom]))
    assert move.to is TrialState.WAITING and move.changes["num_oom"] == 1
    heavy = replace(oom.prediction, evaluation_bytes=70 * MIB)
    assert changed(oom, prediction=heavy).expected_bytes == 70 * MIB, "what it held is not compared with a step"
    assert changed(oom, prediction=heavy, phase="").expected_bytes == oom.prediction.expected_bytes
    assert move.reason.startswith("an evaluation of 2 samples at a time ran out of memory")
    run = replace(FAILED, ending=Ending.EVALUATION_OUT_OF_MEMORY, evaluation_bytes=16 * MIB, evaluation_batch=2)
    waiting = trial(state=TrialState.WAITING, plan=None)
    for knowledge in ({"failures": {waiting.id: [run]}}, {"past": {study().family(waiting): [run]}}):
        (size,) = (effect for effect in effects_of(trials=[waiting], **knowledge) if isinstance(effect, Size))
        assert size.demand.evaluation == EvaluationExtra(bytes_per_sample=9 * MIB)
        assert (size.demand.own_attempts, size.demand.learned) == ((), {})


def test_healing_gives_up_after_the_budget() -> None:
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, detail="tried to allocate 40 MiB")
    move = only_move(effects_of(trials=[trial(num_oom=3)], attempts=[oom]))
    assert move.to is TrialState.FAILED and "max_oom" in move.reason


def test_a_lost_gang_is_queued_again_until_the_budget_is_spent() -> None:
    lost = attempt(outcome=Outcome.LOST, detail="rank 1 was killed")
    again = only_move(effects_of(trials=[trial()], attempts=[lost]))
    assert again.to is TrialState.QUEUED and again.changes["num_lost"] == 1
    move = only_move(effects_of(trials=[trial(num_lost=2)], attempts=[lost]))
    assert move.to is TrialState.FAILED and "rank 1 was killed" in move.reason


def test_an_attempt_whose_ranks_never_began_is_no_loss() -> None:
    lost = attempt(outcome=Outcome.LOST, detail="b left the cluster before its ranks were started", started_at=None)
    again = only_move(effects_of(trials=[trial(num_lost=2)], attempts=[lost]))
    assert again.to is TrialState.QUEUED and "num_lost" not in again.changes
    assert "b left the cluster" in again.reason


def test_losses_are_counted_since_the_last_progress() -> None:
    for outcome, weight in ((Outcome.LOST, 1), (Outcome.STALLED, 3)):
        studies = {1: study(max_lost=5)}
        for checkpoint_step, before in ((-1, 5), (40, 0)):
            lost = attempt(outcome=outcome, detail="rank 1 was killed", checkpoint_step=checkpoint_step)
            move = only_move(effects_of(trials=[trial(num_lost=5)], attempts=[lost], studies=studies))
            assert move.changes["num_lost"] == before + weight
            assert move.to is (TrialState.FAILED if before else TrialState.QUEUED)


def test_the_reason_of_a_failed_trial_is_the_error_without_its_traceback() -> None:
    failed = attempt(outcome=Outcome.ERROR, detail="mine.py, line 3: f()\nKeyError: 'a'\n\nTraceback\n  File …")
    move = only_move(effects_of(trials=[trial()], attempts=[failed]))
    assert move.to is TrialState.FAILED and move.reason == "mine.py, line 3: f()\nKeyError: 'a'"


def test_a_trial_whose_code_fails_runs_again_as_often_as_its_study_allows() -> None:
    studies = {1: study(max_failures=2)}
    failed = attempt(outcome=Outcome.ERROR, detail="KeyError: 'a'\n\nTraceback\n  File …", checkpoint_step=40)
    moves = [
        only_move(effects_of(trials=[trial(num_failures=number)], attempts=[failed], studies=studies))
        for number in range(3)
    ]
    assert [move.to for move in moves] == [TrialState.QUEUED, TrialState.QUEUED, TrialState.FAILED]
    assert [move.changes["num_failures"] for move in moves] == [1, 2, 3], "a new checkpoint does not reset the count"
    assert moves[0].reason == "will run again from its last checkpoint (1 of at most 2 failures): KeyError: 'a'"
    assert moves[2].reason == "failed 3 times, most recently: KeyError: 'a'"


def test_errors_that_are_not_of_the_workload_do_not_count_as_its_failures() -> None:
    studies = {1: study(max_failures=0)}
    for outcome in (Outcome.OUT_OF_MEMORY, Outcome.FAULT, Outcome.LOST, Outcome.STOPPED):
        move = only_move(effects_of(trials=[trial()], attempts=[attempt(outcome=outcome)], studies=studies))
        assert move.to is not TrialState.FAILED and "num_failures" not in move.changes


def test_an_attempt_whose_ranks_died_is_recorded_as_lost_with_the_reason() -> None:
    for gangs, why in (
        ({}, "all its ranks disappeared"),
        ({"1/1": GangStatus(GangState.BROKEN, "rank 1 died")}, "rank 1 died"),
    ):
        (moved,) = effects_of(trials=[trial()], attempts=[attempt()], gangs=gangs)
        assert isinstance(moved, MoveAttempt), "its ranks may report an outcome meanwhile: the trial moves by that"
        assert moved.to is AttemptState.STOPPING and (moved.outcome, moved.detail) == (Outcome.LOST, why)
        again = effects_of(trials=[trial()], attempts=[attempt(outcome=Outcome.LOST, detail=why)], gangs={})
        assert why in only_move(again).reason


def test_an_attempt_that_was_stopped_in_order_costs_its_trial_nothing() -> None:
    (again, *_) = effects_of(trials=[trial()], attempts=[attempt(outcome=Outcome.STOPPED)], gangs={})
    assert isinstance(again, MoveTrial) and again.to is TrialState.QUEUED
    assert "num_lost" not in again.changes and "last checkpoint" in again.reason


def test_a_withdrawn_attempt_ends_with_a_checkpoint_or_is_killed_and_either_way_costs_its_trial_nothing() -> None:
    for state in (AttemptState.STARTING, AttemptState.RUNNING):
        begun = attempt(state=state)
        wishes: list[dict[str, Any]] = [{"trials": [trial(paused=True)]}]
        wishes.append({"trials": [trial()], "studies": {1: study(paused=True)}})
        wishes.append({"trials": [trial()], "leaving": {begun.devices[0]: "its node is leaving"}})
        for wish in wishes:
            (moved,) = effects_of(**wish, attempts=[begun], gangs={"1/1": ALIVE})
            assert isinstance(moved, MoveAttempt) and (moved.to, moved.outcome) == (AttemptState.WITHDRAWN, None)
    leaving = attempt(state=AttemptState.WITHDRAWN, detail="a user paused the trial")
    for paused in (True, False):
        kept: dict[str, Any] = {"trials": [trial(paused=paused)], "attempts": [leaving]}
        for gang in (ALIVE, GangStatus(GangState.STOPPING), GangStatus(GangState.BROKEN, "a rank died")):
            assert effects_of(**kept, gangs={"1/1": gang}) == [StopGang("1/1", leaving.detail, keep=True)]
        killed = MoveAttempt(leaving, AttemptState.STOPPING, Outcome.STOPPED, leaving.detail)
        assert effects_of(**kept, gangs={}) == [killed]
        again = only_move(effects_of(**{**kept, "attempts": [replace(leaving, outcome=Outcome.STOPPED)]}, gangs={}))
        assert again.reason == "will run again from its last checkpoint: a user paused the trial"
        assert again.to is TrialState.QUEUED and "num_lost" not in again.changes


def test_a_withdrawn_attempt_of_a_trial_that_will_not_continue_writes_no_checkpoint() -> None:
    leaving = attempt(state=AttemptState.WITHDRAWN, detail="a user paused the trial")
    stop, end = effects_of(trials=[], attempts=[leaving], gangs={"1/1": ALIVE})[:2]
    assert stop == MoveAttempt(leaving, AttemptState.STOPPING) and isinstance(end, StopGang) and not end.keep
    ending: dict[str, Any] = {"trials": [trial()], "studies": {1: study(state=StudyState.STOPPING)}}
    assert only_move(effects_of(**ending, attempts=[leaving], gangs={"1/1": ALIVE})).to is TrialState.CANCELLED


def test_a_trial_whose_gang_is_idle_is_paused_where_that_is_asked_for() -> None:
    load = (Watch(60.0, 60.0, 0.9, 80.0), Watch(1860.0, 1800.0, 0.02, 80.0))
    state: dict[str, Any] = {"trials": [trial()], "gangs": {"1/1": ALIVE}}
    packing = Packing(pauses_idle=IdleRule(0.1, 1800.0))
    pause, stop = effects_of(**state, attempts=[attempt(load=load)], packing=packing)
    assert isinstance(pause, MoveTrial) and pause.to is TrialState.RUNNING and pause.changes == {"paused": True}
    why = "its devices were less than 10 % busy for 30 minutes, so the trial was paused"
    assert stop == withdraw(attempt(load=load), why)
    assert effects_of(**state, attempts=[attempt(load=load)]) == [], "nobody has asked for it"
    assert effects_of(**state, attempts=[attempt(load=load[:1])], packing=packing) == []
    leaving = attempt(load=load, state=AttemptState.WITHDRAWN, detail=why)
    assert effects_of(**state, attempts=[leaving], packing=packing) == [StopGang("1/1", why, keep=True)]


def test_an_attempt_whose_rank_does_not_answer_is_neither_lost_nor_launched_nor_ended() -> None:
    for state in (AttemptState.STARTING, AttemptState.RUNNING):
        begun = attempt(state=state)
        silent = {"silent": frozenset(begun.devices), "closed": frozenset(begun.devices)}
        assert effects_of(trials=[trial()], attempts=[begun], gangs={}, **silent) == []
    stopping = attempt(state=AttemptState.STOPPING)
    decided = effects_of(trials=[], attempts=[stopping], gangs={}, silent=frozenset(stopping.devices))
    assert isinstance(decided[0], StopGang) and not any(isinstance(effect, MoveAttempt) for effect in decided)


def test_a_committed_attempt_whose_launch_was_lost_is_launched_again_with_its_token() -> None:
    decided = effects_of(trials=[trial()], attempts=[attempt(state=AttemptState.STARTING)])
    launch = decided[0]
    assert isinstance(launch, Launch)
    assert launch.order.token == "t"
    assert launch.order.key == "1/1"


def test_an_attempt_whose_device_left_before_its_ranks_started_is_lost_at_once() -> None:
    starting = attempt(state=AttemptState.STARTING, devices=("a", "b"))
    [lost] = effects_of(trials=[trial()], attempts=[starting], cluster=Cluster((Device("a", "n", 0, "virtual", 96),)))
    assert isinstance(lost, MoveAttempt) and "b left the cluster" in lost.detail
    [launch] = effects_of(trials=[trial()], attempts=[starting], cluster=Cluster(()))
    assert isinstance(launch, Launch), "a cluster that is still unknown has lost nothing"


def test_a_launch_that_never_reports_is_lost_in_the_end() -> None:
    starting = attempt(state=AttemptState.STARTING)
    decided = effects_of(trials=[trial()], attempts=[starting], absent={starting.key: LAUNCH_PATIENCE_SECONDS})
    assert isinstance(decided[0], MoveAttempt) and decided[0].outcome is Outcome.LOST
    assert "did not start within 120 s" in decided[0].detail


def test_the_worst_at_a_rung_is_pruned_and_the_best_goes_on() -> None:
    rungs = {1: {10: rung_of(study().objectives.leading, {0: 0.1, 2: 0.5, 3: 0.6, 4: 0.7})}}
    state: dict[str, Any] = {"attempts": [attempt()], "gangs": {"1/1": ALIVE}, "rungs": rungs}
    pruned = only_move(effects_of(trials=[trial(step=10, value=0.1)], **state))
    assert pruned.to is TrialState.PRUNED and pruned.reason
    rungs[1][10].report(0, (0.9,))
    kept = only_move(effects_of(trials=[trial(step=10, value=0.9)], **state))
    assert kept.to is TrialState.RUNNING and kept.changes["judged_step"] == 10
    assert effects_of(trials=[trial(step=10, value=0.1, judged_step=10)], **state) == []
    at_its_end = trial(step=study().budget.steps, value=0.1)
    assert effects_of(trials=[at_its_end], **state) == [], "it has trained all its steps, and is about to end"


def test_a_trial_that_diverged_is_pruned_without_a_value_for_the_sampler() -> None:
    diverged = attempt(outcome=Outcome.DIVERGED, detail="the training loss became nan at step 3")
    move = only_move(effects_of(trials=[trial(step=2, value=0.5)], attempts=[diverged]))
    assert move.to is TrialState.PRUNED and str(move.changes["value"]) == "nan"
    assert move.reason == "diverged: the training loss became nan at step 3"


def test_a_curve_that_depends_on_the_division_of_a_batch_begins_anew_under_another_plan() -> None:
    divided = attempt(outcome=Outcome.DEPENDS_ON_DIVISION, detail="the gradient of a changes by 9 % in step 1")
    move = only_move(effects_of(trials=[trial(step=2)], attempts=[divided]))
    assert (move.to, move.waits_for) == (TrialState.WAITING, WaitsFor.NEW_PLAN)
    assert move.reason.endswith("the curve depends on the division: the gradient of a changes by 9 % in step 1")
    assert move.changes["judged_step"] == 0


def test_a_trial_that_resumes_differently_begins_anew_and_never_resumes() -> None:
    resumed = attempt(outcome=Outcome.RESUMES_DIFFERENTLY, detail="the loss of step 5 is 0.2, and was 0.1")
    move = only_move(effects_of(trials=[trial(judged_step=4)], attempts=[resumed]))
    assert move.to is TrialState.QUEUED and move.reason.endswith("as it resumes differently: " + resumed.detail)
    assert move.changes == {"resumes": False, "requeued_because": move.reason}


def test_checkpoints_of_a_trial_that_never_resumes_are_no_progress() -> None:
    lost = attempt(outcome=Outcome.LOST, checkpoint_step=20, started_at=1.0)
    for resumes, num_lost in ((True, 1), (False, 3)):
        move = only_move(effects_of(trials=[trial(num_lost=2, resumes=resumes)], attempts=[lost]))
        assert move.changes["num_lost"] == num_lost


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_trial_that_ends_with_an_objective_that_is_not_finite_has_not_completed(value: float) -> None:
    move = only_move(effects_of(trials=[trial(step=60, value=value)], attempts=[attempt(outcome=Outcome.DONE)]))
    assert move.to is TrialState.PRUNED
    assert move.reason.startswith(f"its objective 'accuracy' was {value} at step 60, the last one:")
