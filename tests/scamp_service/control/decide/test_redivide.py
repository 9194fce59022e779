"""Under the policy ``elastic`` devices are divided anew between running and waiting trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import Plan
from placement.model import Cluster, Device
from placement.packing.device_time import DeviceTime
from placement.packing.elastic import elastic
from placement.packing.packer import pack
from placement.packing.projects import Project
from scamp_service.control.decide.effects import MoveAttempt, withdraw
from scamp_service.control.stopping.several import NO_RULES
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, Choice, Trial
from tests import values
from tests.scamp_service.control.decide import snapshots
from tests.values import attempt, changed, sized
from workloads.training.checkpoints.name import CheckpointName

ONE, TWO, FOUR = Plan(8), Plan(4, dp_shard=2), Plan(2, dp_shard=4)
SECONDS = {ONE: 1.0, TWO: 0.52, FOUR: 0.28}
CHOICES = tuple(Choice(plan, sized(plan).prediction, seconds) for plan, seconds in SECONDS.items())
ALL = ("n/0", "n/1", "n/2", "n/3")


def trial(number: int = 1, **changes: Any) -> Trial:
    row = values.trial(**{"id": number, "number": number, "step": 100, **changes})
    assert row.sized is not None
    return replace(row, sized=changed(row.sized, step_seconds=1.0, choices=CHOICES))


def queued(number: int) -> Trial:
    return trial(number, state=TrialState.QUEUED, attempt=0, step=0)


def running(number: int = 1, plan: Plan = ONE, devices: tuple[str, ...] = ("n/0",), **changes: Any) -> Attempt:
    seconds = SECONDS[plan]
    fields = {"step_seconds": seconds, "measured_step_seconds": seconds, "checkpoint_step": 100}
    return attempt(**{"trial_id": number, "plan": plan, "devices": devices, **fields, **changes})


def stopped(trials: list[Trial], attempts: list[Attempt], **changes: Any) -> list[MoveAttempt]:
    study = snapshots.study(trials=1, num_trials=1, steps=1000, stopping=NO_RULES, **changes.pop("study", {}))
    usual = {
        "studies": {1: study},
        "gangs": {row.key: snapshots.ALIVE for row in attempts},
        "checkpoints": {row.trial_id: CheckpointName(row.trial_id, 100) for row in attempts},
        "policy": elastic,
    }
    decided = snapshots.effects_of(trials=trials, attempts=attempts, **{**usual, **changes})
    return [effect for effect in decided if isinstance(effect, MoveAttempt)]


def test_a_running_trial_becomes_narrower_so_that_another_starts() -> None:
    (stop,) = stopped([trial(), queued(2)], [running(plan=FOUR, devices=ALL)])
    change = "it continues on 2 devices instead of 4, so that another trial starts"
    why = f"the policy elastic divided the devices anew: {change}"
    assert stop == withdraw(stop.attempt, why)


def test_it_becomes_wider_where_devices_are_idle_and_that_is_worth_a_restart() -> None:
    (stop,) = stopped([trial()], [running()])
    assert "anew: on 4 devices instead of 1 it ends about 10 min earlier" in stop.detail
    assert not stopped([trial(step=950)], [running()]), "it ends in 50 s"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"policy": pack}, "another policy"),
        ({"attempts": [running(plan=FOUR, devices=ALL, checkpoint_step=-1)]}, "it would begin anew"),
        ({"attempts": [running(plan=FOUR, devices=ALL, state=AttemptState.STARTING)]}, "it has not begun"),
        ({"attempts": [running(plan=FOUR, devices=ALL, measured_step_seconds=None)]}, "no step was timed"),
        ({"trials": [trial(num_oom=1), queued(2)]}, "what it needs is known for its plan only"),
        (
            {"projects": {"default": Project(mib_hours=1)}, "held": {"default": DeviceTime(0.0, 3600.0)}},
            "it would not start again",
        ),
    ],
)
def test_it_keeps_its_devices_where(state: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {"trials": [trial(), queued(2)], "attempts": [running(plan=FOUR, devices=ALL)]}
    assert not stopped(**{**usual, **state}), why


def test_nothing_is_divided_on_devices_of_unequal_speed() -> None:
    kinds = ("V100-16", "V100-16", "T4", "T4")
    cluster = Cluster(tuple(Device(f"n/{i}", "n", i, kind, 96) for i, kind in enumerate(kinds)))
    assert not stopped([trial(), queued(2)], [running(plan=FOUR, devices=ALL)], cluster=cluster)


def test_a_study_that_may_not_use_all_devices_is_not_divided_anew() -> None:
    cluster = Cluster(tuple(Device(f"n/{n}", "n", n, kind, 96) for n, kind in enumerate(("one", "one", "two", "two"))))
    attempts = [running(plan=FOUR, devices=ALL)]
    assert stopped([trial(), queued(2)], attempts, cluster=cluster)
    assert not stopped([trial(), queued(2)], attempts, cluster=cluster, study={"kinds": frozenset({"one"})})


def test_while_an_attempt_winds_down_nothing_else_is_stopped() -> None:
    ending = running(2, devices=("n/3",), state=AttemptState.STOPPING, outcome=Outcome.STOPPED)
    moves = stopped([trial(), trial(2), queued(3)], [running(), ending])
    assert all(move.attempt.trial_id == 2 for move in moves)
