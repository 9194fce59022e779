"""Trials get other plans when the devices that they could have change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import Plan
from placement.model import Cluster, Device
from placement.packing.device_time import DeviceTime
from placement.packing.projects import Project
from scamp_service.control.decide.effects import Effect, MoveAttempt, MoveTrial, Propose, withdraw
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.stopping.several import NO_RULES
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, Choice, Trial, TrialChanges
from tests import values
from tests.scamp_service.control.decide import snapshots
from tests.scamp_service.control.decide.snapshots import ALIVE
from tests.values import attempt, changed, sized
from workloads.training.checkpoints.name import CheckpointName

WIDE = Plan(2, dp_shard=4)


def study(**changes: Any) -> StudyRules:
    """One long trial that no rule stops."""
    return snapshots.study(**{"trials": 1, "num_trials": 1, "steps": 1000, "stopping": NO_RULES, **changes})


def choice(plan: Plan, seconds: float, mib: int = 24) -> Choice:
    return Choice(plan, sized(plan, mib).prediction, seconds)


def trial(*wider: Choice, **changes: Any) -> Trial:
    """A trial at step 100 whose first plan has one rank and steps of a second; by default it offers a wider one."""
    row = values.trial(**{"step": 100, **changes})
    assert row.sized is not None
    timed = changed(row.sized, step_seconds=1.0)
    others = wider or (choice(WIDE, 0.3),)
    return replace(row, sized=replace(timed, choices=(timed.choice, *others)))


def running(**changes: Any) -> Attempt:
    return attempt(step_seconds=1.0, measured_step_seconds=2.0, **changes)


def effects_of(trials: list[Trial], attempts: list[Attempt], **fields: Any) -> list[Effect]:
    gangs = {row.key: ALIVE for row in attempts}
    usual = {"studies": {1: study()}, "gangs": gangs, "checkpoints": {1: CheckpointName(1, 100)}}
    return snapshots.effects_of(trials=trials, attempts=attempts, **{**usual, **fields})


def test_it_continues_on_idle_devices_where_this_saves_time() -> None:
    move, stop = effects_of([trial()], [running()])
    why = "3 of the devices were idle, and on 4 devices instead of 1 it ends about 21 min earlier"
    assert stop == withdraw(running(), why)
    assert isinstance(move, MoveTrial)
    assert move.to is TrialState.RUNNING
    assert move.sized is not None
    assert move.sized.plan == WIDE and move.sized.choices == (choice(WIDE, 0.3),), "nothing narrower may be taken"
    stopped = running(state=AttemptState.WITHDRAWN, outcome=Outcome.STOPPED, detail=why)
    again = effects_of([replace(trial(), sized=move.sized)], [stopped])[0]
    assert isinstance(again, MoveTrial)
    assert again.to is TrialState.QUEUED
    assert again.sized is None
    assert again.reason == f"will run again from its last checkpoint: {why}"
    assert again.changes == TrialChanges(requeued_because=again.reason)


def test_it_moves_to_a_faster_kind_that_is_idle_and_never_back() -> None:
    cluster = Cluster((Device("a", "n", 0, "A100-40", 96), *(Device(f"t{n}", "n", n, "T4", 48) for n in range(2))))
    on_fast, on_slow = (
        replace(choice(Plan(2), 0.1), kind="A100-40"),
        replace(choice(Plan(1, dp_shard=2), 1.0), kind="T4"),
    )
    row = trial()
    assert row.sized is not None
    row = replace(row, sized=replace(row.sized, choice=on_fast, choices=(on_fast, on_slow)))
    slow = replace(running(devices=("t0", "t1"), device_kinds=("T4",)), choice=on_slow)
    move, stop = effects_of([row], [slow], cluster=cluster)
    assert isinstance(stop, MoveAttempt) and isinstance(move, MoveTrial)
    assert (
        stop.detail == "1 of the devices were idle, and on 1 × A100-40 instead of 2 × T4 it ends about 27 min earlier"
    )
    assert move.sized is not None and (move.sized.choice, move.sized.choices) == (on_fast, (on_fast,))
    bound = {1: study(kinds=frozenset({"T4"}))}
    assert not effects_of([row], [slow], cluster=cluster, studies=bound), "its study leaves the faster ones to others"
    fast = replace(running(devices=("a",), device_kinds=("A100-40",)), choice=on_fast)
    assert not effects_of([row], [fast], cluster=cluster)


def test_the_trial_that_would_run_longest_goes_first() -> None:
    trials = [trial(id=1, number=1, step=600), trial(id=2, number=2, step=100)]
    attempts = [running(), running(trial_id=2, devices=("n/1",))]
    checkpoints = {1: CheckpointName(1, 600), 2: CheckpointName(2, 100)}
    two = [replace(row, sized=trial(choice(Plan(4, dp_shard=2), 0.5)).sized) for row in trials]
    stops = [effect for effect in effects_of(two, attempts, checkpoints=checkpoints) if isinstance(effect, MoveAttempt)]
    assert [stop.attempt.trial_id for stop in stops] == [2]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"trials": [trial(choice(WIDE, 0.95))]}, "hardly faster"),
        ({"trials": [values.trial(step=100)]}, "there is no wider plan"),
        ({"trials": [trial(choice(WIDE, 0.3, mib=97))]}, "it does not fit now"),
        ({"checkpoints": {}, "trials": [trial(step=750)]}, "starts again"),
        ({"trials": [trial(step=980)]}, "it ends soon"),
        ({"attempts": [running(started_at=900.0)]}, "a restart takes too long"),
        ({"trials": [trial(num_oom=1)]}, "what it needs is known for its plan only"),
        ({"trials": [trial(num_lost=1)]}, "a wider plan may have failed before"),
        ({"projects": {"default": Project(devices=4)}}, "a quota of its project admitted it with one device"),
        (
            {"projects": {"default": Project(mib_hours=1)}, "held": {"default": DeviceTime(0.0, 3600.0)}},
            "it would not start again",
        ),
        ({"attempts": [attempt()]}, "no step has been timed"),
        ({"attempts": [running(state=AttemptState.STARTING)]}, "it has not begun"),
        ({"closed": frozenset({"n/1", "n/2", "n/3"})}, "the others are closed"),
        ({"studies": {1: study(trials=9)}}, "the next candidates take the devices"),
    ],
)
def test_it_goes_on_as_it_is_where(state: dict[str, Any], why: str) -> None:
    assert effects_of([trial()], [running()]), "otherwise it gets another plan"
    decided = effects_of(**{"trials": [trial()], "attempts": [running()], **state})
    assert [type(effect) for effect in decided] == ([Propose] if "studies" in state else []), why


@pytest.mark.parametrize(("mib", "fits"), [(80, True), (81, False)])
def test_a_wider_plan_has_to_fit_beside_other_gangs(mib: int, fits: bool) -> None:
    """Only two of three devices are left, and on its own one there is another gang of 16 MiB."""
    other = running(trial_id=2, devices=("n/0",), reserved_mib=16)
    closed = frozenset({"n/2", "n/3"})
    at_100 = trial(choice(Plan(2, dp_shard=2), 0.4, mib=mib))
    decided = effects_of([at_100], [running(), other], closed=closed)
    moves = [effect for effect in decided if isinstance(effect, MoveAttempt)]
    assert [move.attempt for move in moves] == [other, *[running()] * fits], (
        "the other one is stopped: no trial runs it"
    )
    assert [move.to for move in moves[1:]] == [AttemptState.WITHDRAWN] * fits


BEFORE = running(state=AttemptState.ENDED, outcome=Outcome.STOPPED, timed_steps=40)


def went_wrong(before: Attempt = BEFORE, **changes: Any) -> list[Effect]:
    """Effects when the attempt after ``before``, a wider one, ends like this."""
    second = running(**{"attempt": 2, "plan": WIDE, "outcome": Outcome.ERROR, "detail": "no DTensor", **changes})
    return effects_of([values.trial(step=100, attempt=2, plan=second.plan)], [second], former={1: before})


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.LOST, Outcome.STALLED])
def test_a_wider_plan_that_fails_costs_a_loss_and_the_trial_continues_as_before(outcome: Outcome) -> None:
    move = went_wrong(outcome=outcome)[0]
    assert isinstance(move, MoveTrial)
    assert move.to is TrialState.QUEUED
    assert move.changes["num_lost"] == 1
    assert move.reason == "continues on 1 device as before, because on 4 devices it failed: no DTensor"
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
    assert isinstance(move, MoveTrial) and move.to is TrialState.FAILED
