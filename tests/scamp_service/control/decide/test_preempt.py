"""The fewest attempts of lower priority are stopped, and none in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import Plan
from placement.model import Cluster, Device
from placement.packing.policies import policy_named
from scamp_service.control.decide.effects import MoveAttempt
from scamp_service.control.decide.snapshot import Packing
from scamp_service.lifecycle import AttemptState, Outcome, TrialState, WaitsFor
from scamp_service.model import Attempt, Trial
from tests.scamp_service.control.decide.snapshots import ALIVE, CLUSTER, effects_of, study
from tests.values import attempt, trial

LOW, HIGH = 1, 2
ALL = tuple(device.id for device in CLUSTER.devices)


def rules(low: int = 0, high: int = 5) -> dict[int, Any]:
    return {LOW: study(priority=low), HIGH: replace(study(priority=high), id=HIGH)}


def running(
    number: int, device: str, step: int = 8, checkpoint: int = 6, reserved_mib: int = 90
) -> tuple[Trial, Attempt]:
    """A trial that by default fills a device."""
    row = trial(id=number, number=number, study_id=LOW, attempt=1, step=step, reserved_mib=reserved_mib)
    return row, attempt(trial_id=number, devices=(device,), reserved_mib=reserved_mib, checkpoint_step=checkpoint)


def stopped(
    queued: Trial, held: list[tuple[Trial, Attempt]], studies: dict[int, Any] | None = None, policy: str = "pack"
) -> set[int]:
    """Trials whose attempts are stopped, so that ``queued`` can start."""
    gangs = {held_attempt.key: ALIVE for _, held_attempt in held}
    decided = effects_of(
        trials=[*(row for row, _ in held), queued],
        attempts=[held_attempt for _, held_attempt in held],
        gangs=gangs,
        studies=studies or rules(),
        policy=policy_named(policy),
    )
    moves = [effect for effect in decided if isinstance(effect, MoveAttempt)]
    assert all(move.to is AttemptState.WITHDRAWN and move.outcome is None for move in moves)
    return {move.attempt.trial_id for move in moves}


def wants(ranks: int = 1, study_id: int = HIGH, **changes: Any) -> Trial:
    plan = Plan(4, dp_shard=ranks)
    return trial(id=99, study_id=study_id, state=TrialState.QUEUED, attempt=0, plan=plan, reserved_mib=80, **changes)


@pytest.fixture
def full() -> list[tuple[Trial, Attempt]]:
    return [running(10 + index, device, step=8 + index) for index, device in enumerate(ALL)]


def test_the_fewest_attempts_of_lower_priority_that_lose_the_fewest_steps_are_stopped(
    full: list[tuple[Trial, Attempt]],
) -> None:
    assert stopped(wants(), full) == {10}
    assert stopped(wants(ranks=2), full) == {10, 11}


def test_an_attempt_without_a_checkpoint_is_never_stopped(full: list[tuple[Trial, Attempt]]) -> None:
    full[0] = running(10, ALL[0], checkpoint=-1)
    assert stopped(wants(), full) == {11}
    assert stopped(wants(), [running(10 + n, device, checkpoint=-1) for n, device in enumerate(ALL)]) == set()


def test_nothing_is_stopped_for_an_equal_priority_or_in_vain(full: list[tuple[Trial, Attempt]]) -> None:
    assert stopped(wants(), full, rules(low=5)) == set()
    assert stopped(wants(study_id=LOW), full) == set()
    assert stopped(wants(), full[1:]) == set()  # it fits
    assert stopped(wants(retry_at=9.0), full) == set()
    assert stopped(wants(waits_for=WaitsFor.PREDICTIONS), full) == set()


def test_nothing_is_stopped_while_another_attempt_winds_down(full: list[tuple[Trial, Attempt]]) -> None:
    row, held_attempt = full[3]
    full[3] = row, replace(held_attempt, state=AttemptState.WITHDRAWN)
    assert stopped(wants(), full) == set()
    full[3] = row, replace(held_attempt, outcome=Outcome.DONE)
    assert stopped(wants(), full) == set()


@pytest.mark.parametrize(
    ("policy", "ranks", "expected"), [("pack", 1, set()), ("elastic", 1, {10}), ("static-2", 2, {10, 11})]
)
def test_devices_with_room_are_not_enough_for_a_policy_that_gives_each_trial_devices_of_its_own(
    policy: str, ranks: int, expected: set[int]
) -> None:
    small = [running(10 + index, device, step=8 + index, reserved_mib=10) for index, device in enumerate(ALL)]
    assert stopped(wants(ranks), small, policy=policy) == expected


TWO_NODES = Cluster(tuple(Device(f"{node}/{n}", node, n, "virtual", 96) for node in "ab" for n in range(2)))


def moved(*, seconds: float = 100.0, now: float = 1000.0, **changes: Any) -> set[int]:
    """Trials that move for a gang of two ranks, each of which would take 1000 s, beside one trial on each of two nodes.

    ``changes`` are those of their attempts."""
    small = [trial(id=number, number=number, attempt=1, step=8, reserved_mib=90) for number in (1, 2)]
    attempts = [
        attempt(trial_id=number, devices=(f"{node}/0",), reserved_mib=90, checkpoint_step=6, step_seconds=seconds / 92,
                measured_step_seconds=seconds / 92, started_at=10.0, **changes)
        for number, node in ((1, "a"), (2, "b"))
    ]  # fmt: skip
    wide = wants(2, study_id=1)
    assert wide.sized is not None
    wide = replace(wide, sized=replace(wide.sized, choice=replace(wide.sized.choice, step_seconds=10.0)))
    decided = effects_of(
        trials=[*small, wide], attempts=attempts, gangs={held.key: ALIVE for held in attempts}, now=now,
        cluster=TWO_NODES, packing=Packing(policy_named("pack"), 1),
    )  # fmt: skip
    moves = [effect for effect in decided if isinstance(effect, MoveAttempt)]
    assert all("can then start on these" in move.detail for move in moves)
    return {move.attempt.trial_id for move in moves}


def test_a_trial_moves_to_another_node_where_a_gang_then_has_one_to_itself() -> None:
    assert moved() == {1}


def test_no_trial_moves_that_ends_soon_has_just_begun_or_has_no_checkpoint() -> None:
    assert moved(seconds=25.0) == set()
    assert moved(now=50.0) == set()
    assert moved(created_at=-300.0) == set(), "its start took long, and so would the next one"
    assert moved(pack="1/1") == set()
