"""Trials get other plans when the devices that they could have change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.control.decide import effects as d
from scamp_service.control.decide.snapshot import StudyRules
from scamp_service.control.executor import Unsized
from scamp_service.control.stopping.never_stop import NeverStop
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, Sized, Trial
from tests.scamp_service.control.decide import snapshots
from tests.scamp_service.control.decide.snapshots import ALIVE
from tests.values import attempt, sized, trial
from workloads.training.checkpoints.name import CheckpointName

WIDE = Plan(2, dp_shard=4)


def study(**changes: Any) -> StudyRules:
    """One long trial that no rule stops."""
    return snapshots.study(**{"max_trials": 1, "num_trials": 1, "steps": 1000, "stopping": NeverStop(), **changes})


def planned(plan: Plan, seconds: float, share: int, mib: int = 24) -> Sized:
    return replace(sized(plan, mib), step_seconds=seconds, share=share)


def running(**changes: Any) -> Attempt:
    return attempt(predicted_step_seconds=1.0, measured_step_seconds=2.0, **changes)


def effects(trials: list[Trial], attempts: list[Attempt], **known: Any) -> list[d.Effect]:
    gangs = {one.key: ALIVE for one in attempts}
    usual = {"studies": {1: study()}, "gangs": gangs, "checkpoints": {1: CheckpointName(1, 100)}}
    return snapshots.effects(trials=trials, attempts=attempts, **{**usual, **known})


AT_100 = trial(step=100)


def test_a_running_trial_is_planned_for_all_devices_once_the_others_are_idle() -> None:
    (size,) = effects([AT_100], [running()])
    assert isinstance(size, d.Size) and size.demand.share == 4 and not size.renews


def test_it_continues_on_more_devices_where_this_saves_time() -> None:
    known = {1: planned(WIDE, 0.3, share=4)}
    (stop,) = effects([AT_100], [running()], sized=known)
    assert isinstance(stop, d.MoveAttempt) and stop.to is AttemptState.STOPPING
    why = "3 of the devices were idle, and on 4 devices instead of 1 it ends about 20 min earlier"
    assert stop.changes == {"outcome": Outcome.STOPPED, "detail": why}
    stopped = running(state=AttemptState.STOPPING, outcome=Outcome.STOPPED, detail=why)
    move = effects([AT_100], [stopped], sized=known)[0]
    assert isinstance(move, d.MoveTrial) and move.to is TrialState.QUEUED and move.sized == known[1]
    assert move.changes == {"reason": f"will run again from its last checkpoint: {why}"}


def test_it_runs_again_as_before_where_a_new_controller_does_not_know_the_plan() -> None:
    move = effects([AT_100], [running(state=AttemptState.STOPPING, outcome=Outcome.STOPPED, detail="x")])[0]
    assert isinstance(move, d.MoveTrial) and move.to is TrialState.QUEUED and move.sized is None


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"sized": {1: planned(WIDE, 0.9, 4)}}, "hardly faster"),
        ({"sized": {1: planned(Plan(8), 1.0, 4)}}, "no wider plan is faster"),
        ({"sized": {1: planned(WIDE, 0.3, 4, mib=97)}}, "it does not fit now"),
        ({"sized": {1: Unsized("no plan", infeasible=True)}}, "there is no plan"),
        ({"sized": {1: planned(WIDE, 0.3, 4)}, "checkpoints": {}, "trials": [trial(step=600)]}, "starts again"),
        ({"trials": [trial(step=900)]}, "it ends soon"),
        ({"trials": [trial(step=100, num_oom=1)]}, "what it needs is known for its plan only"),
        ({"trials": [trial(step=100, num_lost=1)]}, "a wider plan may have failed before"),
        ({"attempts": [attempt()]}, "no step has been timed"),
        ({"attempts": [running(state=AttemptState.STARTING)]}, "it has not begun"),
        ({"closed": frozenset({"n/1", "n/2", "n/3"})}, "the others are closed"),
        ({"studies": {1: study(max_trials=9)}}, "the next candidates take the devices"),
    ],
)
def test_it_goes_on_as_it_is_where(known: dict[str, Any], why: str) -> None:
    usual = {"sized": {1: planned(WIDE, 0.3, 4)}} if "sized" in known else {}
    assert effects([AT_100], [running()], **usual), "otherwise it gets another plan"
    found = effects(**{"trials": [AT_100], "attempts": [running()], **known})
    assert [type(one) for one in found] == ([d.Propose] if "studies" in known else []), why


@pytest.mark.parametrize(("mib", "fits"), [(80, True), (81, False)])
def test_a_wider_plan_has_to_fit_beside_other_gangs(mib: int, fits: bool) -> None:
    """Only two of three devices are left, and on its own one there is another gang of 16 MiB."""
    other = running(trial_id=2, devices=("n/0",), reserved_mib=16)
    closed = frozenset({"n/2", "n/3"})
    known = {1: planned(Plan(2, dp_shard=2), 0.4, share=2, mib=mib)}
    found = effects([AT_100], [running(), other], sized=known, closed=closed)
    moves = [one for one in found if isinstance(one, d.MoveAttempt)]
    assert [one.attempt for one in moves] == [other, *[running()] * fits], "the other one is stopped: no trial runs it"
    assert [one.changes["outcome"] for one in moves[1:]] == [Outcome.STOPPED] * fits


def test_a_plan_for_another_share_is_made_again() -> None:
    (size,) = effects([AT_100], [running()], sized={1: planned(Plan(8), 1.0, share=2)})
    assert isinstance(size, d.Size) and size.renews


def test_a_queued_gang_wider_than_its_share_gets_a_plan_that_can_begin() -> None:
    busy = [running(trial_id=number, devices=(f"n/{number}",)) for number in (1, 2, 3)]
    trials = [trial(id=number, number=number) for number in (1, 2, 3)]
    wide = trial(id=9, number=9, state=TrialState.QUEUED, attempt=0, plan=WIDE)
    size = next(one for one in effects([*trials, wide], busy) if isinstance(one, d.Size))
    assert size.trial == wide and size.demand.share == 1
    found = effects([*trials, wide], busy, sized={9: planned(Plan(8), 1.0, 1)})
    move = next(one for one in found if isinstance(one, d.MoveTrial) and one.sized)
    assert move.to is TrialState.QUEUED and move.changes["reason"].endswith("1 device instead of 4, to begin now")
    for known in (planned(Plan(8), 1.0, 1, mib=97), planned(WIDE, 1.0, 1), Unsized("no", infeasible=True)):
        found = effects([*trials, wide], busy, sized={9: known})
        assert not [one for one in found if isinstance(one, d.Size) or (isinstance(one, d.MoveTrial) and one.sized)]


def test_queued_gangs_that_keep_their_plans_hide_no_other_one() -> None:
    """As many as there are devices are planned again; those that ran out of memory are not among them."""
    busy = [running(trial_id=number, devices=(f"n/{number}",)) for number in (1, 2, 3)]
    trials = [trial(id=number, number=number) for number in (1, 2, 3)]
    queued = {"state": TrialState.QUEUED, "attempt": 0, "plan": WIDE}
    stuck = [trial(id=number, number=number, num_oom=1, **queued) for number in range(10, 14)]
    found = effects([*trials, *stuck, trial(id=20, number=20, **queued)], busy)
    assert [one.trial.id for one in found if isinstance(one, d.Size)] == [20]


BEFORE = running(state=AttemptState.ENDED, outcome=Outcome.STOPPED, timed_steps=40)


def went_wrong(before: Attempt = BEFORE, **changes: Any) -> list[d.Effect]:
    """Effects when the attempt after ``before``, a wider one, ends like this."""
    second = running(**{"attempt": 2, "plan": WIDE, "outcome": Outcome.ERROR, "detail": "no DTensor", **changes})
    return effects([trial(step=100, attempt=2, plan=second.plan)], [second], former={1: before})


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.LOST, Outcome.STALLED])
def test_a_wider_plan_that_fails_costs_a_loss_and_the_trial_continues_as_before(outcome: Outcome) -> None:
    move = went_wrong(outcome=outcome)[0]
    assert isinstance(move, d.MoveTrial) and move.to is TrialState.QUEUED and move.changes["num_lost"] == 1
    assert move.changes["reason"] == "continues on 1 device as before: on 4 devices: no DTensor"
    assert move.sized and (move.sized.plan, move.sized.prediction) == (BEFORE.plan, BEFORE.prediction)


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": Plan(8)},
        {"before": replace(BEFORE, outcome=Outcome.OUT_OF_MEMORY)},
    ],
)
def test_an_error_of_any_other_attempt_is_that_of_the_workload(changes: dict[str, Any]) -> None:
    move = went_wrong(**changes)[0]
    assert isinstance(move, d.MoveTrial) and move.to is TrialState.FAILED


def test_a_device_that_stays_closed_does_not_count_in_a_share() -> None:
    """Alone, a trial would be planned for four devices, and wait for the fourth for ever."""
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=WIDE)
    closed = frozenset({"n/3"})
    size = next(one for one in effects([queued], [], closed=closed) if isinstance(one, d.Size))
    assert size.demand.share == 3
    known = {1: planned(Plan(4, dp_shard=2), 1.0, share=3)}
    found = effects([queued], [], closed=closed, sized=known)
    assert [one.sized for one in found if isinstance(one, d.MoveTrial) and one.sized] == [known[1]]
