from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from estimators.learning import Ending, Learned, Phase, Run
from estimators.model import MIB, EvaluationExtra, Layout, Plan
from placement.model import Cluster, Device, Offer
from placement.packing.packer import PASSES_BEFORE_RESERVATION
from scamp_service.control.decide import decide
from scamp_service.control.decide import effects as d
from scamp_service.control.decide.faults import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, MAX_FAULTS
from scamp_service.control.decide.finish import JOIN_SECONDS, RETURN_SECONDS
from scamp_service.control.decide.follow import LAUNCH_PATIENCE_SECONDS
from scamp_service.control.decide.snapshot import Snapshot, StudyRules
from scamp_service.control.decide.watch import FIRST_SECONDS, LEAST_SECONDS, STEPS
from scamp_service.control.executor import GangState, GangStatus, Unsized
from scamp_service.control.stopping.rung import Rung
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.lifecycle import NO_PLAN_YET, AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Refusals, Trial
from scamp_service.search.proposer import Asked, Proposal
from scamp_service.study.objective import Objective
from tests.values import attempt, sized, trial
from workloads.training.checkpoints.name import CheckpointName

CLUSTER = Cluster(tuple(Device(f"n/{i}", "n", i, "virtual", 96) for i in range(4)))
ALIVE = GangStatus(GangState.ALIVE)


def study(**changes: Any) -> StudyRules:
    rules = StudyRules(
        id=1, state=StudyState.RUNNING, workload="vit_digits", code=None, objective=Objective(metric="accuracy"),
        seed=0, max_trials=10, steps=100, report_every=10, stopping=SuccessiveHalving((10, 30), 3), max_concurrent=None,
        max_lost=2, max_oom=3, num_trials=10,
    )  # fmt: skip
    return replace(rules, **changes)


def effects(*, trials: list[Trial], attempts: list[Attempt] | None = None, **known: Any) -> list[d.Effect]:
    known = {"now": 1.0, "studies": {1: study()}, "gangs": {}, "cluster": CLUSTER, **known}
    return decide(Snapshot(trials=trials, attempts=attempts or [], **known))


def only_move(found: list[d.Effect]) -> d.MoveTrial:
    moves = [effect for effect in found if isinstance(effect, d.MoveTrial)]
    assert len(moves) == 1, found
    return moves[0]


def test_a_gang_that_the_database_does_not_know_is_stopped() -> None:
    assert effects(trials=[], studies={}, gangs={"7/1": ALIVE}) == [
        d.StopGang("7/1", "this gang belongs to no open attempt")
    ]


def test_a_done_attempt_completes_its_trial_and_is_ended_only_when_its_gang_is_gone() -> None:
    done = attempt(outcome=Outcome.DONE)
    move = only_move(effects(trials=[trial(value=0.9)], attempts=[done], gangs={"1/1": ALIVE}))
    assert move.to is TrialState.COMPLETED
    held = effects(trials=[], attempts=[done], gangs={"1/1": ALIVE})
    assert [type(effect) for effect in held[:2]] == [d.MoveAttempt, d.StopGang]
    assert isinstance(held[0], d.MoveAttempt) and held[0].to is AttemptState.STOPPING
    gone = effects(trials=[], attempts=[done])[0]
    assert isinstance(gone, d.MoveAttempt) and gone.to is AttemptState.ENDED and gone.changes["outcome"] is Outcome.DONE


def test_a_trial_that_never_reports_its_objective_fails_with_what_to_do() -> None:
    move = only_move(effects(trials=[trial()], attempts=[attempt(outcome=Outcome.DONE)]))
    assert move.to is TrialState.FAILED and "'accuracy'" in move.changes["reason"]


def test_out_of_memory_is_planned_again_with_what_was_measured() -> None:
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, measured_bytes=50 * MIB)
    move = only_move(effects(trials=[trial()], attempts=[oom]))
    assert move.to is TrialState.WAITING and move.changes["num_oom"] == 1
    assert "under this plan it needs more than 50.0 MiB" in move.changes["reason"]


def test_what_was_reserved_is_not_enough_even_when_nothing_was_measured() -> None:
    again = trial(predicted_bytes=25 * MIB, extra_bytes=5 * MIB, num_oom=1)
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, predicted_bytes=25 * MIB, extra_bytes=5 * MIB)
    assert "needs more than 24.0 MiB" in only_move(effects(trials=[again], attempts=[oom])).changes["reason"]


def test_a_trial_that_ran_out_of_memory_is_sized_with_what_its_own_runs_show() -> None:
    """Not with what its last plan added: that may have been learned from others, for another layout."""
    failed = trial(state=TrialState.WAITING, num_oom=1, predicted_bytes=45 * MIB, extra_bytes=25 * MIB)
    (size,) = effects(trials=[failed], failures={1: [FAILED]})
    assert isinstance(size, d.Size) and size.demand.own == (FAILED,) and not size.demand.learned


def learning(*past: Run, **row: Any) -> tuple[list[d.Effect], str]:
    """What is decided about one trial whose family has this past, and the family."""
    candidate = trial(id=9, attempt=0, **row)
    family = study().family(candidate)
    return effects(trials=[candidate], past={family: past}), family


FAILED = Run(1, Layout(), ("virtual",), 20 * MIB, 0, 24 * MIB, 30 * MIB, Ending.OUT_OF_MEMORY, study_id=7)
RAISED = 30 * MIB - 20 * MIB + 5 * MIB


def test_a_candidate_is_sized_with_what_its_family_has_learned() -> None:
    found, _ = learning(FAILED, state=TrialState.WAITING, plan=None)
    learned = {Layout(): Learned(Layout(), RAISED, num_trials=1, num_out_of_memory=1, studies=(7,))}
    assert [effect.demand.learned for effect in found if isinstance(effect, d.Size)] == [learned]
    others, _ = learning(replace(FAILED, device_kinds=("H200",)), state=TrialState.WAITING, plan=None)
    assert [effect.demand.learned for effect in others if isinstance(effect, d.Size)] == [{}]


def test_a_candidate_is_sized_with_the_past_of_its_family_and_runs_with_the_seconds_of_its_plan() -> None:
    found, _ = learning(FAILED, state=TrialState.WAITING, plan=None)
    assert [effect.demand.past for effect in found if isinstance(effect, d.Size)] == [(FAILED,)]
    queued = trial(state=TrialState.QUEUED, attempt=0)
    assert queued.sized is not None
    timed = replace(queued, sized=replace(queued.sized, step_seconds=0.6, step_factor=1.5))
    (begin,) = (effect for effect in effects(trials=[timed]) if isinstance(effect, d.Begin))
    assert (begin.attempt.predicted_step_seconds, begin.attempt.step_factor) == (0.6, 1.5)


def test_a_candidate_is_sized_for_its_share_of_the_devices() -> None:
    devices = Cluster(tuple(Device(f"n/{index}", "n", index, "virtual", 96) for index in range(8)))
    waiting = [trial(id=number, state=TrialState.WAITING, plan=None, attempt=0) for number in (1, 2)]

    def shares(**changes: Any) -> set[int]:
        rules = {1: study(**changes)}
        found = effects(trials=waiting, cluster=devices, studies=rules)
        return {effect.demand.share for effect in found if isinstance(effect, d.Size)}

    assert shares(max_trials=2, num_trials=2) == {4}
    assert shares(max_trials=20, num_trials=2) == {1}, "there will be more candidates than devices"
    assert shares(max_trials=20, num_trials=2, max_concurrent=1) == {8}
    assert shares(max_trials=20, num_trials=2, exhausted=True) == {4}


def test_one_that_waits_for_devices_is_planned_again_once_when_its_family_learns() -> None:
    found, _ = learning(FAILED, state=TrialState.QUEUED)
    move = only_move(found)
    assert (
        move.to is TrialState.WAITING
        and "15.0 MiB learned from 1 trial of this family with layout single, 1 of them out of memory (study 7)"
        in move.changes["reason"]
    )
    found, _ = learning(FAILED, state=TrialState.QUEUED, plan=Plan(4, dp_shard=2))
    assert [type(effect) for effect in found] == [d.Begin], "another layout has learned it"
    for known in ({"learned_bytes": RAISED}, {"extra_bytes": RAISED}, {"learned_bytes": RAISED - MIB + 1}):
        found, _ = learning(FAILED, state=TrialState.QUEUED, **known)
        assert [type(effect) for effect in found] == [d.Begin], "it was planned with it, or with hardly less"


def test_a_plan_keeps_what_was_learned_and_its_family() -> None:
    found = sized(Plan(4), 45, 35 * MIB, RAISED, MIB, learned_bytes=RAISED + 1)
    candidate = trial(id=9, attempt=0, state=TrialState.WAITING, plan=None)
    move = only_move(effects(trials=[candidate], sized={9: found}))
    assert move.sized == found and move.changes["family"] == study().family(candidate)


def test_an_attempt_knows_the_kinds_of_its_devices() -> None:
    mixed = Cluster((Device("a", "n", 0, "L4", 96), Device("b", "n", 1, "H200", 96), Device("c", "n", 2, "T4", 8)))
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=2), reserved_mib=20)
    begin = next(effect for effect in effects(trials=[queued], cluster=mixed) if isinstance(effect, d.Begin))
    assert begin.attempt.device_kinds == ("H200", "L4")


def test_an_evaluation_that_ran_out_of_memory_changes_evaluations_alone() -> None:
    plan = Plan(4, evaluation_batch=2)
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, phase=Phase.EVALUATION, plan=plan)
    move = only_move(effects(trials=[trial(plan=plan)], attempts=[oom]))
    assert move.to is TrialState.WAITING and move.changes["num_oom"] == 1
    heavy = replace(oom.prediction, evaluation_bytes=70 * MIB)
    assert replace(oom, prediction=heavy).expected_bytes == 70 * MIB, "what it held is not compared with a step"
    assert replace(oom, prediction=heavy, phase="").expected_bytes == oom.prediction.expected_bytes
    assert move.changes["reason"].startswith("an evaluation of 2 samples at a time ran out of memory")
    run = replace(FAILED, ending=Ending.EVALUATION_OUT_OF_MEMORY, evaluation_bytes=16 * MIB, evaluation_batch=2)
    waiting = trial(state=TrialState.WAITING, plan=None)
    for given in ({"failures": {waiting.id: [run]}}, {"past": {study().family(waiting): [run]}}):
        (size,) = (effect for effect in effects(trials=[waiting], **given) if isinstance(effect, d.Size))
        assert size.demand.evaluation == EvaluationExtra(bytes_per_sample=9 * MIB)
        assert (size.demand.own, size.demand.learned) == ((), {})


def test_healing_gives_up_after_the_budget() -> None:
    oom = attempt(outcome=Outcome.OUT_OF_MEMORY, detail="tried to allocate 40 MiB")
    move = only_move(effects(trials=[trial(num_oom=3)], attempts=[oom]))
    assert move.to is TrialState.FAILED and "max_oom" in move.changes["reason"]


def test_a_lost_gang_is_queued_again_until_the_budget_is_spent() -> None:
    lost = attempt(outcome=Outcome.LOST, detail="rank 1 was killed")
    again = only_move(effects(trials=[trial()], attempts=[lost]))
    assert again.to is TrialState.QUEUED and again.changes["num_lost"] == 1
    move = only_move(effects(trials=[trial(num_lost=2)], attempts=[lost]))
    assert move.to is TrialState.FAILED and "rank 1 was killed" in move.changes["reason"]


def test_an_attempt_whose_ranks_never_began_is_no_loss() -> None:
    lost = attempt(outcome=Outcome.LOST, detail="b left the cluster before its ranks were started", started_at=None)
    again = only_move(effects(trials=[trial(num_lost=2)], attempts=[lost]))
    assert again.to is TrialState.QUEUED and "num_lost" not in again.changes
    assert "b left the cluster" in again.changes["reason"]


def test_losses_are_counted_since_the_last_progress() -> None:
    for outcome, weight in ((Outcome.LOST, 1), (Outcome.STALLED, 3)):
        studies = {1: study(max_lost=5)}
        for checkpoint_step, before in ((-1, 5), (40, 0)):
            lost = attempt(outcome=outcome, detail="rank 1 was killed", checkpoint_step=checkpoint_step)
            move = only_move(effects(trials=[trial(num_lost=5)], attempts=[lost], studies=studies))
            assert move.changes["num_lost"] == before + weight
            assert move.to is (TrialState.FAILED if before else TrialState.QUEUED)


def test_the_reason_of_a_failed_trial_is_the_error_without_its_traceback() -> None:
    failed = attempt(outcome=Outcome.ERROR, detail="mine.py, line 3: f()\nKeyError: 'a'\n\nTraceback\n  File …")
    move = only_move(effects(trials=[trial()], attempts=[failed]))
    assert move.to is TrialState.FAILED and move.changes["reason"] == "mine.py, line 3: f()\nKeyError: 'a'"


def test_an_attempt_whose_ranks_died_is_recorded_as_lost_with_the_reason() -> None:
    for gangs, why in (
        ({}, "all its ranks disappeared"),
        ({"1/1": GangStatus(GangState.BROKEN, "rank 1 died")}, "rank 1 died"),
    ):
        (moved,) = effects(trials=[trial()], attempts=[attempt()], gangs=gangs)
        assert isinstance(moved, d.MoveAttempt), "its ranks may report an outcome meanwhile: the trial moves by that"
        assert moved.to is AttemptState.STOPPING and moved.changes == {"outcome": Outcome.LOST, "detail": why}
        again = effects(trials=[trial()], attempts=[attempt(outcome=Outcome.LOST, detail=why)], gangs={})
        assert why in only_move(again).changes["reason"]


def test_an_attempt_that_was_stopped_in_order_costs_its_trial_nothing() -> None:
    (again, *_) = effects(trials=[trial()], attempts=[attempt(outcome=Outcome.STOPPED)], gangs={})
    assert isinstance(again, d.MoveTrial) and again.to is TrialState.QUEUED
    assert "num_lost" not in again.changes and "last checkpoint" in again.changes["reason"]


def test_an_attempt_whose_rank_does_not_answer_is_neither_lost_nor_launched_nor_ended() -> None:
    for state in (AttemptState.STARTING, AttemptState.RUNNING):
        begun = attempt(state=state)
        silent = {"silent": frozenset(begun.devices), "closed": frozenset(begun.devices)}
        assert effects(trials=[trial()], attempts=[begun], gangs={}, **silent) == []
    stopping = attempt(state=AttemptState.STOPPING)
    told = effects(trials=[], attempts=[stopping], gangs={}, silent=frozenset(stopping.devices))
    assert isinstance(told[0], d.StopGang) and not any(isinstance(effect, d.MoveAttempt) for effect in told)


def quiet(seconds: float) -> dict[str, GangStatus]:
    return {
        "1/1": GangStatus(GangState.ALIVE, "", seconds, "rank 0 reads its data in step 7; rank 1 waits in all_reduce")
    }


def test_a_gang_that_makes_no_progress_is_given_up_after_what_its_own_steps_suggest() -> None:
    for limits, limit in (
        ({}, FIRST_SECONDS),
        ({"predicted_step_seconds": 60.0}, STEPS * 60.0),
        ({"measured_step_seconds": 0.1}, LEAST_SECONDS),
        ({"measured_step_seconds": 20.0}, STEPS * 20.0),
    ):
        begun = attempt(**limits)
        patient = effects(trials=[trial()], attempts=[begun], gangs=quiet(limit))
        assert not [one for one in patient if isinstance(one, d.MoveAttempt)]
        given_up = effects(trials=[trial()], attempts=[begun], gangs=quiet(limit + 1))[0]
        assert isinstance(given_up, d.MoveAttempt) and given_up.changes["outcome"] is Outcome.STALLED
        assert f"no progress for {limit:.0f} s" in given_up.changes["detail"]
        assert "rank 0 reads its data in step 7" in given_up.changes["detail"]
    own = {1: study(stall_seconds=10.0)}
    assert effects(trials=[trial()], attempts=[attempt()], gangs=quiet(10), studies=own) == []
    assert effects(trials=[trial()], attempts=[attempt()], gangs=quiet(11), studies=own)


def test_an_attempt_that_stalled_counts_as_three_losses() -> None:
    stalled = attempt(outcome=Outcome.STALLED, detail="made no progress for 300 s: rank 0 waits")
    studies = {1: study(max_lost=5)}
    again = only_move(effects(trials=[trial()], attempts=[stalled], studies=studies))
    assert again.to is TrialState.QUEUED and again.changes["num_lost"] == 3
    failed = only_move(effects(trials=[trial(num_lost=3)], attempts=[stalled], studies=studies))
    assert failed.to is TrialState.FAILED and "rank 0 waits" in failed.changes["reason"]


def test_nothing_is_placed_on_a_closed_device() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, sized=sized(Plan(1), 10))
    cluster = Cluster((Device("a", "n", 0, "virtual", 96), Device("b", "n", 1, "virtual", 96)))
    (begun,) = effects(trials=[queued], attempts=[], gangs={}, cluster=cluster, closed=frozenset("a"))
    assert isinstance(begun, d.Begin) and begun.attempt.devices == ("b",)
    (waits,) = effects(trials=[queued], attempts=[], gangs={}, cluster=cluster, closed=frozenset("ab"))
    assert isinstance(waits, d.MoveTrial) and waits.to is TrialState.QUEUED


def test_a_committed_attempt_whose_launch_was_lost_is_launched_again_with_its_token() -> None:
    found = effects(trials=[trial()], attempts=[attempt(state=AttemptState.STARTING)])
    launch = found[0]
    assert isinstance(launch, d.Launch) and launch.order.token == "t" and launch.order.key == "1/1"


def test_an_attempt_whose_device_left_before_its_ranks_started_is_lost_at_once() -> None:
    starting = attempt(state=AttemptState.STARTING, devices=("a", "b"))
    [lost] = effects(trials=[trial()], attempts=[starting], cluster=Cluster((Device("a", "n", 0, "virtual", 96),)))
    assert isinstance(lost, d.MoveAttempt) and "b left the cluster" in lost.changes["detail"]
    [launch] = effects(trials=[trial()], attempts=[starting], cluster=Cluster(()))
    assert isinstance(launch, d.Launch), "a cluster that is still unknown has lost nothing"


def test_a_launch_that_never_reports_is_lost_in_the_end() -> None:
    starting = attempt(state=AttemptState.STARTING)
    found = effects(trials=[trial()], attempts=[starting], absent={starting.key: LAUNCH_PATIENCE_SECONDS})
    assert isinstance(found[0], d.MoveAttempt) and found[0].changes["outcome"] is Outcome.LOST


def test_the_worst_at_a_rung_is_pruned_and_the_best_goes_on() -> None:
    rungs = {1: {10: Rung(study().objective, {0: 0.1, 2: 0.5, 3: 0.6, 4: 0.7})}}
    known = {"attempts": [attempt()], "gangs": {"1/1": ALIVE}, "rungs": rungs}
    pruned = only_move(effects(trials=[trial(step=10, value=0.1)], **known))
    assert pruned.to is TrialState.PRUNED and pruned.changes["reason"]
    rungs[1][10].report(0, 0.9)
    kept = only_move(effects(trials=[trial(step=10, value=0.9)], **known))
    assert kept.to is TrialState.RUNNING and kept.changes["judged_step"] == 10
    assert effects(trials=[trial(step=10, value=0.1, judged_step=10)], **known) == []


def test_stopping_a_study_cancels_whatever_it_has() -> None:
    stopping = {1: study(state=StudyState.STOPPING)}
    trials = [
        trial(),
        trial(id=2, state=TrialState.QUEUED, attempt=0),
        trial(id=3, state=TrialState.WAITING, attempt=0),
    ]
    found = effects(trials=trials, attempts=[attempt()], gangs={"1/1": ALIVE}, studies=stopping)
    assert [e.to for e in found if isinstance(e, d.MoveTrial)] == [TrialState.CANCELLED] * 3
    assert effects(trials=[], studies=stopping) == [d.FinishStudy(1, StudyState.STOPPED, "")]


def test_a_sized_candidate_is_queued_and_one_without_a_plan_is_infeasible() -> None:
    waiting = [trial(id=i, state=TrialState.WAITING, attempt=0, plan=None) for i in (1, 2, 3)]
    results = {1: sized(Plan(4), 5, MIB), 2: Unsized("needs 200 MiB", True)}
    found = effects(trials=waiting, sized=results)
    assert [e.to for e in found if isinstance(e, d.MoveTrial)] == [TrialState.QUEUED, TrialState.INFEASIBLE]
    assert [e.trial.id for e in found if isinstance(e, d.Size)] == [3]


def test_nothing_is_sized_or_placed_while_the_cluster_starts() -> None:
    trials = [trial(state=TrialState.WAITING, attempt=0), trial(id=2, state=TrialState.QUEUED, attempt=0)]
    assert effects(trials=trials, cluster=Cluster()) == []


def test_memory_of_attempts_that_wind_down_is_not_given_away() -> None:
    winding_down = attempt(trial_id=9, state=AttemptState.STOPPING, devices=tuple(d.id for d in CLUSTER.devices),
                           reserved_mib=80)  # fmt: skip
    queued = trial(state=TrialState.QUEUED, attempt=0)
    found = effects(trials=[queued], attempts=[winding_down], gangs={"9/1": ALIVE})
    assert not [effect for effect in found if isinstance(effect, d.Begin)]
    assert "MiB" in only_move(found).changes["reason"]


def test_a_trial_waits_until_its_former_attempt_has_ended() -> None:
    queued = trial(state=TrialState.QUEUED, num_lost=1)
    found = effects(trials=[queued], attempts=[attempt(state=AttemptState.STOPPING)], gangs={"1/1": ALIVE})
    assert not [effect for effect in found if isinstance(effect, d.Begin)]


def test_two_studies_take_turns_and_a_limit_on_concurrency_holds() -> None:
    studies = {1: study(), 2: study(id=2)}
    trials = [trial(id=i, number=i, study_id=1 if i < 9 else 2, state=TrialState.QUEUED, attempt=0, reserved_mib=90)
              for i in range(1, 13)]  # fmt: skip
    begun = [e.order.study_id for e in effects(trials=trials, studies=studies) if isinstance(e, d.Begin)]
    assert sorted(begun) == [1, 1, 2, 2]
    studies[2] = study(id=2, max_concurrent=1)
    begun = [e.order.study_id for e in effects(trials=trials, studies=studies) if isinstance(e, d.Begin)]
    assert sorted(begun) == [1, 1, 1, 2]


def test_few_candidates_are_proposed_ahead_and_never_more_than_the_budget() -> None:
    wanting = {1: study(num_trials=8)}
    assert effects(trials=[], studies=wanting) == [d.Propose(1, 8, 2)]
    waiting = [trial(id=i, state=TrialState.QUEUED, attempt=0, reserved_mib=96) for i in range(4)]
    assert not [e for e in effects(trials=waiting, studies={1: study(num_trials=4)}) if isinstance(e, d.Propose)]


def test_proposed_candidates_are_stored_if_they_still_begin_with_the_next_number() -> None:
    four = Proposal([{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}, {"lr": 0.4}], is_last=True)
    wanting = {1: study(num_trials=4)}
    ask, store = d.Propose(1, 4, 4), d.CreateTrials(1, 4, four.candidates, is_last=True)
    assert effects(trials=[], studies=wanting, asked={1: Asked(4, answer=None)}) == []
    assert effects(trials=[], studies=wanting, asked={1: Asked(4, answer=four)}) == [store]
    assert effects(trials=[], studies=wanting, asked={1: Asked(0, answer=four)}) == [ask]
    assert effects(trials=[], studies=wanting, asked={1: Asked(0, answer=None)}) == [ask]
    assert effects(trials=[], studies=wanting, asked={1: Asked(4, answer=ValueError("no"))}) == [ask]
    stopping = {1: study(num_trials=4, state=StudyState.STOPPING)}
    assert effects(trials=[], studies=stopping, asked={1: Asked(4, answer=four)}) == [
        d.FinishStudy(1, StudyState.STOPPED)
    ]


def test_no_more_candidates_are_stored_than_have_room_now() -> None:
    answer = Proposal([{"lr": 0.1}, {"lr": 0.2}], is_last=True)
    waiting = [trial(id=i, state=TrialState.QUEUED, attempt=0, reserved_mib=96) for i in range(3)]
    found = effects(trials=waiting, studies={1: study(num_trials=4)}, asked={1: Asked(4, answer=answer)})
    assert [e for e in found if isinstance(e, d.CreateTrials)] == [d.CreateTrials(1, 4, [{"lr": 0.1}])]


def test_a_study_ends_when_its_trials_have_and_fails_when_none_can_run() -> None:
    assert effects(trials=[]) == [d.FinishStudy(1, StudyState.COMPLETED)]
    broken = study(num_trials=5, broken="module has no class")
    assert d.FinishStudy(1, StudyState.STOPPING, "module has no class") in effects(trials=[], studies={1: broken})
    ended = effects(trials=[], studies={1: replace(broken, state=StudyState.STOPPING)})
    assert ended == [d.FinishStudy(1, StudyState.FAILED, "module has no class")]


def test_a_resumed_order_starts_at_the_last_committed_checkpoint() -> None:
    queued = trial(state=TrialState.QUEUED, num_lost=1)
    begin = next(e for e in effects(trials=[queued], checkpoints={1: CheckpointName(1, 30)}) if isinstance(e, d.Begin))
    assert begin.order.resume == CheckpointName(1, 30) and begin.order.attempt == 2 and begin.attempt.placement_reason


def test_each_trial_that_goes_before_is_counted_until_devices_are_kept() -> None:
    holder = attempt(trial_id=50, reserved_mib=90)
    large = trial(id=2, state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=4), reserved_mib=96)
    small = trial(id=60, state=TrialState.QUEUED, attempt=0, reserved_mib=10)
    running = {"attempts": [holder], "gangs": {"50/1": ALIVE}}

    def decided(passes: int) -> tuple[list[int], int]:
        found = effects(trials=[replace(large, passed_over=passes), small], **running)
        (kept,) = [e.changes["passed_over"] for e in found if isinstance(e, d.MoveTrial) and e.trial.id == 2]
        return [e.order.trial_id for e in found if isinstance(e, d.Begin)], kept

    assert decided(0) == ([60], 1)
    assert decided(PASSES_BEFORE_RESERVATION - 1) == ([60], PASSES_BEFORE_RESERVATION)
    assert decided(PASSES_BEFORE_RESERVATION) == ([], PASSES_BEFORE_RESERVATION)


FULL_DISK = attempt(outcome=Outcome.FAULT, detail="No space left on device: /data")


def test_a_fault_of_the_host_does_not_count_against_the_trial_and_it_runs_again_after_a_while() -> None:
    move = only_move(effects(trials=[trial()], attempts=[FULL_DISK], now=100.0))
    assert move.to is TrialState.QUEUED and "num_lost" not in move.changes
    assert move.changes == {"reason": "waits 5 s after: No space left on device: /data", "num_faults": 1,
                            "retry_at": 105.0}  # fmt: skip


def test_a_trial_waits_twice_as_long_after_each_fault_in_a_row_up_to_five_minutes() -> None:
    moves = [only_move(effects(trials=[trial(num_faults=n)], attempts=[FULL_DISK])) for n in range(MAX_FAULTS)]
    waits = [move.changes["retry_at"] - 1.0 for move in moves]
    assert waits[:4] == [FIRST_WAIT_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert max(waits) == waits[-1] == LONGEST_WAIT_SECONDS == 300.0


def test_faults_are_counted_from_one_again_after_a_new_checkpoint() -> None:
    move = only_move(effects(trials=[trial(num_faults=7)], attempts=[replace(FULL_DISK, checkpoint_step=40)]))
    assert move.to is TrialState.QUEUED and move.changes["num_faults"] == 1


def test_a_trial_fails_after_too_many_faults_in_a_row_and_says_so() -> None:
    move = only_move(effects(trials=[trial(num_faults=MAX_FAULTS)], attempts=[FULL_DISK]))
    assert move.to is TrialState.FAILED
    assert move.changes["reason"].startswith("21 faults of the host in a row without a new checkpoint, most recently")


def test_a_trial_is_not_placed_before_its_wait_is_over_and_keeps_its_reason() -> None:
    waits = trial(state=TrialState.QUEUED, num_faults=1, retry_at=10.0, reason="waits 5 s after: a full disk")
    assert effects(trials=[waits], now=9.9) == []
    assert [type(effect) for effect in effects(trials=[waits], now=10.0)] == [d.Begin]
    stopping = {1: study(state=StudyState.STOPPING)}
    assert only_move(effects(trials=[waits], studies=stopping)).to is TrialState.CANCELLED


def test_a_trial_that_diverged_is_pruned_without_a_value_for_the_sampler() -> None:
    diverged = attempt(outcome=Outcome.DIVERGED, detail="the training loss became nan at step 3")
    move = only_move(effects(trials=[trial(step=2, value=0.5)], attempts=[diverged]))
    assert move.to is TrialState.PRUNED and math.isnan(move.changes["value"])
    assert move.changes["reason"] == "diverged: the training loss became nan at step 3"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_trial_that_ends_with_an_objective_that_is_not_finite_has_not_completed(value: float) -> None:
    move = only_move(effects(trials=[trial(step=60, value=value)], attempts=[attempt(outcome=Outcome.DONE)]))
    assert move.to is TrialState.PRUNED
    assert move.changes["reason"].startswith(f"its objective 'accuracy' was {value} at step 60, the last one:")


def test_a_trial_whose_sizing_waits_for_others_says_for_which() -> None:
    new: dict[str, Any] = {"state": TrialState.WAITING, "attempt": 0, "plan": None, "reason": NO_PLAN_YET}
    studies = {1: study(num_trials=1), 2: study(id=2, num_trials=1)}
    trials = [trial(**new), trial(**new, id=2, number=1), trial(**new, id=3, study_id=2, number=4)]

    def moves(trials: list[Trial], held_up: dict[int, tuple[int, ...]]) -> dict[int, str]:
        found = effects(trials=trials, studies=studies, held_up=held_up)
        assert sum(isinstance(effect, d.Size) for effect in found) == len(trials)
        return {move.trial.id: move.changes["reason"] for move in found if isinstance(move, d.MoveTrial)}

    assert moves(trials, {}) == {}
    others = "trial 1 and trial 4 of study 2 and one that has ended"
    words = f"waits for its plan, behind the traces of {others}, which take long"
    assert moves(trials, {1: (2, 3, 9)}) == {1: words}
    waits = [trial(**{**new, "reason": words}), *trials[1:]]
    assert moves(waits, {1: (2, 3, 9)}) == {}
    assert moves(waits, {}) == {1: NO_PLAN_YET}
    healed = trial(**{**new, "reason": "ran out of memory with 24 MiB per rank"})
    assert moves([healed, *trials[1:]], {1: (2,)}) == {}


def test_a_verdict_names_the_devices_that_it_holds_for() -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    move = only_move(effects(trials=[waiting], sized={1: Unsized("needs 200 MiB", True, "s", (("virtual", 96, 2),))}))
    assert move.to is TrialState.INFEASIBLE and move.changes["offer"] == (("virtual", 96, 2),)
    assert move.changes["reason"] == "needs 200 MiB" and not move.changes["once_fit"]


@pytest.mark.parametrize(
    ("offer", "missing"),
    [
        ((("virtual", 96, 1),), "its plan needs 2 × 90 MiB, and the cluster now has 1 such device"),
        ((("virtual", 89, 4),), "its plan needs 2 × 90 MiB, and the cluster now has 0 such devices"),
        ((("A10", 90, 1), ("virtual", 96, 1)), ""),
        (None, ""),
    ],
)
def test_a_verdict_says_whether_the_cluster_has_lost_the_devices_of_its_plan(offer: Offer | None, missing: str) -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=Plan(2, dp_shard=2), reserved_mib=90)
    change = only_move(effects(trials=[waiting], sized={1: Unsized("no plan fits", True, "s", offer)})).changes
    assert change["once_fit"] == bool(missing) and change["reason"].startswith(missing)
    assert change["reason"].endswith("no plan fits") and ("waits an hour" in change["reason"]) == bool(missing)


def test_a_trial_that_fitted_nowhere_is_planned_again_when_the_cluster_has_grown() -> None:
    refused = trial(state=TrialState.INFEASIBLE, attempt=0, plan=None, offer=(("virtual", 96, 2),))
    refusals = {Refusals(1, (("virtual", 96, 2),), False, newest_at=0.0): 1e6}
    found = effects(trials=[], refused=[refused], refusals=refusals)
    assert only_move(found).to is TrialState.WAITING and len(found) == 1, "the study does not end meanwhile"


def test_a_queued_trial_is_planned_again_when_its_plan_needs_more_devices_than_there_are() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=Plan(2, dp_shard=4), reserved_mib=96)
    three = Cluster(CLUSTER.devices[:3])
    move = only_move(effects(trials=[queued], cluster=three))
    assert move.to is TrialState.WAITING
    assert move.changes["reason"].endswith("its plan needs 4 × 96 MiB, and the cluster now has 3 such devices")
    small = Cluster((*three.devices, replace(CLUSTER.devices[3], capacity_mib=95)))
    assert only_move(effects(trials=[queued], cluster=small)).to is TrialState.WAITING
    assert [type(effect) for effect in effects(trials=[queued])] == [d.Begin]
    assert effects(trials=[queued], cluster=Cluster()) == [], "the cluster is starting"


def test_a_study_stays_open_while_nodes_may_join_or_come_back() -> None:
    for once_fit, seconds in ((False, JOIN_SECONDS), (True, RETURN_SECONDS)):
        verdict = Refusals(1, (), once_fit, newest_at=100.0)
        assert effects(trials=[], refusals={verdict: seconds - 1.0}) == []
        ended = effects(trials=[], refusals={verdict: seconds})
        assert ended == [d.FinishStudy(1, StudyState.COMPLETED)]


def test_a_candidate_that_cannot_be_traced_because_of_the_host_is_sized_later() -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    full = Unsized("No space left on device three times", infeasible=False, may_pass=True)
    move = only_move(effects(trials=[waiting], sized={1: full}, now=100.0))
    assert move.to is TrialState.WAITING and move.changes["retry_at"] == 105.0 and move.changes["num_faults"] == 1
    assert move.changes["reason"] == "waits 5 s after: No space left on device three times"
    again = replace(waiting, num_faults=1, retry_at=105.0)
    assert effects(trials=[again], now=104.0) == []
    assert [type(one) for one in effects(trials=[again], now=105.0)] == [d.Size]
    assert [type(one) for one in effects(trials=[again], now=-1e6)] == [d.Size], "a clock was set back"
    last = only_move(effects(trials=[replace(waiting, num_faults=MAX_FAULTS)], sized={1: full}))
    assert last.to is TrialState.FAILED and "mend the host" in last.changes["reason"]
